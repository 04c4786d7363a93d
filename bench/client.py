"""A bare HTTP/1.1 client on one kept connection: what it costs itself hides nothing."""

import socket
import time
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

TIMEOUT_S = 60
KEPT_S = 2.0
"""Servers close idle connections, uvicorn after 5 s unless told otherwise."""


class HttpError(Exception):
    """An answer other than 200, or none."""


class Connection:
    def __init__(self, base_url: str, path: str, key: str = "") -> None:
        address = urlsplit(base_url)
        self._address = (address.hostname, address.port)
        headers = [
            f"POST {path} HTTP/1.1",
            f"host: {address.netloc}",
            "content-type: application/json",
            *([f"authorization: Bearer {key}"] if key else []),
        ]
        self._head = "\r\n".join(headers).encode()
        self._socket = self._connected()

    def post(self, body: bytes) -> bytes:
        """The body of the answer. Raises `HttpError`; the next call starts a new connection."""
        try:
            self._socket.sendall(
                b"%b\r\ncontent-length: %d\r\n\r\n%b" % (self._head, len(body), body)
            )
            answer = self._answer()
        except (OSError, HttpError) as error:
            self._socket.close()
            self._socket = self._connected()
            raise HttpError(str(error)) from error
        self._used = time.monotonic()
        return answer

    def renew(self) -> None:
        """Connect anew where the server may have closed the connection since its last use."""
        if time.monotonic() - self._used > KEPT_S:
            self._socket.close()
            self._socket = self._connected()

    def close(self) -> None:
        self._socket.close()

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

    def _answer(self) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._received()
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(headers["content-length"])
        while len(body) < length:
            body += self._received()
        if status.split(" ")[1] != "200":
            raise HttpError(f"{status}: {body[:300].decode(errors='replace')}")
        return body

    def _received(self) -> bytes:
        data = self._socket.recv(262_144)
        if not data:
            raise HttpError("the connection was closed")
        return data
