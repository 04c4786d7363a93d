"""A request in flight gets an error when the server stops."""

import signal
import time
from pathlib import Path

from tests.server.support import check
from tests.support.raw import answers, connect, read_all
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
