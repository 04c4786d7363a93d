"""No body blocks the event loop: other requests are answered in the meantime, and the loop watch
reports nothing.

(The loop watch of the tests' servers fails any test in which an event loop step computes for too
long.)
"""

import base64
import contextlib
import json
import random
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.deployments.support import check_error
from tests.support.server import Server

MIB = 1 << 20
JSON = {"content-type": "application/json"}
INVALID = ("InvalidRequestError", "invalid_request")
TOO_LARGE = ("PayloadTooLargeError", "payload_too_large")
NOT_FOUND = ("ModelNotFoundError", "model_not_found", "model")
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], %b}'
LARGE = 60 * MIB


def filled(before: bytes, unit: bytes, last: bytes, size: int) -> bytes:
    return before + unit * (size // len(unit)) + last


@pytest.fixture(scope="module")
def client(gateway: Server) -> Iterator[httpx.Client]:
    with gateway.account("large bodies") as client:
        yield client


@contextlib.contextmanager
def others(gateway: Server) -> Iterator[list[int]]:
    """Lists models for another account continuously. Yields the received statuses."""
    statuses: list[int] = []
    is_over, has_begun = threading.Event(), threading.Event()

    def ask() -> None:
        with gateway.account("others") as client:
            while not is_over.is_set():
                statuses.append(client.get("/v1/models").status_code)
                has_begun.set()
                is_over.wait(0.01)

    thread = threading.Thread(target=ask)
    thread.start()
    has_begun.wait(60)
    try:
        yield statuses
    finally:
        is_over.set()
        thread.join()
    assert set(statuses) == {200}


REFUSED = {
    "prompts of a token": (
        "/v1/completions",
        (b'{"model": "m", "prompt": [', b"[1],", b"[1]]}"),
        (413, *TOO_LARGE),
        (400, *INVALID),
    ),
    "tokens": (
        "/v1/completions",
        (b'{"model": "m", "prompt": [', b"1,", b"1]}"),
        (413, *TOO_LARGE),
        (400, *INVALID),
    ),
    "an ignored field": (
        "/v1/chat/completions",
        (CHAT[:-4] + b'"x": [', b"[],", b"[]]}"),
        (400, *INVALID),
        (400, *INVALID),
    ),
    "an ignored object": (
        "/v1/responses",
        (b'{"model": "m", "input": "hi", "x": {', b'"a":1,', b'"b":1}}'),
        (400, *INVALID),
        (400, *INVALID),
    ),
    "texts": (
        "/v1/embeddings",
        (b'{"model": "m", "input": [', b'"a",', b'"a"]}'),
        (413, *TOO_LARGE),
        (400, *INVALID),
    ),
    "sounds": (
        "/v1/classifications/audio",
        (b'{"model": "m", "inputs": [', b"[0],", b"[0]]}"),
        (400, *INVALID),
        (400, *INVALID),
    ),
    "tools": (
        "/v1/agent",
        (b'{"name": "a", "model": "m", "tools": [', b"[],", b"[]]}"),
        (413, *TOO_LARGE),
        (400, *INVALID),
    ),
    "brackets": (
        "/v1/images/edits",
        (b'{"model": "m", "image": ', b"[", b"]"),
        (400, *INVALID),
        (400, *INVALID),
    ),
    "names": (
        "/v1/classifications/text",
        (b'{"model": "m", "inputs": "a", ', b'"a":1,', b'"b":1}'),
        (413, *TOO_LARGE),
        (400, *INVALID),
    ),
    "a long name": (
        "/v1/classifications/text",
        (b'{"model": "m", "inputs": "a", "', b"a", b'":1}'),
        (413, *TOO_LARGE),
        (400, *INVALID, "a" * 100 + "…"),
    ),
}
"""Rejected bodies, with the expected errors for 60 MiB and for slightly less than 2 MiB."""


class TestH2:
    @pytest.mark.parametrize("case", REFUSED)
    @pytest.mark.parametrize("size", [LARGE, 2 * MIB - 1000], ids=["60 MiB", "2 MiB"])
    def test_h2_refused(self, gateway: Server, client: httpx.Client, case: str, size: int):
        path, parts, large, small = REFUSED[case]
        with others(gateway):
            response = client.post(path, content=filled(*parts, size), headers=JSON)
        error = check_error(response, *(large if size == LARGE else small))
        assert len(error["message"]) < 500

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/v1/completions", {"prompt": [12345] * 131_072}),
            ("/v1/embeddings", {"input": [[12345] * 150] * 2000}),
            ("/v1/embeddings", {"input": ["a text of some words, and more"] * 2048}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi, "}] * 4096}),
            (
                "/v1/chat/completions",
                {
                    "messages": [
                        {"role": "user", "content": [{"type": "text", "text": "one, two"}]}
                    ]
                    * 4096
                },
            ),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "[{,:" * 250_000}]}),
            ("/v1/rerank", {"query": "a", "documents": ["some text, " * 100] * 1000}),
            ("/v1/classifications/audio", {"inputs": [0.12345678, -1, 0] * 400_000}),
            ("/v1/question-answering/table", {"query": "a", "table": {"a": ["x, y"] * 9999}}),
        ],
        ids=[
            "a context",
            "a batch of tokens",
            "a batch of texts",
            "messages",
            "messages of parts",
            "a text of brackets",
            "documents",
            "a recording",
            "a table",
        ],
    )
    def test_h2_what_a_team_sends_is_read(
        self, gateway: Server, client: httpx.Client, path: str, body: dict[str, object]
    ):
        """Large but legitimate bodies are read. The only error is the unknown model."""
        with others(gateway):
            response = client.post(path, json={"model": "m", **body})
        check_error(response, 404, *NOT_FOUND)

    @pytest.mark.parametrize("escape", [b"", b"\\/", b"\\u002b", b"\\n"])
    def test_h2_media_of_60_mib(self, gateway: Server, client: httpx.Client, escape: bytes):
        file = base64.b64encode(random.Random(0).randbytes(MIB)) + escape
        text = file * (LARGE // len(file))
        with others(gateway):
            for path, content in (
                ("/v1/classifications/image", b'{"model": "m", "inputs": "%b"}' % text),
                (
                    "/v1/chat/completions",
                    b'{"model": "m", "messages": [{"role": "user", "content": [{"type": '
                    b'"image_url", "image_url": {"url": "data:image/png;base64,%b"}}]}]}' % text,
                ),
            ):
                response = client.post(path, content=content, headers=JSON)
                check_error(response, 404, *NOT_FOUND)

    def test_h2_text_beside_media(self, gateway: Server, client: httpx.Client):
        def body(texts: int) -> bytes:
            parts = [{"type": "text", "text": "word " * 100_000}] * texts
            image = {"type": "image_url", "image_url": {"url": "A" * 4 * MIB}}
            return json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": [image, *parts]}]}
            ).encode()

        with others(gateway):
            fits = client.post("/v1/chat/completions", content=body(3), headers=JSON)
            check_error(fits, 404, *NOT_FOUND)
            large = client.post("/v1/chat/completions", content=body(5), headers=JSON)
            error = check_error(large, 413, *TOO_LARGE)
        assert str(2 * MIB) in error["message"]

    def test_h2_field_of_a_form(self, gateway: Server, client: httpx.Client):
        for value in ("[" + "[]," * 700_000 + "[]]", "[" + "[]," * 10_000_000 + "[]]"):
            with others(gateway):
                response = client.post(
                    "/v1/classifications/image",
                    files={"inputs": ("a.png", b"x"), "top_k": (None, value)},
                )
            check_error(response, 400, *INVALID, "top_k" if len(value) > 2 * MIB else None)
