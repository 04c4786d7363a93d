"""Helpers that send raw requests and check the edge's responses."""

import time

import httpx

from tests.support.raw import Answer
from tests.support.scraping import Scrape, scrape
from tests.support.server import Server

MIB = 1024 * 1024
GET = b"GET /health HTTP/1.1\r\nhost: test\r\n"
POST = b"POST /v1/api-keys HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
END = b"connection: close\r\n\r\n"
HEAD_S, BODY_S, ANSWER_S = 1, 4, 2
CONNECTIONS, PER_ADDRESS = 24, 16
GIVEN_S = 30
"""Timeout in seconds for events that usually take a second or two. It allows for a busy machine."""


def check(found: list[Answer], status: int, kind: str, code: str) -> Answer:
    """Returns the only answer. Checks its error format and that the connection was closed."""
    (answer,) = found
    assert (answer.status, answer.error["type"], answer.error["code"]) == (status, kind, code)
    assert answer.error["message"] and answer.headers["connection"] == "close"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["x-content-type-options"] == "nosniff"
    return answer


def too_large(found: list[Answer]) -> None:
    check(found, 431, "HeadersTooLargeError", "headers_too_large")


def others_are_answered(server: Server) -> None:
    with server.client() as client:
        assert client.get("/health").status_code == 200


def ended(client: httpx.Client, reason: str) -> float:
    return scrape(client).get("stoker_connections_ended_total", reason=reason)


def until(client: httpx.Client, name: str, value: float, **labels: str) -> Scrape:
    deadline = time.monotonic() + GIVEN_S
    while (metrics := scrape(client)).get(name, **labels) != value:
        assert time.monotonic() < deadline, metrics.get(name, **labels)
        time.sleep(0.1)
    return metrics
