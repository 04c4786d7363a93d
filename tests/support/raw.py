"""HTTP as raw bytes on a socket, for requests that no client library sends."""

import contextlib
import json
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.support.server import Server

WAIT_S = 60


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


def connect(server: Server, source: str = "", receive_bytes: int = 0) -> socket.socket:
    """Opens a connection to a server.

    Args:
        source: local address to connect from.
        receive_bytes: size of the receive buffer. 0 means the system's default.
    """
    url = urlsplit(server.base_url)
    made = socket.socket()
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    if source:
        made.bind((source, 0))
    made.settimeout(WAIT_S)
    made.connect((url.hostname, url.port))
    return made


def read_all(connection: socket.socket) -> bytes:
    """Reads until the server closes the connection."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            received += piece
    return bytes(received)


def read_one(connection: socket.socket) -> Answer:
    """Reads one answer and leaves the connection open."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1)
        assert piece, "the server ended the connection"
        received += piece
    length = int(answers(received)[0].headers["content-length"])
    while len(received.partition(b"\r\n\r\n")[2]) < length:
        received += connection.recv(length)
    return answers(received)[0]


def answers(content: bytes) -> list[Answer]:
    """Splits the server's output into answers. Each answer has a content length."""
    parsed: list[Answer] = []
    while content:
        head, _, rest = content.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        parsed.append(Answer(int(first.split()[1]), headers, rest[:length]))
        content = rest[length:]
    return parsed


def ask(server: Server, *pieces: bytes, pause_s: float = 0) -> list[Answer]:
    """Sends the pieces and reads until the server closes the connection."""
    with connect(server) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        return answers(read_all(connection))


def pour(server: Server, beginning: bytes, piece: bytes, most: int) -> tuple[int, list[Answer]]:
    """Sends the piece repeatedly until `most` bytes are sent or the server closes the connection.

    Returns the number of sent bytes and the answers. An answer does not stop the sending: it may
    come before the request is complete, and the server still reads the rest.
    """
    with connect(server) as connection:
        connection.sendall(beginning)
        connection.setblocking(False)
        sent, remaining, output = 0, piece, b""
        deadline = time.monotonic() + WAIT_S
        while sent < most and time.monotonic() < deadline:
            try:
                received = connection.recv(1 << 16)
                if not received:
                    break
                output += received
            except BlockingIOError:
                pass
            except ConnectionResetError:
                break
            try:
                count = connection.send(remaining)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
            sent += count
            remaining = remaining[count:] or piece
        connection.setblocking(True)
        connection.settimeout(WAIT_S)
        return sent, answers(output + read_all(connection))
