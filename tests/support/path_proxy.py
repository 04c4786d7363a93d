"""A reverse proxy that serves a server below a path, as nginx does with `location /stoker/`."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer"}
"""Headers that apply to one connection only (RFC 9110, 7.6.1)."""
TIMEOUT_S = 120


class PathProxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prefix = prefix
        self.port: int | None = None
        """Port of the server behind the proxy. None until that server runs."""
        self.strangers: list[str] = []
        """Requested paths outside the prefix."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.prefix}"


class _Handler(BaseHTTPRequestHandler):
    server: PathProxy

    def _forward(self) -> None:
        proxy = self.server
        if not self.path.startswith(f"{proxy.prefix}/") or proxy.port is None:
            proxy.strangers.append(self.path)
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        upstream = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)
        with contextlib.closing(upstream), contextlib.suppress(ConnectionError, TimeoutError):
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP_BY_HOP
            }
            upstream.request(self.command, self.path[len(proxy.prefix) :], body, headers)
            answer = upstream.getresponse()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            # Forwards each chunk at once, so that event streams are not delayed.
            while chunk := answer.read1(65_536):
                self.wfile.write(chunk)
                self.wfile.flush()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing, because tests use the server's log."""


@contextlib.contextmanager
def proxying(prefix: str) -> Iterator[PathProxy]:
    proxy = PathProxy(prefix)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
