"""A real S3 server (moto) for the tests, and a proxy in front of it that injects faults."""

import contextlib
import http.client
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

PYTHON = Path(__file__).parents[2] / ".venv-bucket" / "bin" / "python"
"""Python of a separate environment, because moto's libraries need other versions than ours."""
MISSING = f"{PYTHON} was not found: make install-bucket"
AWS = PYTHON.with_name("aws")
BUCKET = "models"
_TIMEOUT_S = 60


@contextlib.contextmanager
def moto(log: Path) -> Iterator[str]:
    """Yields the address of an S3 server with one empty bucket. Skips the test if moto is not
    installed.
    """
    if not PYTHON.exists():
        pytest.skip(MISSING)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [PYTHON, "-m", "moto.server", "-p", str(port)],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": ""},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _make_bucket(address, process, log)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _make_bucket(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            httpx.put(f"{address}/{BUCKET}").raise_for_status()
            return
        time.sleep(0.05)
    raise RuntimeError(f"moto did not start:\n{log.read_text()[-4000:]}")


@dataclass
class Proxy:
    """Proxy between a server and its bucket.

    A fault decides the outcome of a request. A status is answered in place of the bucket. `CUT`
    closes the connection without an answer. None forwards the request.
    """

    upstream: str
    fault: Callable[[str, str], int | None] = lambda _method, _path: None
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Methods and paths of all requests."""
    address: str = ""

    def fail(
        self, status: int, *, times: int = 1 << 30, method: str = "", within: str = ""
    ) -> None:
        """Answers the next requests with a status. `method` and `within` restrict this to a method
        and a part of the path, because the server's own maintenance also sends requests to the
        bucket.
        """
        left = times
        lock = threading.Lock()

        def fault(asked: str, path: str) -> int | None:
            nonlocal left
            with lock:
                if left and method in ("", asked) and within in path:
                    left -= 1
                    return status
                return None

        self.fault = fault

    def heal(self) -> None:
        self.fault = lambda _method, _path: None


CUT = 0


@contextlib.contextmanager
def faulty(upstream: str) -> Iterator[Proxy]:
    proxy = Proxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            proxy.seen.append((self.command, self.path))
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status = proxy.fault(self.command, self.path)
            if status is None:
                try:
                    self._pass_on(body)
                except ConnectionError:
                    # The client or the bucket has disconnected.
                    self.close_connection = True
            elif status == CUT:
                self.close_connection = True
            else:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815

        def _pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(urlsplit(upstream).netloc, timeout=_TIMEOUT_S)
            with contextlib.closing(connection):
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    self.send_header(name, value)
            length = answer.getheader("content-length") if self.command == "HEAD" else None
            self.send_header("content-length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    proxy.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
