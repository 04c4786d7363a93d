"""Callers of models in a soak test: all tasks, streams, videos, agent runs and deployment
changes.
"""

import asyncio
import json
import time
from typing import Any

import httpx

from stoker.demo.examples import EXAMPLES, MEDIA_CALLS, ExampleRequest
from stoker.models.tasks.registry import TASKS
from tools.soak.actors import CUT_SHARE, MEDIA, PATIENCE_S, Actor, World
from tools.soak.answers import parsed, same

COUNT = "Count from 1 to 100."
FRANCE, PARIS = "What is the capital of France?", "The capital of France is Paris."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASKED, SUNNY = "What is the weather in Paris?", '{"temperature": 21, "condition": "sunny"}'
ANSWERED = "It is 21 degrees and sunny in Paris."
CALLS: tuple[tuple[str, ExampleRequest], ...] = (
    *((TASKS[name].path, example) for name, example in EXAMPLES.items()),
    *((path, example) for path, example in MEDIA_CALLS.items() if path != "/v1/videos"),
)
ENDED = ("completed", "failed", "cancelled")


class Caller(Actor):
    """Calls a model of each task. Every response must equal the first one."""

    name = "calls"
    pause_s = 0.05

    def __init__(self, world: World, seed: str) -> None:
        super().__init__(world, seed)
        self.known: dict[str, Any] = {}

    async def act(self) -> None:
        path, example = self.random.choice(CALLS)
        response = await self.call("POST", path, **request(example), headers={"prefer": "wait=60"})
        if response.status_code != 200:
            self.tally.lose(f"{path} ({example.model}) answered {response.text}")
            return
        self.tally.done["calls answered"] += 1
        answer = parsed(response)
        # Each image edit starts from different noise.
        if path.startswith("/v1/images/edits") or isinstance(answer, bytes):
            return
        if not same(answer, self.known.setdefault(path + example.model, answer)):
            self.tally.lose(f"{path} ({example.model}) answered otherwise than before: {answer}")


class Streamer(Actor):
    """Streams chats. Some are cut. The others must be complete and correct."""

    name = "streams"
    pause_s = 0.1

    async def act(self) -> None:
        if self.random.random() < CUT_SHARE:
            await self.stream(COUNT, self.random.uniform(0, 0.3))
            self.tally.done["streams cut"] += 1
            return
        text = await self.stream(FRANCE, None)
        if text is not None:
            self.tally.done["streams whole"] += 1
            if text != PARIS:
                self.tally.lose(f"a stream ended without an error and said {text!r}")

    async def stream(self, asked: str, cut_s: float | None) -> str | None:
        """Returns the streamed text, or None if the stream was cut or reported an error."""
        body = {
            "model": "tiny-chat",
            "stream": True,
            "temperature": 0,
            "messages": [{"role": "user", "content": asked}],
        }
        text, is_over = "", False
        try:
            async with (
                asyncio.timeout(cut_s if cut_s is not None else PATIENCE_S),
                self.client.stream("POST", "/v1/chat/completions", json=body) as response,
            ):
                self.tally.answers[self.name, response.status_code] += 1
                if response.status_code != 200:
                    return None
                async for line in response.aiter_lines():
                    if not line.startswith("data: "):
                        continue
                    if line == "data: [DONE]":
                        is_over = True
                        continue
                    event = json.loads(line[6:])
                    if "error" in event:
                        return None
                    for choice in event["choices"]:
                        text += choice["delta"].get("content") or ""
        except (httpx.TransportError, TimeoutError):
            self.tally.answers[self.name, 0] += 1
            return None
        if not is_over:
            self.tally.lose(f"a stream ended without [DONE] and without an error: {text!r}")
            return None
        return text


