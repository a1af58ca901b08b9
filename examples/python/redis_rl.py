"""Rate limiting with the server module redis-rl: RL.HIT and RL.MHIT, called by redis-py.

Copy this file into your service, and redis_rl_asgi.py or redis_rl_wsgi.py if you want middleware.
To see it run: pip install -r requirements.txt, and ON_FAILURE=open python app_asgi.py.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.backoff
import redis.retry

logger = logging.getLogger("redis_rl")

# Calls in flight at once, each on a connection of its own. More wait for their turn, within the
# deadline. (A full pool of redis-py raises at once, and a burst would be let in by failing open.)
CONNECTIONS = 32

Key = str | bytes
Algorithm = str | tuple[str, int]  # "SLIDING", or ("BUCKET", 10)


@dataclass(frozen=True, slots=True)
class Verdict:
    allowed: bool
    limit: int
    remaining: int
    retry_after: int | None  # seconds; None where waiting doesn't help, and where failed
    reset_after: int  # seconds
    failed: bool = False  # no answer of the server: allowed is what on_failure says


@dataclass(frozen=True, slots=True)
class MultiVerdict:
    allowed: bool
    retry_after: int | None
    verdicts: list[Verdict]
    failed: bool = False


class Rule(NamedTuple):
    key: Key
    limit: int
    window: int
    cost: int = 1
    algorithm: Algorithm | None = None


class _Limiter:
    """All of it that isn't I/O."""

    def __init__(self, on_failure: str, deadline_ms: float) -> None:
        if on_failure not in ("open", "closed"):
            raise ValueError(f"on_failure has to be 'open' or 'closed', not {on_failure!r}")
        if not deadline_ms > 0:
            raise ValueError(f"deadline_ms has to be above 0, not {deadline_ms!r}")
        self._open = on_failure == "open"
        self._deadline_ms = deadline_ms
        self._failing = False
        self._changed = time.monotonic()
        self._lock = threading.Lock()

    def _connection_options(self, client: Any, retry: Any) -> dict[str, Any]:
        """The client's own options, but for those that would break the deadline or send twice."""
        # What RESP3 brings in redis-py 7 and 8 is left out with it: caching, and notifications by
        # which a server can raise the timeouts of its clients to ten seconds.
        left_out = ("maint_notifications", "oss_cluster_maint", "orig_", "cache")
        pool = client.connection_pool
        options = {
            name: value
            for name, value in pool.connection_kwargs.items()
            if not name.startswith(left_out)
        }
        options |= {
            "connection_class": pool.connection_class,
            "protocol": 2,
            # By default redis-py sends a command that wasn't answered again, up to ten times with
            # pauses. The first one may have counted.
            "retry": retry(redis.backoff.NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            # A PING before the command costs a round trip, and tells nothing that it wouldn't.
            "health_check_interval": 0,
            # These hold for each step: an address, a write, a read. They don't keep the deadline,
            # they only free what waits for a server that is silent.
            "socket_timeout": self._deadline_ms / 1000,
        }
        if "path" not in options:
            options["socket_connect_timeout"] = self._deadline_ms / 1000
        return options

    def _answered(self, started: float) -> None:
        if self._failing:
            self._change(False, started, "rate limiter available again")

    def _failed(self, started: float, error: Exception) -> None:
        if not self._failing:
            does = "letting requests in" if self._open else "refusing requests"
            reason = self._reason(error)
            self._change(True, started, f"rate limiter unavailable, {does}: {reason}")

    def _change(self, failing: bool, started: float, line: str) -> None:
        with self._lock:
            # Of the calls that were on their way at the last change, each would tell its own story.
            if failing == self._failing or started < self._changed:
                return
            self._failing = failing
            self._changed = time.monotonic()
            # Both are warnings: without any configuration logging drops what is less.
            logger.warning(line)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, TimeoutError | redis.TimeoutError):
            return f"no answer within {self._deadline_ms:g} ms"
        text = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, redis.ResponseError) and "unknown command" in text.lower():
            return "the server has no RL.HIT: load the module redis-rl on it (loadmodule librl.so)"
        return text

    def _verdict(self, limit: int, reply: list[int] | None) -> Verdict:
        if reply is None:
            return Verdict(self._open, limit, 0, None, 0, failed=True)
        allowed, limit, remaining, retry_after, reset_after = reply
        return Verdict(allowed == 1, limit, remaining, _wait(retry_after), reset_after)

    def _multi_verdict(self, rules: list[Rule], reply: list[Any] | None) -> MultiVerdict:
        if reply is None:
            verdicts = [self._verdict(rule.limit, None) for rule in rules]
            return MultiVerdict(self._open, None, verdicts, failed=True)
        allowed, retry_after, replies = reply
        verdicts = [self._verdict(0, one) for one in replies]
        return MultiVerdict(allowed == 1, _wait(retry_after), verdicts)


