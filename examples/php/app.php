<?php

// A service with rate limits by redis_rl.php:
//
//     REDIS_PORT=6379 ON_FAILURE=open php -S 127.0.0.1:8000 app.php
//
// More of its environment: DEADLINE_MS (100), X_RATELIMIT=1. php -S serves one request at a time; with -q it would
// drop the lines that say that the limiter is unavailable.

declare(strict_types=1);

require __DIR__ . '/redis_rl.php';

$limiter = new RedisRl\Limiter(
    '127.0.0.1',
    (int) (getenv('REDIS_PORT') ?: 6379),
    onFailure: (string) getenv('ON_FAILURE'),
    deadlineMs: (int) (getenv('DEADLINE_MS') ?: 100),
);

// A real service looks the API key up before it counts: an invented one would have limits of its own.
$client = $_SERVER['HTTP_X_API_KEY'] ?? $_SERVER['REMOTE_ADDR'];

$limited = fn (int $cost): bool => RedisRl\limitRequest(
    $limiter,
    policy: 'api',
    limit: 3,
    window: 60,
    key: $client,
    cost: $cost,
    xRateLimit: getenv('X_RATELIMIT') === '1',
);

function complete(RedisRl\Limiter $limiter, string $client): void
{
    $tokens = filter_var($_GET['tokens'] ?? null, FILTER_VALIDATE_INT, ['options' => ['min_range' => 1]]);
    if ($tokens === false) {
        http_response_code(400);
        echo "tokens must be a positive integer\n";

        return;
    }
    // What is in braces decides the slot: in a cluster, the keys of one RL.MHIT have to share theirs.
    $verdict = $limiter->mhit([
        ["{{$client}}:requests", 5, 60],
        ["{{$client}}:tokens", 100, 60, $tokens],
    ]);
    if (!$verdict->failed) {
        [$requests, $ofTokens] = $verdict->verdicts;
        RedisRl\sendHeaders(['requests' => [$requests, 60], 'tokens' => [$ofTokens, 60]]);
    }
    if (!$verdict->allowed) {
        RedisRl\refuse($verdict);

        return;
    }
    echo "completed\n";
}

header('Content-Type: text/plain');
switch ($_SERVER['REQUEST_METHOD'] . ' ' . parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH)) {
    case 'GET /':
        if ($limited(1)) {
            echo "hello\n";
        }
        break;
    case 'GET /report':
        if ($limited(2)) {
            echo "report\n";
        }
        break;
    case 'POST /complete':
        complete($limiter, $client);
        break;
    default:
        http_response_code(404);
        echo "Not found\n";
}
