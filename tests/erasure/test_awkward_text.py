"""Text that no database stores and JSON that is too deep to write, in every stored field."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from tests.deployments.routes import BODIES, Place, app, is_inference, places
from tests.support.app import App, serving

MODELS = Path(stoker.demo.__file__).parent / "models"
HALF, NUL = "\ud83d", "a\0b"
MINIMAL: dict[str, dict[str, Any]] = {
    **BODIES,
    "/v1/accounts": {"name": "n"},
    "/v1/accounts/{account_id}": {"name": "n"},
    "/v1/accounts/{account_id}/credits": {"amount_microcredits": 1},
    "/v1/api-keys": {"scope": "account"},
    "/v1/model-artifacts": {"display_name": "n"},
    "/v1/model-artifacts/{artifact_id}": {"display_name": "n"},
    "/v1/deployments": {"model": "m", "artifact_id": "art_1"},
    "/v1/deployments/{deployment_id}/checks": {
        "checks": [{"name": "n", "request": {"inputs": "a"}, "expect": {"status": 200}}]
    },
    "/v1/uploads": {"filename": "f", "purpose": "batch", "bytes": 1, "mime_type": "text/plain"},
    "/v1/uploads/{file_upload_id}/complete": {"part_ids": ["part_1"]},
    "/v1/agent": {"name": "awkward", "model": "awkward"},
    "/v1/batches": {
        "input_file_id": "file_1",
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    },
    "/v1/prices": {
        "memory_microcredits_per_gib_hour": 1,
        "storage_microcredits_per_gib_month": 1,
        "effective_from": "2999-01-01T00:00:00Z",
    },
}
"""Maps a path to a body with the required fields."""


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return app().openapi()["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def awkward(schema: dict[str, Any], depth: int = 0) -> Iterator[Any]:
    """Yields values for a field, each with an awkward text or too many levels somewhere."""
    schema = resolved(schema)
    for one in schema.get("anyOf", schema.get("oneOf", [])):
        yield from awkward(one, depth)
    kind = schema.get("type")
    if kind == "string":
        yield from (HALF, NUL)
    elif kind == "array" and depth < 5:
        yield from ([value] for value in awkward(schema.get("items", {}), depth + 1))
    elif kind == "object" and "properties" in schema and depth < 5:
        for name, field in schema["properties"].items():
            for value in awkward(field, depth + 1):
                required = {
                    one: sample(schema["properties"][one]) for one in schema.get("required", [])
                }
                yield {**required, name: value}
    elif kind == "object" or not schema.keys() & {"type", "anyOf", "oneOf", "const", "enum"}:
        yield from ({"a": HALF}, {HALF: 1}, {"a": NUL}, {"a": deep(300)}, deep(300))


def sample(schema: dict[str, Any]) -> Any:
    """Returns a plain value of a schema."""
    schema = resolved(schema)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if many := schema.get("anyOf", schema.get("oneOf")):
        return sample(many[0])
    match schema.get("type"):
        case "string":
            return "a"
        case "array":
            return [sample(schema["items"])] if schema.get("minItems") else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case _:
            return {name: sample(schema["properties"][name]) for name in schema.get("required", [])}


def cases() -> Iterator[Any]:
    paths = app().openapi()["paths"]
    for place in places():
        operation = paths.get(place.path, {}).get(place.method.lower(), {})
        content = operation.get("requestBody", {}).get("content", {})
        if is_inference(place.path) or "application/json" not in content:
            continue
        schema = resolved(content["application/json"]["schema"])
        for name, field in schema.get("properties", {}).items():
            values = [*awkward(field)]
            if values:
                yield pytest.param(place, name, values, id=f"{place}-{name}")


@dataclass
class Objects:
    app: App
    account: httpx.AsyncClient
    ids: dict[str, str]
    """Maps a path parameter to the id of an existing object."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
async def objects(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Objects]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    data_dir = tmp_path_factory.mktemp("awkward") / "data"
    async with serving(data_dir, database_url=url, source_dirs=[MODELS]) as served:
        account = await served.account()

        async def made(path: str, **body: Any) -> str:
            answer = await account.post(path, json=body)
            return answer.raise_for_status().json()["id"]

        source = str(MODELS / "tiny-chat")
        deployment = await made("/v1/deployments", model="awkward", source=source)
        agent = await made("/v1/agent", name="awkward", model="awkward")
        ids = {
            "account_id": account.account_id,  # type: ignore[attr-defined]
            "deployment_id": deployment,
            "agent_id": agent,
            "artifact_id": await made("/v1/model-artifacts", display_name="awkward"),
            "run_id": await made(f"/v1/agent/{agent}/runs", input="hello"),
            "key_id": await made("/v1/api-keys", scope="deployment", deployment_ids=[deployment]),
        }
        yield Objects(served, account, ids)


@pytest.mark.parametrize(("place", "name", "values"), [*cases()])
async def test_is_refused(objects: Objects, place: Place, name: str, values: list[Any]) -> None:
    operator = objects.app.client(objects.app.operator_key)
    is_operators = place.path.startswith(("/v1/accounts", "/v1/prices"))
    client = operator if is_operators else objects.account
    for value in values:
        body = {**MINIMAL.get(place.path, {}), name: value}
        answer = await client.request(
            place.method,
            place.url(objects.ids),
            content=json.dumps(body),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code < 500, (body, answer.text)
        # Fields that are stored as JSON or encrypted may contain U+0000.
        assert answer.status_code >= 400 or "\\x00" in repr(value), (body, answer.text)
        if answer.status_code == 400:
            error = answer.json()["error"]
            why = f"{error['param']} {error['message']}"
            assert name in why or "not valid JSON" in why, (body, error)
        shown = await client.get(place.url(objects.ids))
        assert shown.status_code < 500, shown.text
