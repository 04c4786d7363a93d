"""docs/api.md: the operations of the OpenAPI document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.models.tasks.registry import TASKS
from stoker.server.app import create_app
from tools.reference.schemas import Schema, branches, described, resolved, table, values

HEAD = """# API reference

Look up an operation, its parameters and its statuses. `python -m tools.reference` writes this page
from the server's OpenAPI document, `GET /openapi.json`. A running server shows the same at `/docs`.

Send the key as `Authorization: Bearer sk-…`. Bodies and responses are JSON, unless an operation
says otherwise. [Errors](errors.md) lists the codes of all error statuses.

Lists return `data`, `first_id`, `last_id` and `has_more`. Pass `last_id` as `after` for the next
page.
"""
GUIDES: Mapping[str, str] = {
    "API keys": "guide/keys.md",
    "Accounts": "guide/accounts.md",
    "Agents": "guide/agents.md",
    "Audio": "guide/speech.md",
    "Checks": "guide/checks.md",
    "Console": "guide/console.md",
    "Deployments": "guide/deployments.md",
    "Batches": "guide/batches.md",
    "Files": "guide/usage.md",
    "Generated text": "guide/openai.md",
    "Health": "guide/operation.md",
    "Images": "guide/images.md",
    "Metrics": "guide/metrics.md",
    "Model artifacts": "guide/artifacts.md",
    "Models": "guide/openai.md",
    "Tasks": "guide/calling.md",
    "Text Embeddings Inference": "guide/tei-and-vllm.md",
    "Transcription": "guide/transcription.md",
    "Trials": "guide/trials.md",
    "Usage and credits": "guide/usage.md",
    "Versions": "guide/versions.md",
    "Videos": "guide/videos.md",
    "Watching": "guide/events.md",
    "vLLM": "guide/tei-and-vllm.md",
}
"""Maps the document's tags to pages."""
SHARED = ("x-stoker-account", "idempotency-key", "limit", "after", "order", "Prefer", "prefer")
"""Parameters that are described once."""


@dataclass(frozen=True)
class ApiOperation:
    """An operation of the document."""

    method: str
    path: str
    content: Mapping[str, Any]

    @property
    def statuses(self) -> set[str]:
        return {*self.content["responses"]}


def operations(document: Mapping[str, Any]) -> Iterator[ApiOperation]:
    """Yields all operations, in the document's order."""
    for path, methods in document["paths"].items():
        for method, content in methods.items():
            if "responses" in content:
                yield ApiOperation(method.upper(), path, content)


def page() -> str:
    """Returns the required content of docs/api.md."""
    document: dict[str, Any] = create_app().openapi()
    definitions = document["components"]["schemas"]
    found = list(operations(document))
    common = found[0].statuses.intersection(*(operation.statuses for operation in found))
    names = ", ".join(f"{status}" for status in sorted(common))
    parts = [HEAD, f"Every operation can also return these statuses: {names}.", ""]
    parts += _shared(found, definitions)
    for tag in sorted({operation.content["tags"][0] for operation in found}):
        parts += [f"## {tag}", "", f"Guide: [{_title(GUIDES[tag])}]({GUIDES[tag]}).", ""]
        for operation in found:
            if operation.content["tags"][0] == tag:
                parts += _section(operation, definitions, common)
    return "\n".join(parts).rstrip() + "\n"


def _title(page: str) -> str:
    return page.removeprefix("guide/").removesuffix(".md").replace("-", " ")


def _shared(found: list[ApiOperation], definitions: Schema) -> list[str]:
    parameters = {
        parameter["name"]: parameter
        for operation in found
        for parameter in operation.content.get("parameters", ())
        if parameter["name"] in SHARED
    }
    return ["## Shared parameters", "", *_parameters([*parameters.values()], definitions)]


def _section(operation: ApiOperation, definitions: Schema, common: set[str]) -> list[str]:
    content = operation.content
    parameters = content.get("parameters", ())
    own = [parameter for parameter in parameters if parameter["name"] not in SHARED]
    shared = [f"`{item['name']}`" for item in parameters if item["name"] in SHARED]
    parts = [f"### `{operation.method} {operation.path}`", "", _purpose(content), ""]
    parts += _parameters(own, definitions)
    parts += _body(operation, definitions)
    statuses = ", ".join(sorted(operation.statuses - common))
    ends = [f"Statuses: {statuses}." if statuses else "", _list("Shared parameters", shared)]
    return [*parts, " ".join(filter(None, ends)), ""]


def _list(title: str, names: list[str]) -> str:
    return f"{title}: {', '.join(names)}." if names else ""


def _purpose(content: Mapping[str, Any]) -> str:
    text = " ".join(str(content.get("description") or content["summary"]).split())
    return text if text.endswith(".") else f"{text}."


def _parameters(parameters: list[Any], definitions: Schema) -> list[str]:
    rows = [
        [
            f"`{parameter['name']}`",
            parameter["in"],
            values(parameter["schema"], definitions),
            _default(parameter["schema"], is_required=parameter.get("required", False)),
            described(parameter) or described(parameter["schema"]),
        ]
        for parameter in parameters
    ]
    return table(("parameter", "in", "values", "default", "meaning"), rows)


def _default(shape: Schema, *, is_required: bool) -> str:
    if is_required:
        return "required"
    return "" if shape.get("default") is None else f"`{shape['default']}`"


def _body(operation: ApiOperation, definitions: Schema) -> list[str]:
    """Returns the fields of the body, or a link to the page that lists them."""
    content: Mapping[str, Any] = operation.content.get("requestBody", {}).get("content", {})
    if not content:
        return []
    for task in TASKS.values():
        if task.path == operation.path:
            return [f"[Fields, an example and its response](tasks/{task.name}.md).", ""]
    types = ", ".join(f"`{kind}`" for kind in content)
    shape: Schema = content.get("application/json", {}).get("schema", {})
    shape = resolved(next(iter(branches(shape)), shape), definitions)
    fields: Mapping[str, Any] = shape.get("properties", {})
    required = shape.get("required", ())
    rows = [
        [
            f"`{name}`",
            values(field, definitions),
            _default(field, is_required=name in required),
            described(field),
        ]
        for name, field in fields.items()
    ]
    return [f"Body: {types}.", "", *table(("field", "values", "default", "meaning"), rows)]
