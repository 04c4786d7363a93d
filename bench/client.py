"""A minimal HTTP/1.1 client on one persistent connection, so that its own cost hides nothing."""

import json
import socket
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from bench.http_messages import encode_request, split_head

TIMEOUT_S = 120
KEPT_S = 2.0
"""Maximum idle time in seconds before a connection is renewed. Servers close idle connections,
uvicorn after 5 s by default.
"""


class HttpError(Exception):
    """Response with a status other than 2xx, or no response."""


class Connection:
    """A persistent connection. `path` is the default path of `post`."""

    def __init__(self, base_url: str, path: str = "/", key: str = "") -> None:
        self._given = (base_url, path, key)
        self._beside: Connection | None = None
        address = urlsplit(base_url)
        self._address = (address.hostname, address.port)
        self._path = path
        self._headers = {"host": address.netloc, "content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._socket = self._connected()

    def post(self, body: bytes, path: str = "") -> bytes:
        """Returns the response body. Raises `HttpError`, after which the next call uses a new
        connection.
        """
        try:
            self._send("POST", path or self._path, body)
            head, rest = self._head()
            answer = self._whole(head, rest)
        except (OSError, HttpError) as error:
            self._anew()
            raise HttpError(str(error)) from error
        self._used = time.monotonic()
        return answer

    def post_json(self, path: str, body: Any) -> Any:
        return json.loads(self.post(json.dumps(body).encode(), path))

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Yields the data of a path's events as they arrive. Raises `HttpError`.

        A caller that stops before the last event must call `close`.
        """
        self._send("GET", path, accept="text/event-stream")
        head, rest = self._head()
        if head.get("transfer-encoding") != "chunked":
            raise HttpError("the events are not sent in chunks")
        lines = b""
        for chunk in self._chunks(rest):
            *whole, lines = (lines + chunk).split(b"\n")
            for line in whole:
                if line.startswith(b"data:"):
                    yield json.loads(line.removeprefix(b"data:"))
        self._used = time.monotonic()

    def beside(self) -> "Connection":
        """Returns a second persistent connection to the same server, for use while this one
        receives a stream.
        """
        if self._beside is None:
            self._beside = Connection(*self._given)
        self._beside.renew()
        return self._beside

    def renew(self) -> None:
        """Reconnects if the server may have closed the connection since its last use."""
        if time.monotonic() - self._used > KEPT_S:
            self._anew()

    def close(self) -> None:
        self._socket.close()
        if self._beside:
            self._beside.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _connected(self) -> socket.socket:
        connection = socket.create_connection(self._address, TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._used = time.monotonic()
        return connection

    def _anew(self) -> None:
        self._socket.close()
        self._socket = self._connected()

    def _send(self, method: str, path: str, body: bytes = b"", accept: str = "*/*") -> None:
        headers = {**self._headers, "accept": accept}
        self._socket.sendall(encode_request(method, path, headers, body))

    def _head(self) -> tuple[Mapping[str, str], bytes]:
        """Returns the headers of a successful response, and the data received after them. Raises
        `HttpError` for other responses.
        """
        data = b""
        while (parts := split_head(data)) is None:
            data += self._received()
        head, rest = parts
        if not head.code.startswith("2"):
            answer = self._whole(head.headers, rest).decode(errors="replace")
            raise HttpError(f"{head.status}: {answer[:300]}")
        return head.headers, rest

    def _whole(self, headers: Mapping[str, str], body: bytes) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(self._chunks(body))
        length = int(headers["content-length"])
        while len(body) < length:
            body += self._received()
        return body

    def _chunks(self, data: bytes) -> Iterator[bytes]:
        """Yields the content of a chunked body. `data` is the part already received."""
        while True:
            while b"\r\n" not in data:
                data += self._received()
            line, _, data = data.partition(b"\r\n")
            size = int(line.split(b";")[0], 16)
            while len(data) < size + 2:
                data += self._received()
            if not size:
                return
            yield data[:size]
            data = data[size + 2 :]

    def _received(self) -> bytes:
        data = self._socket.recv(262_144)
        if not data:
            raise HttpError("the connection was closed")
        return data
