"""Rate limiting as ASGI middleware, for Starlette and FastAPI. It needs redis_rl.py beside it.

app.add_middleware(RateLimitMiddleware, limiter=limiter, policy="api", limit=100, window=60)
"""

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redis_rl import Algorithm, AsyncLimiter, rate_limit_headers, refusal


def peer_address(request: Request) -> str:
    # Behind a proxy this is the proxy's: all clients share one limit. Take the address that YOUR
    # proxy sets, never a header that clients can send. uvicorn does it, from X-Forwarded-For, for
    # the proxies in its --forwarded-allow-ips; by default it believes any caller on this machine.
    return request.client.host if request.client else "unknown"


class RateLimitMiddleware:
    def __init__(
        self,
        app: ASGIApp,
        *,
        limiter: AsyncLimiter,
        policy: str,
        limit: int,
        window: int,
        key: Callable[[Request], str] = peer_address,
        cost: Callable[[Request], int] = lambda request: 1,
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # websockets, too, pass without a limit
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        verdict = await self.limiter.hit(
            f"{self.policy}:{self.key(request)}",
            self.limit,
            self.window,
            self.cost(request),
            self.algorithm,
        )
        headers = rate_limit_headers(
            (self.policy, self.window, verdict), x_ratelimit=self.x_ratelimit
        )

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                response_headers = MutableHeaders(scope=message)
                for name, value in headers:
                    # Appended, so that a second limit within the first adds to it.
                    response_headers.append(name, value)
            await send(message)

        if verdict.allowed:
            await self.app(scope, receive, send_with_headers)
        else:
            status, more, body = refusal(verdict)
            response = PlainTextResponse(body, status, headers=dict(more))
            await response(scope, receive, send_with_headers)
