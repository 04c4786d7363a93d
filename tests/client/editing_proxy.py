"""An HTTP proxy in front of a real server that edits JSON, injects errors and cuts streams."""

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120


@dataclass
class Fault:
    """Answer in place of the server's. A status of 0 closes the connection.

    `is_late` forwards the request first, so that only the answer is lost.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    is_late: bool = False


@dataclass
class SeenRequest:
    method: str
    path: str
    headers: dict[str, str]


@dataclass
class EditingProxy:
    address: str = ""
    edit: Callable[[Any], Any] = lambda value: value
    """Changes each JSON answer."""
    faults: list[Fault] = field(default_factory=list[Fault])
    """Faults of the next requests, in turn."""
    events: int | None = None
    """Number of events after which each stream is cut. None: never."""
    seen: list[SeenRequest] = field(default_factory=list[SeenRequest])


@contextlib.contextmanager
def editing(upstream: str) -> Iterator[EditingProxy]:
    proxy = EditingProxy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            proxy.seen.append(SeenRequest(self.command, self.path, headers))
            body = self.rfile.read(int(headers.get("content-length", 0)))
            fault = proxy.faults.pop(0) if proxy.faults else None
            if fault and not fault.is_late:
                self._fail(fault)
                return
            connection = http.client.HTTPConnection(urlsplit(upstream).netloc, timeout=TIMEOUT_S)
            with contextlib.closing(connection), contextlib.suppress(ConnectionError):
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                if fault:
                    answer.read()
                    self._fail(fault)
                elif "event-stream" in answer.getheader("content-type", ""):
                    self._stream(answer)
                else:
                    self._whole(answer)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815

        def _fail(self, fault: Fault) -> None:
            self.close_connection = True
            if fault.status:
                body = json.dumps({"error": {"code": "injected", "message": "injected"}}).encode()
                self._send(fault.status, fault.headers | {"content-type": "application/json"}, body)

        def _whole(self, answer: http.client.HTTPResponse) -> None:
            content = answer.read()
            if "json" in answer.getheader("content-type", "") and content:
                content = json.dumps(proxy.edit(json.loads(content))).encode()
            kept = ("content-type", "retry-after", "x-request-id", "x-should-retry")
            headers = {name: value for name, value in answer.getheaders() if name.lower() in kept}
            self._send(answer.status, headers, content)

        def _stream(self, answer: http.client.HTTPResponse) -> None:
            self.close_connection = True
            self.send_response(answer.status)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            left = proxy.events
            while (line := answer.readline()) and left != 0:
                self.wfile.write(line)
                self.wfile.flush()
                if left is not None and line.startswith(b"data:"):
                    left -= 1

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
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
