"""Time of an agent's run in addition to its chat calls."""

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import stoker.demo
from bench.client import Connection
from bench.common import Plan, Report, at_most, progress, scratch
from bench.service import Service, serving
from tools.stand_ins.tool_servers import serving as tool_servers

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
PAIRS = 40
AT_ONCE = 100
STEPS = 2
CHAT = "/v1/chat/completions"
AIM_MS = 10
GOODBYE_S = 0.1
ASKED = "What is the weather in Paris?"
FOUND = '{"temperature": 21, "condition": "sunny"}'


def run(plan: Plan) -> Report:
    report = Report("agents", "runs of an agent, against their bare chat calls")
    pairs, at_once = plan.sized(PAIRS, 3), plan.sized(AT_ONCE, 10)
    with (
        scratch() as place,
        tool_servers() as tools,
        # The tool server runs on this machine and has a private address.
        serving(report, place, tool_private_hosts=["127.0.0.1"]) as service,
        service.connect(CHAT) as connection,
    ):
        deployment = service.deploy(MODEL, "chat", "text-generation", readiness="hot")
        service.settle(deployment, CHAT, [json.dumps(_body([])).encode()])
        served = _agent(connection, {"type": "mcp", "server_label": "w", "server_url": tools.url})
        tool = _listed(connection, served)
        agent = _agent(connection, tool)
        _round(connection, tool, agent, served)
        for _ in range(plan.rounds):
            with report.client.asking("one after the other"):
                times = [_round(connection, tool, agent, served) for _ in range(pairs)]
            bare, step_ms, whole = (
                statistics.median(column) * 1e3 for column in zip(*times, strict=True)
            )
            report.add(f"{STEPS} chat calls, one after the other", "ms", bare)
            report.add(f"{STEPS} steps of a run, its server's tool taken off", "ms", step_ms)
            _add_overhead(report, "they beyond the calls, a step", step_ms - bare)
            report.add(f"a whole run of {STEPS} steps with the caller's tool", "ms", whole)
            _add_overhead(report, "it beyond the calls, a step", whole - bare)
            progress(f"{STEPS} calls: {bare:.1f} ms, a whole run: {whole:.1f} ms")
            _crowd(report, service, tool, agent, at_once)
    report.notes += [
        "Runs and bare calls alternate. A whole run lasts from the request that creates it to the "
        "last event that its follower receives, including all requests of the client. Steps last "
        "from the start of the first step to the end of the run, by the times of events.",
        f"{at_once} at once: each run has its own client, which follows it.",
        "The client's processor time includes the tool server, which runs in the same process.",
    ]
    return report


def _agent(connection: Connection, tool: dict[str, Any]) -> str:
    """Creates an agent and returns its path."""
    body = {"name": "weather", "model": "chat", "tools": [tool]}
    return f"/v1/agent/{connection.post_json('/v1/agent', body)['id']}"


def _listed(connection: Connection, served: str) -> dict[str, Any]:
    """Returns the tool server's tool as a caller's function, so that prompts have equal lengths."""
    made = connection.post_json(f"{served}/runs", {"input": ASKED})
    events = connection.events(f"{served}/runs/{made['id']}/events")
    data_by_type = {event["type"]: event["data"] for event in events}
    (tool,) = data_by_type["tools.listed"]["tools"]
    function = {name: tool[name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _add_overhead(report: Report, label: str, milliseconds: float) -> None:
    share = milliseconds / STEPS
    report.add(label, "ms", share, aim=f"≤ {AIM_MS} ms", meets=at_most(AIM_MS))


def _round(
    connection: Connection, tool: dict[str, Any], agent: str, served: str
) -> tuple[float, float, float]:
    """Returns the seconds of the calls alone, of the steps of a run that makes them, and of the
    whole run.
    """
    return _calls(connection, tool), _steps(connection, served), _run(connection, agent)


def _calls(connection: Connection, tool: dict[str, Any]) -> float:
    began = time.perf_counter()
    body = _body([tool])
    message = connection.post_json(CHAT, body)["choices"][0]["message"]
    call = message["tool_calls"][0]
    body["messages"] += [message, {"role": "tool", "tool_call_id": call["id"], "content": FOUND}]
    _check(connection.post_json(CHAT, body)["choices"][0]["message"]["content"])
    return time.perf_counter() - began


def _body(tools: list[dict[str, Any]]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASKED}]
    return {"model": "chat", "messages": messages, **({"tools": tools} if tools else {})}


def _run(connection: Connection, agent: str) -> float:
    """Runs the agent once and returns the seconds that it took. Raises `RuntimeError` if an event
    is missing.
    """
    began = time.perf_counter()
    made = connection.post_json(f"{agent}/runs", {"input": ASKED})
    place = f"{agent}/runs/{made['id']}"
    event: dict[str, Any] = {}
    for number, event in enumerate(connection.events(f"{place}/events"), start=1):
        if event["sequence"] != number:
            raise RuntimeError(f"event {event['sequence']} came after {number - 1}")
        if event["type"] == "run.requires_action":
            outputs = [
                {"tool_call_id": call["id"], "output": FOUND}
                for call in event["data"]["tool_calls"]
            ]
            body = {"tool_outputs": outputs}
            connection.beside().post_json(f"{place}/tool-outputs", body)
    _check(event["data"]["output"])
    return time.perf_counter() - began


def _steps(connection: Connection, agent: str) -> float:
    made = connection.post_json(f"{agent}/runs", {"input": ASKED})
    at: dict[str, float] = {}
    event: dict[str, Any] = {}
    for event in connection.events(f"{agent}/runs/{made['id']}/events"):
        moment = datetime.fromisoformat(event["created_at"]).timestamp()
        at.setdefault(event["type"], moment)
    _check(event["data"]["output"])
    # The end of its session with the tool server must not count towards the next run.
    time.sleep(GOODBYE_S)
    tool = at["tool_call.completed"] - at["tool_call.started"]
    return at["run.completed"] - at["step.started"] - tool


def _check(answer: str) -> None:
    if "21" not in answer or "Paris" not in answer:
        raise RuntimeError(f"a wrong answer: {answer}")


def _crowd(
    report: Report, service: Service, tool: dict[str, Any], agent: str, at_once: int
) -> None:
    def bare(connection: Connection) -> None:
        _calls(connection, tool)

    def whole(connection: Connection) -> None:
        _run(connection, agent)

    took: list[float] = []
    with ThreadPoolExecutor(at_once) as threads:
        for work, name in ((bare, "the calls alone"), (whole, "runs")):
            label = f"{at_once} at once, {name}"
            clients = [service.connect(CHAT) for _ in range(at_once)]
            with report.client.asking(label):
                began = time.perf_counter()
                list(threads.map(work, clients))
                took.append(time.perf_counter() - began)
            for client in clients:
                client.close()
            report.add(label, "s", took[-1])
    report.add("runs / calls", "x", took[1] / took[0])
