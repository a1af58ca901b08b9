<?php

// Rate limiting by the server module redis-rl: a limiter on the extension phpredis, and functions that apply
// it to the current request. Copy this file and require it; app.php beside it shows it at work.

declare(strict_types=1);

namespace RedisRl;

final class Verdict
{
    public function __construct(
        public readonly bool $allowed,
        public readonly int $limit,
        public readonly int $remaining,
        public readonly ?int $retryAfter, // null: never, the cost is above what the limiter can hold
        public readonly int $resetAfter,
        public readonly bool $failed = false, // no answer of the server: only $allowed means something
    ) {
    }
}

final class MultiVerdict
{
    /** @param list<Verdict> $verdicts */
    public function __construct(
        public readonly bool $allowed,
        public readonly ?int $retryAfter,
        public readonly array $verdicts,
        public readonly bool $failed = false,
    ) {
    }
}

final class Limiter
{
    private ?\Redis $redis = null;

    /**
     * Connects at the first call, by itself: the time to connect is a part of the deadline, and a client from
     * elsewhere would bring its own timeouts and retries.
     *
     * Give an address, not a name: no timeout of PHP covers the resolving of names.
     *
     * @param string $onFailure 'open' or 'closed': whether a request gets in that the server can't answer for
     * @param int $deadlineMs how long one call may take in all
     * @param string|array{string, string}|null $auth a password, or a user and a password
     */
    public function __construct(
        private readonly string $host,
        private readonly int $port,
        private readonly string $onFailure,
        private readonly int $deadlineMs,
        private readonly string|array|null $auth = null,
    ) {
        if ($onFailure !== 'open' && $onFailure !== 'closed') {
            throw new \InvalidArgumentException("onFailure must be 'open' or 'closed', not '$onFailure'");
        }
        // PHP waits in whole milliseconds: of one, nothing would be left to wait for.
        if ($deadlineMs < 2) {
            throw new \InvalidArgumentException("deadlineMs must be at least 2, not $deadlineMs");
        }
    }

    /** @param string|list<string|int> $algorithm 'SLIDING' or ['BUCKET', 10]; FIXED if left out */
    public function hit(string $key, int $limit, int $window, int $cost = 1, string|array $algorithm = []): Verdict
    {
        $reply = $this->call('RL.HIT', $key, ...self::rule($limit, $window, $cost, $algorithm));

        return $reply === null ? $this->failed($limit) : self::verdict($reply);
    }

    /**
     * Takes from all of several limiters, or from none.
     *
     * @param list<array> $rules what hit() takes, each: [key, limit, window, cost, algorithm]
     */
    public function mhit(array $rules): MultiVerdict
    {
        $words = [];
        foreach ($rules as $rule) {
            array_push($words, ...self::rule(...array_slice($rule, 1)));
        }
        $reply = $this->call('RL.MHIT', count($rules), ...array_column($rules, 0), ...$words);
        if ($reply === null) {
            $failed = array_map(fn (array $rule) => $this->failed($rule[1]), $rules);

            return new MultiVerdict($this->onFailure === 'open', 0, $failed, failed: true);
        }
        [$allowed, $retryAfter, $verdicts] = $reply;

        return new MultiVerdict(
            $allowed === 1,
            $retryAfter === -1 ? null : $retryAfter,
            array_map(self::verdict(...), $verdicts),
        );
    }

    /**
     * The words of one rule. What the server would answer with an error is thrown here: as a failure it would be
     * let in under 'open', and a client may have chosen the cost.
     */
    private static function rule(int $limit, int $window, int $cost = 1, string|array $algorithm = []): array
    {
        if ($limit < 0 || $window < 1 || $cost < 1) {
            throw new \ValueError("not possible: limit $limit, window $window, cost $cost");
        }

        return [$limit, $window, ...(array) $algorithm, 'COST', $cost];
    }

    private static function verdict(array $reply): Verdict
    {
        [$allowed, $limit, $remaining, $retryAfter, $resetAfter] = $reply;

        return new Verdict($allowed === 1, $limit, $remaining, $retryAfter === -1 ? null : $retryAfter, $resetAfter);
    }

    private function failed(int $limit): Verdict
    {
        return new Verdict($this->onFailure === 'open', $limit, 0, 0, 0, failed: true);
    }

