"""Agents over HTTP, as their callers see them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

AGENTS = "/v1/agent"
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Look up the current weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SUNNY = '{"temperature": 21, "condition": "sunny"}'
ASKED, ANSWERED = "What is the weather in Paris?", "It is 21 degrees and sunny in Paris."
FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
COUNT = "Count from 1 to 100."
"""Some four hundred tokens."""
ENDED = ("completed", "failed", "cancelled")
WAIT_S = 60
IDLE_S = 6
"""How long a model that is slowed may go on with what nobody wants, on a machine that others use;
with the whole count it would for twice as long.
"""


def mcp(url: str, label: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": label, "server_url": url, **fields}


@dataclass
class Account:
    client: httpx.Client
    deployment_id: str

    def post(self, path: str, expected: int = 201, **body: Any) -> dict[str, Any]:
        response = self.client.post(path, json=body)
        assert response.status_code == expected, response.text
        return response.json()

    def get(self, path: str, **params: Any) -> dict[str, Any]:
        return self.client.get(path, params=params).raise_for_status().json()

    def agent(self, **fields: Any) -> str:
        """The path of a new agent."""
        body = {"name": "helper", "model": "chat", **fields}
        return f"{AGENTS}/{self.post(AGENTS, **body)['id']}"

    def run(self, agent: str, asked: Any = ASKED) -> str:
        """The path of a new run."""
        return f"{agent}/runs/{self.post(f'{agent}/runs', input=asked)['id']}"

    def until(self, run: str, *statuses: str) -> dict[str, Any]:
        """The run, once it has one of these statuses, else once it has ended."""
        deadline = time.monotonic() + WAIT_S
        while (found := self.get(run))["status"] not in (statuses or ENDED):
            assert found["status"] not in ENDED and time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def answer(self, run: str, output: str = SUNNY) -> dict[str, Any]:
        """Give the outputs that a run waits for."""
        waiting = self.until(run, "requires_action")["required_action"]["tool_calls"]
        outputs = [{"tool_call_id": one["id"], "output": output} for one in waiting]
        return self.post(f"{run}/tool-outputs", 200, tool_outputs=outputs)

    def events(self, run: str) -> list[dict[str, Any]]:
        """All of them, by pages."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"has_more": True, "last_id": None}
        while page["has_more"]:
            after = {"after": page["last_id"]} if page["last_id"] else {}
            page = self.get(f"{run}/events", order="asc", limit=100, **after)
            found += page["data"]
        check_sequence(found)
        return found

    def stream(self, run: str, after: str | None = None) -> Iterator[dict[str, Any]]:
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = after
        with self.client.stream("GET", f"{run}/events", headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            yield from parsed(response.iter_lines())

    def outstanding(self) -> int:
        """What the chat model's workers have to do."""
        found = self.get(f"/v1/deployments/{self.deployment_id}")
        return sum(one["outstanding"] for one in found["workers"])

    @contextmanager
    def slowed(self) -> Iterator[Callable[[], None]]:
        """The chat model runs for a tenth of the time, so that on no machine a run has ended
        before a test has seen it begin; once what is given is called, it stands still.
        """
        pids, over, still = self._workers(), threading.Event(), threading.Event()

        def pace() -> None:
            while not over.is_set():
                _signal(pids, signal.SIGSTOP)
                over.wait(None if still.is_set() else 0.045)
                if not still.is_set():
                    _signal(pids, signal.SIGCONT)
                    over.wait(0.005)
            _signal(pids, signal.SIGCONT)

        pacing = threading.Thread(target=pace)
        pacing.start()
        try:
            yield still.set
        finally:
            over.set()
            pacing.join()

    def _workers(self) -> list[int]:
        workers = self.get(f"/v1/deployments/{self.deployment_id}")["workers"]
        return [one["pid"] for one in workers]

    def wait_idle(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.outstanding():
            assert time.monotonic() < deadline, "the engine works on"
            time.sleep(0.02)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream, once their framing has been found right."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            event = json.loads(fields["data"])
            if fields["event"] == "run.deleted":
                assert (fields.get("id"), event) == (None, {})
                yield {"type": "run.deleted"}
            else:
                assert fields["event"] == event["type"]
                assert fields["id"] == event["id"] == str(event["sequence"])
                yield event
            fields = {}
    assert not fields, "the stream broke off in an event"


def check_sequence(events: list[dict[str, Any]], first: int = 1) -> None:
    assert [one["sequence"] for one in events] == [*range(first, first + len(events))]


def data(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """What the events of one type say."""
    return [one["data"] for one in events if one["type"] == kind]


def spoken(events: list[dict[str, Any]]) -> dict[int, str]:
    """By step: the message as its pieces tell it."""
    found: dict[int, str] = {}
    for one in data(events, "message.delta"):
        found[one["step"]] = found.get(one["step"], "") + one["text"]
    return found


def begun(account: Account, run: str, kind: str) -> list[dict[str, Any]]:
    """What a follower has seen of a run once the first event of a kind came."""
    seen: list[dict[str, Any]] = []
    for event in account.stream(run):
        seen.append(event)
        if event["type"] == kind:
            return seen
    raise AssertionError(f"no {kind} in {seen}")


def check_resumed(account: Account, run: str, seen: list[dict[str, Any]], answer: str) -> None:
    """Nothing that a follower saw was unsaid, and the step was done anew."""
    assert account.until(run)["output"] == answer
    events = account.events(run)
    assert events[: len(seen)] == seen
    kinds = [one["type"] for one in events]
    assert kinds.count("run.resumed") == kinds.count("message.completed") == 1
    at = kinds.index("run.resumed")
    assert events[at]["data"] == {"step": 1}
    assert "".join(one["text"] for one in data(events[at:], "message.delta")) == answer
    assert [*account.stream(run, seen[-1]["id"])] == events[len(seen) :]
