"""docs/events.md: the events of both event streams, with their fields."""

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from stoker.platform.web.schemas import ResponseModel
from stoker.server.resources import RESOURCES
from stoker.workloads.agents import events as run_events
from stoker.workloads.agents.schemas import RunEvent
from tools.reference.schemas import described, table, values

HEAD = """# Event reference

Look up the events of `GET /v1/events` and of an agent's run, and their fields.
`python -m tools.reference` writes this page from the code.

Both are streams of server-sent events: `event` is the name, and `data` is a JSON object.
"""
STREAM = """## Stream of an account

`GET /v1/events` follows the objects of an account. [Live state](guide/events.md) describes keys and
limits of the stream.
"""
RUNS = """## Events of a run

`GET /v1/agent/{agent_id}/runs/{run_id}/events` lists or follows the events of a run.
[Agents](guide/agents.md#events) describes how to follow and resume them.
"""
MESSAGES: Mapping[str, Mapping[str, str]] = {
    "hello": {"at": "unix seconds", "version": "release of the server"},
    "notice": {
        "deployment_id": "id of the deployment",
        "model": "its model id",
        "type": "[reason](guide/logs.md#events-of-a-deployment) of the change",
        "status": "status after the change",
        "message": "a sentence",
        "created_at": "time of the change",
    },
    "stats": {
        "at": "unix seconds",
        "deployments": "figures by id of the deployment, see below; idle deployments are missing",
        "memory": "memory of all replicas and of the GPUs, see below",
        "credits": "`balance`, and `days_left` at the last day's rate; null for several accounts",
    },
    "reset": {},
    "error": {"error": "`type`, `code`, `message` and `param` of the [error](errors.md)"},
}
"""Maps the names of messages that are no objects to their fields."""
PURPOSES: Mapping[str, str] = {
    "hello": "First event of each stream.",
    "notice": "An event of a deployment.",
    "stats": "Figures, once a second.",
    "reset": "Events were dropped because the client was too slow. Read the lists again.",
    "error": "The key was revoked or the session ended. It has no name, and the stream closes.",
}
DEPLOYMENT_STATS: Mapping[str, str] = {
    "requests_per_s": "requests per second, of the last 10 to 15 seconds",
    "errors_per_s": "failed requests per second, of the same time",
    "p50_ms": "median latency of the last minute, milliseconds",
    "p99_ms": "99th percentile of the latency of the last minute, milliseconds",
    "queue": "waiting and running calls",
    "replicas": "replicas",
    "memory_bytes": "memory of the replicas",
}
MEMORY_STATS: Mapping[str, str] = {
    "budget_bytes": "memory that all replicas may claim together",
    "held_bytes": "claimed memory",
    "used_bytes": "measured memory",
    "devices": "GPUs, as in `GET /v1/machine`",
    "waiting": "deployments that wait for memory, in order",
}
RUN_DATA: Mapping[str, tuple[str, str]] = {
    run_events.CREATED: ("The run was created.", ""),
    run_events.RESUMED: ("A server resumed the run after another one died.", "`step`"),
    run_events.TOOLS_LISTED: ("A tool server listed its tools.", "`server_label`, `tools`"),
    run_events.STEP_STARTED: ("A call of the model began.", "`step`"),
    run_events.MESSAGE_DELTA: ("A part of the answer.", "`step`, `text`"),
    run_events.REASONING_DELTA: ("A part of the reasoning.", "`step`, `text`"),
    run_events.MESSAGE_COMPLETED: (
        "The model's message is complete.",
        "`step`, `message`, `finish_reason`, `usage`",
    ),
    run_events.CALL_STARTED: (
        "A call of a tool began.",
        "`step`, `tool_call_id`, `name`, `arguments`, `server_label`",
    ),
    run_events.CALL_COMPLETED: (
        "A call of a tool ended. `is_interrupted`: its effect is unknown.",
        "`tool_call_id`, `output`, `is_error`, `is_interrupted`",
    ),
    run_events.REQUIRES_ACTION: ("The run waits for outputs of functions.", "`tool_calls`"),
    run_events.COMPLETED: ("The run is complete.", "`usage`, `output`"),
    run_events.FAILED: ("The run failed.", "`usage`, `error`"),
    run_events.CANCELLED: ("The run was cancelled.", "`usage`"),
    run_events.DELETED: ("The run was erased. Sent to open streams only.", ""),
}
"""Maps the types of a run's events to a purpose and the fields of `data`."""


def objects() -> dict[str, type[ResponseModel]]:
    """Returns the schemas of the objects that are sent when they change."""
    kinds = [resource.events for resource in RESOURCES if resource.events]
    return {kind.kind: _body(get_type_hints(kind.read)["return"]) for kind in kinds}


def _body(returned: Any) -> type[ResponseModel]:
    """Returns the second member of the pairs that a resource's `read` returns."""
    while get_args(returned):
        returned = get_args(returned)[-1]
    return returned


def page() -> str:
    """Returns the required content of docs/events.md."""
    parts = [HEAD, STREAM]
    for name, fields in MESSAGES.items():
        rows = [[f"`{field}`", meaning] for field, meaning in fields.items()]
        parts += [f"### `{name}`", "", PURPOSES[name], "", *table(("field", "meaning"), rows)]
        if name == "stats":
            for field, figures in (("deployments", DEPLOYMENT_STATS), ("memory", MEMORY_STATS)):
                rows = [[f"`{figure}`", meaning] for figure, meaning in figures.items()]
                parts += [*table((f"field in `{field}`", "meaning"), rows)]
    for kind, schema in objects().items():
        parts += [
            f"### `{kind}`",
            "",
            f"The changed object, as `GET` returns it. `{kind}.deleted` has its `id` only.",
            "",
            *_fields(schema),
        ]
    rows = [[f"`{name}`", purpose, data] for name, (purpose, data) in RUN_DATA.items()]
    parts += [RUNS, *table(("type", "meaning", "fields of `data`"), rows)]
    parts += ["Each event has these fields:", "", *_fields(RunEvent)]
    return "\n".join(parts).rstrip() + "\n"


def _fields(schema: type[ResponseModel]) -> list[str]:
    shape = schema.model_json_schema(mode="serialization")
    definitions = shape.get("$defs", {})
    rows = [
        [f"`{name}`", values(field, definitions), described(field)]
        for name, field in shape["properties"].items()
    ]
    return table(("field", "values", "meaning"), rows)