def _wait(retry_after: int) -> int | None:
    return None if retry_after == -1 else retry_after


# What the server wouldn't take is raised here, before anything is sent. Its error reply would be a
# failure, which on_failure="open" lets in: not for whoever may choose the cost or the key.


def _key(key: Key) -> bytes:
    if not isinstance(key, str | bytes):
        raise TypeError(f"key has to be str or bytes, not {key!r}")
    return key.encode() if isinstance(key, str) else key


def _words(rule: Rule) -> list[str | int]:
    numbers = (("limit", rule.limit, 0), ("window", rule.window, 1), ("cost", rule.cost, 1))
    for name, value, least in numbers:
        if type(value) is not int:  # bool is a kind of int
            raise TypeError(f"{name} has to be an int, not {value!r}")
        if not least <= value < 2**63:
            raise ValueError(f"{name} has to be from {least} to 2**63 - 1, not {value}")
    words: list[str | int] = [rule.limit, rule.window]
    if isinstance(rule.algorithm, str):
        words.append(rule.algorithm)
    elif rule.algorithm is not None:
        words.extend(rule.algorithm)
    return [*words, "COST", rule.cost]


def _hit(rule: Rule) -> list[str | int | bytes]:
    return ["RL.HIT", _key(rule.key), *_words(rule)]


def _mhit(rules: list[Rule]) -> list[str | int | bytes]:
    words = [word for rule in rules for word in _words(rule)]
    return ["RL.MHIT", len(rules), *(_key(rule.key) for rule in rules), *words]


class Limiter(_Limiter):
    """For threads: one for the process, shared by all of them.

    The client gives the address, the password, TLS and so on. The connections are the limiter's
    own, so the client's settings and its other uses stay as they are. (A client made with
    single_connection_client=True connects while it is made, and raises where there is no server.)
    """

    def __init__(self, client: redis.Redis, *, on_failure: str, deadline_ms: float) -> None:
        super().__init__(on_failure, deadline_ms)
        self._given = client  # a pool of Sentinel's lives as long as its client
        options = self._connection_options(client, redis.retry.Retry)
        pool = redis.ConnectionPool(max_connections=CONNECTIONS, **options)
        self._client = redis.Redis(connection_pool=pool)
        self._start()

    def _start(self) -> None:
        # The timeouts of a socket don't keep a deadline: they begin anew with each read and each
        # address of the host, and looking up its name has none. So the call is made in another
        # thread, and this one stops waiting for it.
        self._workers = ThreadPoolExecutor(CONNECTIONS, "redis-rl")
        self._pid = os.getpid()

    def hit(
        self,
        key: Key,
        limit: int,
        window: int,
        cost: int = 1,
        algorithm: Algorithm | None = None,
    ) -> Verdict:
        rule = Rule(key, limit, window, cost, algorithm)
        return self._verdict(limit, self._call(_hit(rule)))

    def mhit(self, rules: Iterable[Rule | tuple[Key, int, int, int]]) -> MultiVerdict:
        these = [Rule(*rule) for rule in rules]
        return self._multi_verdict(these, self._call(_mhit(these)))

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._client.connection_pool.disconnect()

    def _call(self, command: list[str | int | bytes]) -> Any:
        if self._pid != os.getpid():  # forked, as by gunicorn --preload: threads don't come along
            self._lock = threading.Lock()
            self._start()
        started = time.monotonic()
        try:
            future = self._workers.submit(self._client.execute_command, *command)
            try:
                reply = future.result(self._deadline_ms / 1000)
            finally:
                future.cancel()  # if it still waits for its turn, it is never sent
        except Exception as error:
            self._failed(started, error)
            return None
        self._answered(started)
        return reply