class Filmer(Actor):
    """Requests videos. Each acknowledged video must end exactly once. Some are deleted."""

    name = "videos"
    pause_s = 3

    def __init__(self, world: World, seed: str) -> None:
        super().__init__(world, seed)
        self.waiting: list[str] = []
        self.made: list[str] = []
        self.gone: list[str] = []

    async def act(self) -> None:
        if len(self.waiting) < 4:
            example = MEDIA_CALLS["/v1/videos"]
            key = {"idempotency-key": f"film-{self.random.getrandbits(64):x}"}
            body = {"model": example.model, **example.body}
            made = await self.call("POST", "/v1/videos", json=body, headers=key)
            if made.status_code == 200:
                self.waiting.append(made.json()["id"])
                self.tally.done["videos asked for"] += 1
            elif made.status_code != 409:
                self.tally.lose(f"no video could be asked for: {made.text}")
        await self.look()
        if self.made and self.random.random() < 0.3:
            victim = self.made.pop(self.random.randrange(len(self.made)))
            deleted = await self.call("DELETE", f"/v1/videos/{victim}")
            if deleted.status_code in (200, 404):
                self.gone.append(victim)
                self.tally.done["videos deleted"] += 1

    async def look(self) -> None:
        for identifier in [*self.waiting]:
            response = await self.call("GET", f"/v1/videos/{identifier}")
            if response.status_code != 200:
                self.tally.lose(f"video {identifier} was acknowledged, and is {response.text}")
                self.waiting.remove(identifier)
            elif response.json()["status"] in ENDED:
                self.waiting.remove(identifier)
                await self.ended(identifier, response.json())

    async def ended(self, identifier: str, video: dict[str, Any]) -> None:
        if video["status"] != "completed":
            self.tally.done["videos failed"] += 1
            self.tally.lose(f"video {identifier} has failed: {video.get('error')}")
            return
        content = await self.call("GET", f"/v1/videos/{identifier}/content")
        if content.status_code != 200 or content.content[4:8] != b"ftyp":
            self.tally.lose(f"video {identifier} is completed, its content {content.status_code}")
        self.made.append(identifier)
        self.tally.done["videos completed"] += 1

    async def settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.waiting and time.monotonic() < deadline:
            await self.look()
            await asyncio.sleep(0.5)
        for identifier in self.waiting:
            self.tally.lose(f"video {identifier} never ended")
        for identifier in self.made:
            content = await self.call("GET", f"/v1/videos/{identifier}/content")
            if content.status_code != 200:
                self.tally.lose(f"video {identifier} was completed, and is {content.text}")
        for identifier in self.gone[-50:]:
            response = await self.call("GET", f"/v1/videos/{identifier}")
            if response.status_code != 404:
                self.tally.lose(f"video {identifier} was deleted, and is {response.status_code}")


