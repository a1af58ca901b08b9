"""Rate limiting as WSGI middleware, for Flask, Django and others. It needs redis_rl.py beside it.

Flask: app.wsgi_app = RateLimitMiddleware(
    app.wsgi_app, limiter=limiter, policy="api", limit=100, window=60
)
Django, in wsgi.py: application = RateLimitMiddleware(get_wsgi_application(), limiter=limiter, ...)
"""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from redis_rl import Algorithm, Limiter, rate_limit_headers, refusal


def peer_address(environ: WSGIEnvironment) -> str:
    # Behind a proxy this is the proxy's: all clients share one limit. Take the address that YOUR
    # proxy sets, never a header that clients can send. gunicorn leaves REMOTE_ADDR as it is, so it
    # is yours to do, for instance with Werkzeug's ProxyFix around this.
    return str(environ.get("REMOTE_ADDR") or "unknown")


def respond(
    start_response: StartResponse, status: int, headers: list[tuple[str, str]], body: str
) -> list[bytes]:
    content = body.encode()
    headers = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(content))),
        *headers,
    ]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [content]


class RateLimitMiddleware:
    def __init__(
        self,
        app: WSGIApplication,
        *,
        limiter: Limiter,
        policy: str,
        limit: int,
        window: int,
        key: Callable[[WSGIEnvironment], str] = peer_address,
        cost: Callable[[WSGIEnvironment], int] = lambda environ: 1,
        algorithm: Algorithm | None = None,
        x_ratelimit: bool = False,
    ) -> None:
        self.app = app
        self.limiter = limiter
        self.policy = policy
        self.limit = limit
        self.window = window
        self.key = key
        self.cost = cost
        self.algorithm = algorithm
        self.x_ratelimit = x_ratelimit

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        verdict = self.limiter.hit(
            f"{self.policy}:{self.key(environ)}",
            self.limit,
            self.window,
            self.cost(environ),
            self.algorithm,
        )
        headers = rate_limit_headers(
            (self.policy, self.window, verdict), x_ratelimit=self.x_ratelimit
        )
        if not verdict.allowed:
            status, more, body = refusal(verdict)
            return respond(start_response, status, headers + more, body)

        def start_with_headers(
            status: str, response_headers: list[tuple[str, str]], exc_info: Any = None, /
        ) -> Callable[[bytes], object]:
            return start_response(status, [*response_headers, *headers], exc_info)

        return self.app(environ, start_with_headers)