class AsyncLimiter(_Limiter):
    """For asyncio: one for the event loop. The rest is as with Limiter."""

    def __init__(self, client: redis.asyncio.Redis, *, on_failure: str, deadline_ms: float) -> None:
        super().__init__(on_failure, deadline_ms)
        self._given = client
        options = self._connection_options(client, redis.asyncio.retry.Retry)
        pool = redis.asyncio.ConnectionPool(max_connections=CONNECTIONS, **options)
        self._client = redis.asyncio.Redis(connection_pool=pool)
        # BlockingConnectionPool has such a queue too, but a call that is cancelled while it gives a
        # connection back may lose that for good.
        self._turns = asyncio.Semaphore(CONNECTIONS)

    async def hit(
        self,
        key: Key,
        limit: int,
        window: int,
        cost: int = 1,
        algorithm: Algorithm | None = None,
    ) -> Verdict:
        rule = Rule(key, limit, window, cost, algorithm)
        return self._verdict(limit, await self._call(_hit(rule)))

    async def mhit(self, rules: Iterable[Rule | tuple[Key, int, int, int]]) -> MultiVerdict:
        these = [Rule(*rule) for rule in rules]
        return self._multi_verdict(these, await self._call(_mhit(these)))

    async def aclose(self) -> None:
        await self._client.connection_pool.disconnect()

    async def _call(self, command: list[str | int | bytes]) -> Any:
        started = time.monotonic()
        try:
            # redis-py closes a connection whose call is cancelled, so nobody gets another's reply.
            async with asyncio.timeout(self._deadline_ms / 1000), self._turns:
                reply = await self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except Exception as error:
            self._failed(started, error)
            return None
        self._answered(started)
        return reply


def rate_limit_headers(
    *limits: tuple[str, int, Verdict], x_ratelimit: bool = False
) -> list[tuple[str, str]]:
    """The headers of draft-ietf-httpapi-ratelimit-headers, of (policy, window, verdict) each.

    None at all for a verdict that failed. x_ratelimit adds the older ones, of the first limit.
    """
    if any(verdict.failed for _, _, verdict in limits):
        return []
    headers = [
        ("RateLimit-Policy", ", ".join(f'"{p}";q={v.limit};w={w}' for p, w, v in limits)),
        ("RateLimit", ", ".join(f'"{p}";r={v.remaining};t={v.reset_after}' for p, _, v in limits)),
    ]
    if x_ratelimit:
        verdict = limits[0][2]
        headers += [
            ("X-RateLimit-Limit", str(verdict.limit)),
            ("X-RateLimit-Remaining", str(verdict.remaining)),
            ("X-RateLimit-Reset", str(verdict.reset_after)),
        ]
    return headers


def refusal(verdict: Verdict | MultiVerdict) -> tuple[int, list[tuple[str, str]], str]:
    """Status, headers and body for a request that isn't let in."""
    if verdict.failed:
        return 503, [("Retry-After", "1")], "Rate limiter unavailable\n"
    if verdict.retry_after is None:
        return 429, [], "Too many requests\n"
    return 429, [("Retry-After", str(verdict.retry_after))], "Too many requests\n"
