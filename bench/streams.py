"""Streamed answers to clients in closed loops.

One thread only stores the received data and times. It parses them at the end, so that parsing does
not use the cores that the servers share with it.
"""

import bisect
import json
import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.common import percentile

TIMEOUT_S = 600
LOAD_S = 10
"""Seconds after which a load starts no further request. A slow server receives fewer requests."""
_DONE = b"data: [DONE]"


@dataclass(frozen=True)
class Answer:
    """Times of one streamed answer."""

    asked: float
    came: Sequence[float]
    """Arrival time of each piece of text."""
    tokens: int

    @property
    def first_s(self) -> float:
        return self.came[0] - self.asked

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in zip(self.came, self.came[1:], strict=False)]


@dataclass(frozen=True)
class Load:
    seconds: float
    answers: Sequence[Answer]
    client_cpu_s: float = 0.0
    """Processor time of the client in seconds, while the answers arrived."""

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def rate(self) -> float:
        """Output tokens per second."""
        return self.tokens / self.seconds

    def first_s(self, share: float) -> float:
        return percentile([answer.first_s for answer in self.answers], share)

    @property
    def gap_s(self) -> float:
        """Median time in seconds between two pieces of text."""
        return statistics.median(gap for answer in self.answers for gap in answer.gaps_s)


@dataclass(eq=False)
class _Received:
    asked: float
    parts: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])


@dataclass(eq=False)
class _Client:
    bodies: list[bytes]
    received: _Received


def load(
    address: str,
    key: str,
    bodies: Sequence[bytes],
    clients: int,
    tokens: int,
    seconds: float = LOAD_S,
) -> Load:
    """Runs clients that start together and each send one request after the other.

    Args:
        address: URL of the path to post to.
        bodies: distributed among the clients.
        tokens: number of tokens of every answer.
        seconds: time after which no further request starts.
    """
    used = time.process_time()
    all_clients = [
        _Client(list(bodies[number::clients]), _Received(0)) for number in range(clients)
    ]
    finished: list[_Received] = []
    with selectors.DefaultSelector() as selector:
        started = time.perf_counter()
        for client in all_clients:
            _ask(selector, client, address, key)
        while selector.get_map():
            for ready, _ in selector.select(1):
                client: _Client = ready.data
                connection: Any = ready.fileobj
                data: bytes = connection.recv(262_144)
                now = time.perf_counter()
                if data:
                    client.received.parts.append((now, data))
                    continue
                selector.unregister(connection)
                connection.close()
                finished.append(client.received)
                if client.bodies and now - started < seconds:
                    _ask(selector, client, address, key)
            if time.perf_counter() - started > TIMEOUT_S:
                raise RuntimeError("the answers did not come in time")
    used = time.process_time() - used
    answers = [_answer(received, tokens) for received in finished]
    took = max(answer.came[-1] for answer in answers) - started
    return Load(took, answers, used)


def _ask(selector: selectors.BaseSelector, client: _Client, address: str, key: str) -> None:
    body = client.bodies.pop(0)
    parts = urlsplit(address)
    lines = [
        f"POST {parts.path} HTTP/1.1",
        f"host: {parts.netloc}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *([f"authorization: Bearer {key}"] if key else []),
    ]
    client.received = _Received(time.perf_counter())
    connection = socket.create_connection((parts.hostname or "", parts.port or 80), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, client)


def _answer(received: _Received, tokens: int) -> Answer:
    came: list[float] = []
    finish = ""
    for at, event in _events(received.parts):
        if "choices" not in event:
            raise RuntimeError(f"an answer failed: {json.dumps(event)[:300]}")
        for choice in event["choices"]:
            if choice["delta"].get("content"):
                came.append(at)
            finish = choice.get("finish_reason") or finish
    if finish != "length" or not came:
        raise RuntimeError(f"an answer ended by {finish!r} with {len(came)} pieces of text")
    return Answer(received.asked, came, tokens)


def _events(received: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yields the events of an answer, each with the arrival time of its end."""
    ends: list[int] = []
    for _, data in received:
        ends.append((ends[-1] if ends else 0) + len(data))
    raw = b"".join(data for _, data in received)
    head, _, _ = raw.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1] != b"200" or b"chunked" not in head.lower():
        raise RuntimeError(f"an answer failed: {raw[:600].decode(errors='replace')}")
    text, places = _unchunked(raw, len(head) + 4)
    start = 0
    while (end := text.find(b"\n\n", start)) >= 0:
        event = text[start:end].strip()
        start = end + 2
        if event.startswith(b"data:") and not event.startswith(_DONE):
            # Start of the chunk that contains the event's last byte, in the content and in the raw
            # bytes.
            begin, place = places[bisect.bisect_right(places, (end + 1, len(raw))) - 1]
            came = bisect.bisect_left(ends, place + end + 2 - begin)
            yield received[came][0], json.loads(event.removeprefix(b"data:"))


def _unchunked(raw: bytes, at: int) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the content of a chunked body, and the position of each chunk in it and in the raw
    bytes.
    """
    content = bytearray()
    places: list[tuple[int, int]] = []
    while True:
        line = raw.index(b"\r\n", at)
        size = int(raw[at:line].split(b";")[0], 16)
        if not size:
            return bytes(content), places
        places.append((len(content), line + 2))
        content += raw[line + 2 : line + 2 + size]
        at = line + 2 + size + 2