    /** The reply, or null if there is none, of which the log then has the reason. */
    private function call(string $command, string|int ...$arguments): ?array
    {
        $end = hrtime(true) + $this->deadlineMs * 1_000_000;
        try {
            $this->redis ??= $this->connect($end);
            $this->redis->setOption(\Redis::OPT_READ_TIMEOUT, $this->secondsLeft($end));
            $reply = $this->redis->rawCommand($command, ...$arguments);
            if (is_array($reply)) {
                return $reply;
            }
            // Some error replies are exceptions, those that begin with ERR or WRONGTYPE are not.
            $reason = $this->redis->getLastError() ?? 'no reply';
        } catch (\RedisException $e) {
            // A reply that was late is a socket error in the words of phpredis.
            $late = hrtime(true) > $end - 2_000_000;
            $reason = $late ? "no reply within $this->deadlineMs ms" : $e->getMessage();
        }
        // A connection on which a reply was late has to go: the next call would take that reply for its own.
        $this->redis = null;
        if (preg_match('/^ERR unknown command/i', $reason)) {
            $reason = 'the server has no RL.HIT: load the module redis-rl on it (loadmodule librl.so)';
        }
        $meanwhile = $this->onFailure === 'open' ? 'letting requests in' : 'refusing requests';
        error_log("rate limiter unavailable, $meanwhile: $reason");

        return null;
    }

    /**
     * By connect() and not by pconnect(), so a new connection for each request. A persistent one comes with the
     * timeouts, the user and the database of whoever had it before, and to find out that it is dead costs
     * phpredis time that no timeout of this request holds for.
     */
    private function connect(int $end): \Redis
    {
        $redis = new \Redis();
        // The @ is for a warning about names that can't be resolved. The exception says the same.
        if (!@$redis->connect($this->host, $this->port, $this->secondsLeft($end))) {
            throw new \RedisException("can't connect to $this->host:$this->port");
        }
        // By default phpredis connects up to 10 times more when a connection is lost, with pauses, even between
        // a command and its reply, and then waits for a reply to what the new connection has never sent.
        $redis->setOption(\Redis::OPT_MAX_RETRIES, 0);
        if ($this->auth !== null) {
            $redis->setOption(\Redis::OPT_READ_TIMEOUT, $this->secondsLeft($end));
            if (!$redis->auth($this->auth)) {
                throw new \RedisException($redis->getLastError() ?? 'AUTH failed');
            }
        }

        return $redis;
    }

    private function secondsLeft(int $end): float
    {
        $seconds = ($end - hrtime(true)) / 1e9;
        // Of much less than a millisecond phpredis would make a 0, and of that its default of a minute.
        if ($seconds < 0.001) {
            throw new \RedisException('the deadline has passed');
        }

        return $seconds;
    }
}

/**
 * Takes from the limiter "$policy:$key" for the current request, and sends the headers. If it returns false,
 * the request has been answered: return, and send nothing more.
 *
 * The key is the peer's address if left out. Behind a proxy give the address that YOUR proxy sets, never a header
 * that clients can send: whoever invents one gets a limit of his own.
 */
function limitRequest(
    Limiter $limiter,
    string $policy,
    int $limit,
    int $window,
    ?string $key = null,
    int $cost = 1,
    string|array $algorithm = [],
    bool $xRateLimit = false,
): bool {
    $key ??= $_SERVER['REMOTE_ADDR'];
    $verdict = $limiter->hit("$policy:$key", $limit, $window, $cost, $algorithm);
    if (!$verdict->failed) {
        sendHeaders([$policy => [$verdict, $window]]);
        if ($xRateLimit) {
            header("X-RateLimit-Limit: $verdict->limit");
            header("X-RateLimit-Remaining: $verdict->remaining");
            header("X-RateLimit-Reset: $verdict->resetAfter");
        }
    }
    if (!$verdict->allowed) {
        refuse($verdict);
    }

    return $verdict->allowed;
}

/**
 * The headers of draft-ietf-httpapi-ratelimit-headers.
 *
 * @param array<string, array{Verdict, int}> $limits by the policy's name: a verdict and its window
 */
function sendHeaders(array $limits): void
{
    $policies = $states = [];
    foreach ($limits as $name => [$verdict, $window]) {
        $policies[] = "\"$name\";q=$verdict->limit;w=$window";
        $states[] = "\"$name\";r=$verdict->remaining;t=$verdict->resetAfter";
    }
    header('RateLimit-Policy: ' . implode(', ', $policies));
    header('RateLimit: ' . implode(', ', $states));
}

function refuse(Verdict|MultiVerdict $verdict): void
{
    http_response_code($verdict->failed ? 503 : 429);
    header('Content-Type: text/plain');
    $retryAfter = $verdict->failed ? 1 : $verdict->retryAfter;
    if ($retryAfter !== null) {
        header("Retry-After: $retryAfter");
    }
    echo $verdict->failed ? "Rate limiter unavailable\n" : "Too many requests\n";
}
