"""A reverse proxy that has a server below a path, as nginx has with `location /stoker/`."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "te", "trailer"}
"""Headers of one connection, RFC 9110, 7.6.1."""
TIMEOUT_S = 120


class PathProxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prefix = prefix
        self.port: int | None = None
        """Of the server behind it; None: it does not run yet."""
        self.strangers: list[str] = []
        """Paths that were asked for and do not lie below the prefix."""

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
            # As it comes: of a stream of events nothing is kept back.
            while chunk := answer.read1(65_536):
                self.wfile.write(chunk)
                self.wfile.flush()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Tests have the server's own log."""


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
