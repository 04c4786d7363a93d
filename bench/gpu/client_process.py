"""Clients in closed loops on kept connections, in one thread, with only the standard library.

It reads one JSON object from stdin (see `bench.gpu.load`), runs the load and prints one object.
"""

import json
import selectors
import socket
import sys
import time
from typing import Any

from bench.http_messages import encode_request, split_head

LATE_S = 30
"""Seconds after the end of the load in which outstanding answers are still read."""


class Client:
    """One connection with at most one request."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, LATE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = bytearray()
        self.body = 0
        """Number of the body that was sent."""
        self.began = 0.0

    def send(self, number: int, request: bytes) -> None:
        self.data.clear()
        self.body, self.began = number, time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> tuple[str, bytes] | None:
        """Returns status and body of a complete answer."""
        parts = split_head(self.data)
        if parts is None:
            return None
        head, body = parts
        is_complete = len(body) >= int(head.headers.get("content-length", 0))
        return (head.code, body) if is_complete else None


class Loops:
    """All clients of this process."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._requests = [_request(task, body) for body in task["bodies"]]
        self._next = int(task["first"])
        self._selector = selectors.DefaultSelector()
        self.seconds: list[float] = []
        self.answers: dict[int, str] = {}
        self.errors: dict[str, int] = {}
        self.failure = ""

    def run(self) -> None:
        self._end = time.perf_counter() + float(self._task["seconds"])
        for _ in range(self._task["clients"]):
            self._connect()
        while self._selector.get_map() and time.perf_counter() < self._end + LATE_S:
            for ready, _ in self._selector.select(1):
                self._receive(ready.data)

    def _receive(self, client: Client) -> None:
        try:
            data = client.socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._count("closed", "the server closed the connection")
            self._close(client)
            if time.perf_counter() < self._end:
                self._connect()
            return
        client.data += data
        answer = client.answer()
        if answer is None:
            return
        now = time.perf_counter()
        self._note(client, *answer, now)
        if now < self._end:
            self._send(client)
        else:
            self._close(client)

    def _note(self, client: Client, status: str, body: bytes, now: float) -> None:
        if status != "200":
            self._count(status, body.decode(errors="replace"))
            return
        self.answers[client.body] = body.decode()
        if now <= self._end:
            self.seconds.append(now - client.began)

    def _count(self, error: str, failure: str) -> None:
        self.errors[error] = self.errors.get(error, 0) + 1
        self.failure = self.failure or f"{error}: {failure[:600]}"

    def _connect(self) -> None:
        client = Client((self._task["host"], self._task["port"]))
        self._selector.register(client.socket, selectors.EVENT_READ, client)
        self._send(client)

    def _send(self, client: Client) -> None:
        number = self._next % len(self._requests)
        self._next += 1
        client.send(number, self._requests[number])

    def _close(self, client: Client) -> None:
        self._selector.unregister(client.socket)
        client.socket.close()


def _request(task: dict[str, Any], body: str) -> bytes:
    headers = {
        "host": f"{task['host']}:{task['port']}",
        "authorization": f"Bearer {task['key']}",
        "content-type": "application/json",
    }
    return encode_request("POST", task["path"], headers, body.encode())


def main() -> None:
    loops = Loops(json.load(sys.stdin))
    loops.run()
    result = {
        "seconds": loops.seconds,
        "answers": loops.answers,
        "errors": loops.errors,
        "failure": loops.failure,
        "cpu_seconds": time.process_time(),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
