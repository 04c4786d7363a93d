"""HTTP as bytes on a socket: for what no client library sends."""

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
    """source: an address of this machine to come from; receive_bytes: how little fits unread."""
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
    """Until the server ends the connection, as it has to."""
    found = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            found += piece
    return bytes(found)


def read_one(connection: socket.socket) -> Answer:
    """One answer, after which the connection may go on."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = connection.recv(1)
        assert piece, "the server ended the connection"
        found += piece
    length = int(answers(found)[0].headers["content-length"])
    while len(found.partition(b"\r\n\r\n")[2]) < length:
        found += connection.recv(length)
    return answers(found)[0]


def answers(content: bytes) -> list[Answer]:
    """What the server wrote, apart: answers have a length here."""
    found: list[Answer] = []
    while content:
        head, _, rest = content.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        found.append(Answer(int(first.split()[1]), headers, rest[:length]))
        content = rest[length:]
    return found


def ask(server: Server, *pieces: bytes, pause_s: float = 0) -> list[Answer]:
    """Send the pieces, and read until the server ends the connection."""
    with connect(server) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        return answers(read_all(connection))


def pour(server: Server, beginning: bytes, piece: bytes, most: int) -> tuple[int, list[Answer]]:
    """Send the piece again and again, until `most` bytes are sent or the server has ended.

    Returns how much it took, and what it said. An answer alone is no end: it may come before the
    request is whole, and the rest is still read then.
    """
    with connect(server) as connection:
        connection.sendall(beginning)
        connection.setblocking(False)
        sent, left, said = 0, piece, b""
        deadline = time.monotonic() + WAIT_S
        while sent < most and time.monotonic() < deadline:
            try:
                received = connection.recv(1 << 16)
                if not received:
                    break
                said += received
            except BlockingIOError:
                pass
            except ConnectionResetError:
                break
            try:
                count = connection.send(left)
            except BlockingIOError:
                time.sleep(0.001)
                continue
            except (BrokenPipeError, ConnectionResetError):
                break
            sent += count
            left = left[count:] or piece
        connection.setblocking(True)
        connection.settimeout(WAIT_S)
        return sent, answers(said + read_all(connection))
