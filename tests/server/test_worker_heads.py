"""Parts of HTTP workers: heads of requests and responses."""

import re

import pytest

from stoker.base.config import Settings
from stoker.inference.session import VERSION
from stoker.server.workers.heads import CallHead
from stoker.server.workers.process import answered_operations, call_heads
from stoker.server.workers.response_heads import ResponseHead
from stoker.tenancy.keys.keyring import digest

CALLS = "/v1/classifications/text"
LINE = f"POST {CALLS} HTTP/1.1"
HEADERS = {
    "Host": "test",
    "Content-Type": "application/json; charset=utf-8",
    "Content-Length": "12",
    "Authorization": "Bearer sk-id-secret",
}


def read(
    line: str = LINE, headers: dict[str, str] | None = None, **settings: object
) -> CallHead | None:
    lines = [line, *(f"{name}: {value}" for name, value in (headers or HEADERS).items())]
    heads = call_heads(Settings(**settings), answered_operations())  # type: ignore[arg-type]
    return heads.read("\r\n".join([*lines, "", ""]).encode())


def test_a_plain_call_is_read() -> None:
    head = read(headers={**HEADERS, "Prefer": "wait=3", "X-Other": "a: b"})
    assert head is not None
    assert (head.path, head.length, head.wait_s) == (CALLS, 12, 3)
    assert (head.caller.public_id, head.caller.secret_sha256) == ("id", digest("secret"))
    assert head.headers["x-other"] == "a: b"


@pytest.mark.parametrize(
    "changes",
    [
        {"Content-Length": "-1"},
        {"Content-Length": "+12"},
        {"Content-Length": "12, 12"},
        {"Content-Length": "9999999"},
        {"content-length": "12"},
        {"host": "other"},
        {"Transfer-Encoding": "chunked"},
        {"Content-Encoding": "gzip"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Expect": "100-continue"},
        {"Upgrade": "h2c"},
        {"Connection": "close"},
        {"Connection": "keep-alive, upgrade"},
        {"Authorization": "Basic a"},
        {"Authorization": "Bearer "},
        {"X-Stoker-Account": "acct_1"},
        {"Host ": "test"},
        {"X-Folded": "a\r\n b"},
        {"X-Bare": "a\nb"},
        {"X-Control": "a\x00b"},
        {"X-Latin": "\xe9"},
        # A pattern that tries all ways to divide the spaces would take minutes.
        {"X-Spaces": " " * 7000 + "\xe9"},
        {"X Space": "a"},
    ],
)
def test_other_requests_are_left_to_the_server(changes: dict[str, str]) -> None:
    assert read(headers={**HEADERS, **changes}) is None


@pytest.mark.parametrize(
    "line",
    [
        f"GET {CALLS} HTTP/1.1",
        f"POST {CALLS} HTTP/1.0",
        f"POST {CALLS}?a=b HTTP/1.1",
        f"POST  {CALLS} HTTP/1.1",
        "POST /v1/api-keys HTTP/1.1",
        "POST /v1/classifications/image HTTP/1.1",
        "POST /v1/audio/transcriptions HTTP/1.1",
        f"POST http://test{CALLS} HTTP/1.1",
        "",
    ],
)
def test_other_paths_are_left_to_the_server(line: str) -> None:
    assert read(line) is None


def test_settings_narrow_the_calls() -> None:
    assert read(allowed_hosts=["test"]) is not None
    assert read(allowed_hosts=["other"]) is None
    headers = {**HEADERS, "Origin": "https://page.example"}
    assert read(headers=headers) is not None
    assert read(headers=headers, cors_origins=["https://page.example"]) is None


def test_head_of_a_response() -> None:
    head = ResponseHead(
        request_id="id",
        media_type="text/event-stream",
        length=None,
        version_id="ver_1",
        counted={"x-ratelimit-limit-requests": "5"},
        closes=True,
    )
    lines = re.sub(rb"date: [^\r]+ GMT", b"date", head.content()).decode().split("\r\n")
    assert lines == [
        "HTTP/1.1 200 OK",
        "date",
        "content-type: text/event-stream; charset=utf-8",
        "cache-control: no-cache",
        "x-accel-buffering: no",
        f"{VERSION}: ver_1",
        "x-request-id: id",
        "x-content-type-options: nosniff",
        "x-ratelimit-limit-requests: 5",
        "connection: close",
        "transfer-encoding: chunked",
        "",
        "",
    ]
