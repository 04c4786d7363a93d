"""Clients disconnect while their body is read. The log records it, but not as an error."""

import socket
import time
from urllib.parse import urlsplit

import pytest

from tests.artifacts.support import eventually
from tests.support.server import Server
from tests.web.test_requests import logged


def go_away(server: Server, key: str, request_id: str, path: str, kind: str, begun: bytes) -> None:
    """Sends the start of a body that was announced as longer, and closes the connection."""
    place = urlsplit(server.base_url)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"x-request-id: {request_id}\r\ncontent-type: {kind}\r\ncontent-length: 5000\r\n\r\n"
    )
    with socket.create_connection((place.hostname, place.port), timeout=10) as connection:
        connection.sendall(head.encode() + begun)
        # Waits until the request is handled, not only received.
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("path", "kind", "begun"),
    [
        ("/v1/videos", "application/json", b'{"model": "film"'),
        (
            "/v1/videos",
            "multipart/form-data; boundary=x",
            b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nfi',
        ),
        ("/v1/chat/completions", "application/json", b'{"model": "chat"'),
        ("/v1/classifications/token", "application/json", b'{"inputs": "a'),
        ("/v1/classifications/image", "image/png", b"\x89PNG"),
        ("/v1/api-keys", "application/json", b'{"scope":'),
    ],
)
@pytest.mark.fault("d3")
def test_gone_while_its_body_is_read(
    gateway: Server, request: pytest.FixtureRequest, path: str, kind: str, begun: bytes
) -> None:
    name = f"gone-{abs(hash(request.node.name))}"
    with gateway.account("gone") as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
        go_away(gateway, key, name, path, kind, begun)
        assert eventually(lambda: any(line["event"] == "request" for line in logged(gateway, name)))
        lines = logged(gateway, name)
        assert {line["level"] for line in lines} <= {"debug", "info"}, lines
        (line,) = [entry for entry in lines if entry["event"] == "request"]
        # For a body that FastAPI reads, the status reports that the body could not be read.
        assert line["status"] in {400, 499}, line
        assert client.get("/v1/models").status_code == 200