class Runner(Actor):
    """Runs an agent with a tool of the caller. Some runs are deleted at any time."""

    name = "runs"
    pause_s = 0.7

    def __init__(self, world: World, seed: str) -> None:
        super().__init__(world, seed)
        self.agent = ""
        self.waiting: list[str] = []
        self.ended: list[str] = []
        self.gone: list[str] = []

    async def act(self) -> None:
        if not self.agent:
            body = {"name": "weather", "model": "tiny-chat", "tools": [WEATHER]}
            self.agent = (await self.call("POST", "/v1/agent", json=body)).json()["id"]
        runs = f"/v1/agent/{self.agent}/runs"
        if len(self.waiting) < 6:
            key = {"idempotency-key": f"run-{self.random.getrandbits(64):x}"}
            made = await self.call("POST", runs, json={"input": ASKED}, headers=key)
            if made.status_code == 201:
                self.waiting.append(made.json()["id"])
                self.tally.done["runs asked for"] += 1
            elif made.status_code != 409:
                self.tally.lose(f"no run could be asked for: {made.text}")
        if self.waiting and self.random.random() < 0.25:
            await self.delete(self.waiting)
        elif len(self.ended) > 20:
            await self.delete(self.ended)
        await self.look()

    async def delete(self, some: list[str]) -> None:
        victim = some.pop(self.random.randrange(len(some)))
        gone = await self.call("DELETE", f"/v1/agent/{self.agent}/runs/{victim}")
        if gone.status_code not in (200, 404):
            self.tally.lose(f"run {victim} could not be deleted: {gone.text}")
            return
        self.gone.append(victim)
        self.tally.done["runs deleted"] += 1

    async def look(self) -> None:
        for identifier in [*self.waiting]:
            path = f"/v1/agent/{self.agent}/runs/{identifier}"
            response = await self.call("GET", path)
            if response.status_code != 200:
                self.tally.lose(f"run {identifier} was acknowledged, and is {response.text}")
                self.waiting.remove(identifier)
                continue
            run = response.json()
            if run["status"] == "requires_action":
                calls = run["required_action"]["tool_calls"]
                outputs = [
                    {"tool_call_id": tool_call["id"], "output": SUNNY} for tool_call in calls
                ]
                # The response may have been lost. In that case, the retry is rejected and the run
                # continues.
                await self.call("POST", f"{path}/tool-outputs", json={"tool_outputs": outputs})
            elif run["status"] in ENDED:
                self.waiting.remove(identifier)
                self.ended.append(identifier)
                if run["status"] != "completed" or run["output"] != ANSWERED:
                    self.tally.lose(f"run {identifier} is {run}")
                self.tally.done["runs ended"] += 1

    async def settle(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.waiting and time.monotonic() < deadline:
            await self.look()
            await asyncio.sleep(0.3)
        for identifier in self.waiting:
            self.tally.lose(f"run {identifier} never ended")
        for identifier in self.ended:
            events = await self.call(
                "GET", f"/v1/agent/{self.agent}/runs/{identifier}/events", params={"order": "asc"}
            )
            kinds = [event["type"] for event in events.json()["data"]] if events.is_success else []
            if "run.completed" not in kinds and not events.json().get("has_more"):
                self.tally.lose(f"the events of run {identifier} are not whole: {events.text}")
        for identifier in self.gone[-100:]:
            response = await self.call("GET", f"/v1/agent/{self.agent}/runs/{identifier}")
            if response.status_code != 404:
                self.tally.lose(f"run {identifier} was deleted, and is {response.status_code}")


class Changer(Actor):
    """Stops, starts, changes, deletes and re-creates its own deployments."""

    name = "changes"
    pause_s = 2

    async def act(self) -> None:
        rows = (await self.call("GET", "/v1/deployments", params={"limit": 100})).json()["data"]
        owned = [row for row in rows if row["model"].startswith("soak/")]
        sources = [row for row in rows if row["model"] in ("tiny-ner", "tiny-qa", "tiny-sentiment")]
        if sources and (len(owned) < 3 or self.random.random() < 0.2):
            source = self.random.choice(sources)
            model = f"soak/{self.random.getrandbits(40):x}"
            body = {"model": model, "artifact_id": source["artifact_id"], "readiness": "warm"}
            made = await self.call("POST", "/v1/deployments", json=body)
            if made.status_code not in (201, 409):
                self.tally.lose(f"no deployment could be made: {made.text}")
            self.tally.done["deployments made"] += 1
            return
        if not owned:
            return
        path = f"/v1/deployments/{self.random.choice(owned)['id']}"
        kind = self.random.choice(("start", "stop", "patch", "delete", "logs", "events"))
        if kind in ("start", "stop"):
            answer = await self.call("POST", f"{path}/{kind}")
        elif kind == "patch":
            readiness = self.random.choice(("cold", "warm"))
            answer = await self.call("PATCH", path, json={"readiness": readiness})
        elif kind == "delete":
            answer = await self.call("DELETE", path)
            self.tally.done["deployments deleted"] += 1
        else:
            answer = await self.call("GET", f"{path}/{kind}")
        if answer.status_code not in (200, 404, 409):
            self.tally.lose(f"{kind} of {path} answered {answer.text}")


def request(example: ExampleRequest) -> dict[str, Any]:
    """Returns httpx's arguments for a call."""
    fields = {"model": example.model, **example.body}
    if not example.files:
        return {"json": fields}
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}
    files = {name: (file, (MEDIA / file).read_bytes()) for name, file in example.files.items()}
    return {"data": texts, "files": files}
