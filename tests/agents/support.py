"""Helpers that call agents over HTTP, as clients do."""

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
"""Prompt with an answer of about four hundred tokens."""
ENDED = ("completed", "failed", "cancelled")
WAIT_S = 60
IDLE_S = 6
"""Seconds for which a slowed model may continue with unwanted work on a shared machine. The whole
count would take twice as long.
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
        """Creates an agent and returns its path."""
        body = {"name": "helper", "model": "chat", **fields}
        return f"{AGENTS}/{self.post(AGENTS, **body)['id']}"

    def run(self, agent: str, asked: Any = ASKED) -> str:
        """Starts a run and returns its path."""
        return f"{agent}/runs/{self.post(f'{agent}/runs', input=asked)['id']}"

    def until(self, run: str, *statuses: str) -> dict[str, Any]:
        """Waits until a run has one of these statuses and returns it. Without statuses, waits until
        the run has ended.
        """
        deadline = time.monotonic() + WAIT_S
        while (current := self.get(run))["status"] not in (statuses or ENDED):
            assert current["status"] not in ENDED and time.monotonic() < deadline, current
            time.sleep(0.05)
        return current

    def answer(self, run: str, output: str = SUNNY) -> dict[str, Any]:
        """Sends the tool outputs that a run waits for."""
        waiting = self.until(run, "requires_action")["required_action"]["tool_calls"]
        outputs = [{"tool_call_id": tool_call["id"], "output": output} for tool_call in waiting]
        return self.post(f"{run}/tool-outputs", 200, tool_outputs=outputs)

    def events(self, run: str) -> list[dict[str, Any]]:
        """Returns all events of a run, fetched in pages."""
        events: list[dict[str, Any]] = []
        page: dict[str, Any] = {"has_more": True, "last_id": None}
        while page["has_more"]:
            after = {"after": page["last_id"]} if page["last_id"] else {}
            page = self.get(f"{run}/events", order="asc", limit=100, **after)
            events += page["data"]
        check_sequence(events)
        return events

    def stream(self, run: str, after: str | None = None) -> Iterator[dict[str, Any]]:
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = after
        with self.client.stream("GET", f"{run}/events", headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            yield from parsed(response.iter_lines())

    def outstanding(self) -> int:
        """Returns the number of outstanding calls of the chat model's workers."""
        deployment = self.get(f"/v1/deployments/{self.deployment_id}")
        return sum(worker["outstanding"] for worker in deployment["workers"])

    @contextmanager
    def slowed(self) -> Iterator[Callable[[], None]]:
        """Runs the chat model for a tenth of the time, so that no run ends before a test has seen
        it begin, on any machine. Calling the yielded function stops the model completely.
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
        return [worker["pid"] for worker in workers]

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
    """Checks the framing of a stream and yields its events."""
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
    assert [event["sequence"] for event in events] == [*range(first, first + len(events))]


def data(events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Returns the data of the events of one type."""
    return [event["data"] for event in events if event["type"] == kind]


def spoken(events: list[dict[str, Any]]) -> dict[int, str]:
    """Joins the deltas of each step's message. Maps a step to its text."""
    texts: dict[int, str] = {}
    for delta in data(events, "message.delta"):
        texts[delta["step"]] = texts.get(delta["step"], "") + delta["text"]
    return texts


def begun(account: Account, run: str, kind: str) -> list[dict[str, Any]]:
    """Follows a run until the first event of a kind and returns the events so far."""
    events: list[dict[str, Any]] = []
    for event in account.stream(run):
        events.append(event)
        if event["type"] == kind:
            return events
    raise AssertionError(f"no {kind} in {events}")


def check_resumed(account: Account, run: str, seen: list[dict[str, Any]], answer: str) -> None:
    """Asserts that a resumed run kept all events that a follower saw and repeated the step."""
    assert account.until(run)["output"] == answer
    events = account.events(run)
    assert events[: len(seen)] == seen
    kinds = [event["type"] for event in events]
    assert kinds.count("run.resumed") == kinds.count("message.completed") == 1
    at = kinds.index("run.resumed")
    assert events[at]["data"] == {"step": 1}
    assert "".join(event["text"] for event in data(events[at:], "message.delta")) == answer
    assert [*account.stream(run, seen[-1]["id"])] == events[len(seen) :]
