"""A server drains and stops."""

import signal
import time
from pathlib import Path

from tests.server.support import check
from tests.support.raw import answers, connect, read_all, read_one
from tests.support.server import WITHOUT_MODELS, running

GRACE_S = 1


def test_what_is_not_done_in_time_is_told(tmp_path: Path) -> None:
    settings = {**WITHOUT_MODELS, "STOKER_STOP_GRACE_S": str(GRACE_S)}
    with running(tmp_path / "data", **settings) as server:
        head = (
            "POST /v1/api-keys HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {server.operator_key}\r\ncontent-length: 100\r\n\r\n"
        )
        with connect(server) as connection:
            connection.sendall(head.encode() + b"{")
            # The request is in flight, and the server answers other requests in the meantime.
            with server.client() as client:
                assert client.get("/health").status_code == 200
            assert server.process
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            responses = answers(read_all(connection))
        assert time.monotonic() - began >= GRACE_S
        answer = check(responses, 503, "CapacityError", "server_stopping")
        assert answer.headers["retry-after"] == "5"
        assert server.process.wait(60) == 0
        assert "Exception in ASGI application" not in server.log.read_text()


DRAIN_S = 3
GET = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def test_a_draining_server_still_answers(tmp_path: Path) -> None:
    settings = {**WITHOUT_MODELS, "STOKER_DRAIN_S": str(DRAIN_S)}
    with running(tmp_path / "data", **settings) as server:
        assert server.process
        with connect(server) as kept, server.client() as client:
            assert client.get("/ready").status_code == 200
            kept.sendall(GET)
            assert "connection" not in read_one(kept).headers
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            while (ready := client.get("/ready")).status_code == 200:
                assert time.monotonic() - began < 1
            ready = client.get("/ready")
            assert (ready.status_code, ready.headers["connection"]) == (503, "close")
            assert ready.json()["problem"] == "The server stops soon and still answers requests."
            # A kept connection ends with its next answer. New ones are still accepted.
            kept.sendall(GET)
            [answer] = answers(read_all(kept))
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            while time.monotonic() - began < DRAIN_S - 1:
                assert client.get("/health").status_code == 200
        assert server.process.wait(60) == 0
        assert time.monotonic() - began >= DRAIN_S


def test_a_second_signal_ends_the_drain(tmp_path: Path) -> None:
    settings = {**WITHOUT_MODELS, "STOKER_DRAIN_S": "60"}
    with running(tmp_path / "data", **settings) as server:
        assert server.process
        server.process.send_signal(signal.SIGTERM)
        with server.client() as client:
            while client.get("/ready").status_code == 200:
                pass
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
