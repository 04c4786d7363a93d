"""Sends requests when they are due, regardless of whether earlier ones were answered.

A closed loop slows down with the server and therefore cannot overload it (the "coordinated
omission" of Gil Tene's talks). Here a request's time counts from its due time.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.common import percentile

TIMEOUT_S = 120
OK = 200
REFUSED = (429, 503)


@dataclass
class Found:
    """Results of an open loop."""

    seconds: float = 0.0
    client_cpu_s: float = 0.0
    answered_s: list[float] = field(default_factory=list[float])
    """Seconds of each request with status 200, from its due time."""
    answered_at_s: list[float] = field(default_factory=list[float])
    """Seconds from the start until each of these responses."""
    refused: Counter[int] = field(default_factory=Counter[int])
    """Number of rejected requests by status, 429 or 503."""
    untold: int = 0
    """Number of rejections without `Retry-After`."""
    failed: Counter[str] = field(default_factory=Counter[str])
    """Number of other failures by kind."""

    @property
    def rate(self) -> float:
        """Successful responses per second."""
        return len(self.answered_s) / self.seconds

    def ms(self, share: float) -> float:
        return percentile(self.answered_s, share) * 1e3


class OpenLoop:
    """A client of one address. Opens as many connections as needed and keeps them."""

    def __init__(self, base_url: str, path: str, key: str, bodies: Sequence[bytes]) -> None:
        parts = urlsplit(base_url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}\r\nauthorization: Bearer {key}\r\n"
            "content-type: application/json\r\ncontent-length: "
        ).encode()
        self._bodies = bodies
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._random = random.Random(1)

    def run(self, rate: float, seconds: float) -> Found:
        """Sends `rate` requests per second at random times (Poisson process) for a number of
        seconds.
        """
        return asyncio.run(self._run(rate, seconds))

    async def _run(self, rate: float, seconds: float) -> Found:
        result, tasks = Found(), set[asyncio.Task[None]]()
        began, used, at, number = time.perf_counter(), time.process_time(), 0.0, 0
        while (at := at + self._random.expovariate(rate)) < seconds:
            if (early := began + at - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            body = self._bodies[number % len(self._bodies)]
            number += 1
            task = asyncio.create_task(self._ask(body, began, began + at, result))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        result.seconds = time.perf_counter() - began
        await asyncio.gather(*tasks)
        result.client_cpu_s = time.process_time() - used
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
        return result

    async def _ask(self, body: bytes, began: float, due: float, found: Found) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, headers = await self._exchange(body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            found.failed[type(error).__name__] += 1
            return
        now = time.perf_counter()
        if status == OK:
            found.answered_s.append(now - due)
            found.answered_at_s.append(now - began)
        elif status in REFUSED:
            found.refused[status] += 1
            found.untold += b"retry-after:" not in headers
        else:
            found.failed[str(status)] += 1

    async def _exchange(self, body: bytes) -> tuple[int, bytes]:
        """Returns the status and the headers in lower case. The body is read and discarded."""
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(self._head + str(len(body)).encode() + b"\r\n\r\n" + body)
            headers = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = headers.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        except BaseException:
            writer.close()
            raise
        if b"connection: close" in headers:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(headers.split(b" ", 2)[1]), headers
