"""What a run of an agent takes beyond the chat calls that it makes."""

import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

import stoker.demo
from bench.common import Report, at_most, scratch
from bench.service import Service, serving
from tests.agents.tools import serving as tool_servers

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
PAIRS = 40
AT_ONCE = 100
STEPS = 2
PRIVATE = {"STOKER_TOOL_PRIVATE_HOSTS": '["127.0.0.1"]'}
AIM_MS = 10
GOODBYE_S = 0.1
ASKED = "What is the weather in Paris?"
FOUND = '{"temperature": 21, "condition": "sunny"}'


def run(rounds: int) -> Report:
    report = Report("agents", "runs of an agent beside the bare chat calls that they make")
    with scratch() as place, tool_servers() as tools, serving(place, **PRIVATE) as service:
        service.wait_status(service.deploy(MODEL, "chat", "text-generation", "hot"), "ready")
        served = _agent(service, {"type": "mcp", "server_label": "w", "server_url": tools.url})
        tool = _listed(service.api, served)
        agent = _agent(service, tool)
        _round(service.api, tool, agent, served)
        for _ in range(rounds):
            times = [_round(service.api, tool, agent, served) for _ in range(PAIRS)]
            bare, own, whole = (
                statistics.median(column) * 1e3 for column in zip(*times, strict=True)
            )
            report.add(f"{STEPS} chat calls, one after the other", "ms", bare)
            report.add(f"{STEPS} steps of a run, its server's tool taken off", "ms", own)
            _add_overhead(report, "they beyond the calls, a step", own - bare)
            report.add(f"a whole run of {STEPS} steps with the caller's tool", "ms", whole)
            _add_overhead(report, "it beyond the calls, a step", whole - bare)
            _crowd(report, service, tool, agent)
    report.notes = [
        "One after the other, in turn. A whole run is from the request that creates it to its last "
        "event at a follower; the requests that create it, follow it and bring the tool's output "
        "are in it. Steps are from the first one's beginning to the run's end, by its events.",
        f"{AT_ONCE} at once: each by a client of its own, which follows its run.",
    ]
    return report


def _agent(service: Service, tool: dict[str, Any]) -> str:
    """The path of a new agent."""
    body = {"name": "weather", "model": "chat", "tools": [tool]}
    made = service.api.post("/v1/agent", json=body).raise_for_status().json()
    return f"/v1/agent/{made['id']}"


def _listed(client: httpx.Client, served: str) -> dict[str, Any]:
    """The tool server's tool, as a function of the caller's: prompts have to be equally long."""
    made = client.post(f"{served}/runs", json={"input": ASKED}).raise_for_status().json()
    headers = {"accept": "text/event-stream"}
    with client.stream("GET", f"{served}/runs/{made['id']}/events", headers=headers) as stream:
        found = {event["type"]: event["data"] for event in _events(stream)}
    (tool,) = found["tools.listed"]["tools"]
    function = {name: tool[name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _add_overhead(report: Report, label: str, milliseconds: float) -> None:
    share = milliseconds / STEPS
    report.add(label, "ms", share, aim=f"≤ {AIM_MS} ms", meets=at_most(AIM_MS))


def _round(
    client: httpx.Client, tool: dict[str, Any], agent: str, served: str
) -> tuple[float, float, float]:
    """Seconds of the calls alone, of the steps of a run that makes them, and of a whole run."""
    return _calls(client, tool), _steps(client, served), _run(client, agent)


def _calls(client: httpx.Client, tool: dict[str, Any]) -> float:
    began = time.perf_counter()
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASKED}]
    asked = _chat(client, tool, messages)
    call = asked["tool_calls"][0]
    messages += [asked, {"role": "tool", "tool_call_id": call["id"], "content": FOUND}]
    _check(_chat(client, tool, messages)["content"])
    return time.perf_counter() - began


def _chat(
    client: httpx.Client, tool: dict[str, Any], messages: list[dict[str, Any]]
) -> dict[str, Any]:
    body = {"model": "chat", "messages": messages, "tools": [tool]}
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["message"]


def _run(client: httpx.Client, agent: str) -> float:
    """Raises RuntimeError where an event is missing."""
    began = time.perf_counter()
    made = client.post(f"{agent}/runs", json={"input": ASKED}).raise_for_status().json()
    place = f"{agent}/runs/{made['id']}"
    known = 0
    headers = {"accept": "text/event-stream"}
    with client.stream("GET", f"{place}/events", headers=headers) as stream:
        for event in _events(stream):
            known += 1
            if event["sequence"] != known:
                raise RuntimeError(f"event {event['sequence']} came after {known - 1}")
            if event["type"] == "run.requires_action":
                outputs = [
                    {"tool_call_id": call["id"], "output": FOUND}
                    for call in event["data"]["tool_calls"]
                ]
                client.post(
                    f"{place}/tool-outputs", json={"tool_outputs": outputs}
                ).raise_for_status()
    _check(event["data"]["output"])
    return time.perf_counter() - began


def _steps(client: httpx.Client, agent: str) -> float:
    made = client.post(f"{agent}/runs", json={"input": ASKED}).raise_for_status().json()
    headers = {"accept": "text/event-stream"}
    at: dict[str, float] = {}
    with client.stream("GET", f"{agent}/runs/{made['id']}/events", headers=headers) as stream:
        for event in _events(stream):
            moment = datetime.fromisoformat(event["created_at"]).timestamp()
            at.setdefault(event["type"], moment)
    _check(event["data"]["output"])
    # Its goodbye to the tool server is not the next one's.
    time.sleep(GOODBYE_S)
    tool = at["tool_call.completed"] - at["tool_call.started"]
    return at["run.completed"] - at["step.started"] - tool


def _events(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in stream.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def _check(answer: str) -> None:
    if "21" not in answer or "Paris" not in answer:
        raise RuntimeError(f"a wrong answer: {answer}")


def _crowd(report: Report, service: Service, tool: dict[str, Any], agent: str) -> None:
    def bare(client: httpx.Client) -> None:
        _calls(client, tool)

    def whole(client: httpx.Client) -> None:
        _run(client, agent)

    clients = [
        httpx.Client(base_url=service.base_url, headers=service.api.headers, timeout=120)
        for _ in range(AT_ONCE)
    ]
    took: list[float] = []
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for work in (bare, whole):
            began = time.perf_counter()
            list(threads.map(work, clients))
            took.append(time.perf_counter() - began)
    for client in clients:
        client.close()
    report.add(f"{AT_ONCE} at once, the calls alone", "s", took[0])
    report.add(f"{AT_ONCE} at once, runs", "s", took[1])
    report.add("runs / calls", "x", took[1] / took[0])
