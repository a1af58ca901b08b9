"""The application of app_asgi.py on WSGI, without a framework. ON_FAILURE=open python app_wsgi.py

Settings by environment: PORT, REDIS_PORT, ON_FAILURE (open or closed), DEADLINE_MS, X_RATELIMIT=1.
"""

import logging
import os
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import redis

from redis_rl import Limiter, rate_limit_headers, refusal
from redis_rl_wsgi import RateLimitMiddleware, peer_address, respond

logging.basicConfig(level=logging.INFO)

limiter = Limiter(
    redis.Redis(host="127.0.0.1", port=int(os.environ.get("REDIS_PORT", "6379"))),
    on_failure=os.environ.get("ON_FAILURE", ""),
    deadline_ms=float(os.environ.get("DEADLINE_MS", "100")),
)


def client_key(environ: WSGIEnvironment) -> str:
    # Your application takes the key that it has checked: who can make up new ones has no limit.
    return environ.get("HTTP_X_API_KEY") or peer_address(environ)


def hello(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return respond(start_response, 200, [], "hello\n")


def report(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return respond(start_response, 200, [], "report\n")


def complete(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    try:
        tokens = int(parse_qs(environ.get("QUERY_STRING", ""))["tokens"][0])
        if not 1 <= tokens < 2**63:
            raise ValueError
    except (KeyError, ValueError):
        return respond(start_response, 400, [], "tokens has to be a number, at least 1\n")
    key = client_key(environ)
    # The braces keep both keys in one slot of a cluster, which a command of several keys needs.
    verdict = limiter.mhit(
        [(f"{{{key}}}:requests", 5, 60, 1), (f"{{{key}}}:tokens", 100, 60, tokens)]
    )
    requests, per_token = verdict.verdicts
    headers = rate_limit_headers(("requests", 60, requests), ("tokens", 60, per_token))
    if not verdict.allowed:
        status, more, body = refusal(verdict)
        return respond(start_response, status, headers + more, body)
    return respond(start_response, 200, headers, "completed\n")


def limited(app: WSGIApplication, cost: int) -> RateLimitMiddleware:
    return RateLimitMiddleware(
        app,
        limiter=limiter,
        policy="api",
        limit=3,
        window=60,
        key=client_key,
        cost=lambda environ: cost,
        x_ratelimit=os.environ.get("X_RATELIMIT") == "1",
    )


routes: dict[tuple[str, str], WSGIApplication] = {
    ("GET", "/"): limited(hello, cost=1),
    ("GET", "/report"): limited(report, cost=2),
    ("POST", "/complete"): complete,
}


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    route = routes.get((environ["REQUEST_METHOD"], environ.get("PATH_INFO") or "/"))
    if route is None:
        return respond(start_response, 404, [], "Not found\n")
    return route(environ, start_response)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # it is 5, and who comes when that is full waits a second


class Handler(WSGIRequestHandler):
    disable_nagle_algorithm = True  # it writes a response in pieces, and each would wait

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


if __name__ == "__main__":
    with Server(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Handler) as server:
        server.set_app(app)
        server.serve_forever()
