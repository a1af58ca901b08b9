"""An application on Starlette with rate limits. ON_FAILURE=open python app_asgi.py

Settings by environment: PORT, REDIS_PORT, ON_FAILURE (open or closed), DEADLINE_MS, X_RATELIMIT=1.
"""

import contextlib
import logging
import os
from collections.abc import AsyncIterator

import redis.asyncio
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from redis_rl import AsyncLimiter, rate_limit_headers, refusal
from redis_rl_asgi import RateLimitMiddleware, peer_address

logging.basicConfig(level=logging.INFO)

limiter = AsyncLimiter(
    redis.asyncio.Redis(host="127.0.0.1", port=int(os.environ.get("REDIS_PORT", "6379"))),
    on_failure=os.environ.get("ON_FAILURE", ""),
    deadline_ms=float(os.environ.get("DEADLINE_MS", "100")),
)


def client_key(request: Request) -> str:
    # Your application takes the key that it has checked: who can make up new ones has no limit.
    return request.headers.get("x-api-key") or peer_address(request)


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello\n")


async def report(request: Request) -> Response:
    return PlainTextResponse("report\n")


async def complete(request: Request) -> Response:
    try:
        tokens = int(request.query_params["tokens"])
        if not 1 <= tokens < 2**63:
            raise ValueError
    except (KeyError, ValueError):
        return PlainTextResponse("tokens has to be a number, at least 1\n", 400)
    key = client_key(request)
    # The braces keep both keys in one slot of a cluster, which a command of several keys needs.
    verdict = await limiter.mhit(
        [(f"{{{key}}}:requests", 5, 60, 1), (f"{{{key}}}:tokens", 100, 60, tokens)]
    )
    requests, per_token = verdict.verdicts
    headers = rate_limit_headers(("requests", 60, requests), ("tokens", 60, per_token))
    if not verdict.allowed:
        status, more, body = refusal(verdict)
        return PlainTextResponse(body, status, headers=dict(headers + more))
    return PlainTextResponse("completed\n", headers=dict(headers))


def limited(cost: int) -> list[Middleware]:
    return [
        Middleware(
            RateLimitMiddleware,
            limiter=limiter,
            policy="api",
            limit=3,
            window=60,
            key=client_key,
            cost=lambda request: cost,
            x_ratelimit=os.environ.get("X_RATELIMIT") == "1",
        )
    ]


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    yield
    await limiter.aclose()


app = Starlette(
    routes=[
        Route("/", hello, middleware=limited(cost=1)),
        Route("/report", report, middleware=limited(cost=2)),
        Route("/complete", complete, methods=["POST"]),
    ],
    lifespan=lifespan,
)

if __name__ == "__main__":
    # There is no proxy in front of this, so nobody's X-Forwarded-For is to be believed.
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(os.environ.get("PORT", "8000")),
        proxy_headers=False,
        access_log=False,
        log_config=None,
    )
