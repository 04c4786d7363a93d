"""Steady load through a balancer, as clients of several servers behind a proxy make it."""

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx

from tests.agents.support import FRANCE, PARIS
from tests.support.server import Server

CHAT = "/v1/chat/completions"
_LOOK_S = 0.1
_PAUSE_S = 0.25
_CALLS_PER_CONNECTION = 10
_PATIENCE_S = 60.0


class Balancer:
    """Sends requests to the servers whose `/ready` succeeds, one after another.

    A request whose connection is refused goes to the next server, as with any proxy. All other
    failures count.
    """

    def __init__(self, *servers: Server) -> None:
        self._ready: dict[str, Server] = {}
        self._servers = [*servers]
        self._turns = itertools.count()
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def add(self, server: Server) -> None:
        """Adds a server and waits until it is ready."""
        self._servers.append(server)
        deadline = time.monotonic() + _PATIENCE_S
        while server.base_url not in self._ready:
            assert time.monotonic() < deadline, server.last_lines()
            time.sleep(_LOOK_S)

    def remove(self, server: Server) -> None:
        self._servers.remove(server)

    def next(self) -> str:
        """Returns the address of the next ready server."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (addresses := [*self._ready]):
            assert time.monotonic() < deadline, "no server is ready"
            time.sleep(_LOOK_S)
        return addresses[next(self._turns) % len(addresses)]

    def close(self) -> None:
        self._ended.set()
        self._watching.join()

    def _watch(self) -> None:
        with httpx.Client(timeout=5) as client:
            while not self._ended.wait(_LOOK_S):
                ready: dict[str, Server] = {}
                for server in [*self._servers]:
                    with contextlib.suppress(httpx.TransportError):
                        # A new connection for each check, as probes of Kubernetes make it.
                        headers = {"connection": "close"}
                        answer = client.get(f"{server.base_url}/ready", headers=headers)
                        if answer.status_code == 200:
                            ready[server.base_url] = server
                self._ready = ready


class Load:
    """Clients that call a chat model all the time and check each answer."""

    def __init__(self, balancer: Balancer, key: str) -> None:
        self.failures: list[str] = []
        self.answers: Counter[str] = Counter()
        """Number of right answers by the kind of call."""
        self.addresses: Counter[str] = Counter()
        self._balancer = balancer
        self._headers = {"authorization": f"Bearer {key}"}
        self._ended = threading.Event()
        kinds = ("answer", "stream", "stream", "answer")
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in kinds]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def wait_answers(self, count: int) -> None:
        """Waits for some more right answers."""
        wanted = sum(self.answers.values()) + count
        deadline = time.monotonic() + _PATIENCE_S
        while sum(self.answers.values()) < wanted:
            assert time.monotonic() < deadline, "the calls got no answers"
            time.sleep(_LOOK_S)

    def _run(self, kind: str) -> None:
        while not self._ended.is_set():
            # Connections are kept alive for some calls.
            with httpx.Client(timeout=120, headers=self._headers) as client:
                for _ in range(_CALLS_PER_CONNECTION):
                    self._call(client, kind)
                    time.sleep(_PAUSE_S)

    def _call(self, client: httpx.Client, kind: str) -> None:
        while True:
            address = self._balancer.next()
            try:
                text = (
                    _streamed(client, address) if kind == "stream" else _answered(client, address)
                )
            except httpx.ConnectError:
                continue
            except Exception as error:
                self.failures.append(f"{kind} {address}: {error!r}")
                return
            if text == PARIS:
                self.answers[kind] += 1
                self.addresses[address] += 1
            else:
                self.failures.append(f"{kind} {address}: {text!r}")
            return


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": FRANCE}], **fields}


def _answered(client: httpx.Client, address: str) -> str:
    answer = client.post(f"{address}{CHAT}", json=_body())
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def _streamed(client: httpx.Client, address: str) -> str:
    texts: list[str] = []
    with client.stream("POST", f"{address}{CHAT}", json=_body(stream=True)) as answer:
        if answer.status_code != 200:
            raise AssertionError(answer.read().decode())
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]", lines[-1:]
    for line in lines[:-1]:
        if line.startswith("{"):
            chunk = httpx.Response(200, content=line).json()
            texts += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
    return "".join(texts)


@contextlib.contextmanager
def load(balancer: Balancer, key: str) -> Iterator[Load]:
    """Runs the load. Afterwards, checks that no call failed."""
    running = Load(balancer, key)
    try:
        yield running
    finally:
        running.stop()
    assert running.failures == []
