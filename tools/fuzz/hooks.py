"""Schemathesis hooks that make generated calls use existing objects.

Schemathesis generates unknown names and identifiers, and invalid media, so most calls would fail
early. Most calls therefore get a model that serves their endpoint, or the fields of a valid call
mixed with some of their own. They also get identifiers of objects that earlier calls have created.
"""

import base64
import json
import os
import random
from pathlib import Path
from typing import Any

import schemathesis

WORLD: dict[str, Any] = json.loads(Path(os.environ["FUZZ_WORLD"]).read_text())
CHANCE = random.Random(os.environ["FUZZ_SEED"])
UNTOUCHED, NAMED = 0.15, 0.5
"""Share of model calls that stay unchanged, and share that only get a model's name."""
OWN_FIELDS = 0.3
KNOWN = 0.8
MOST_KEPT = 20
MADE_BY = {
    "/v1/deployments": "deployment_id",
    "/v1/model-artifacts": "artifact_id",
    "/v1/api-keys": "key_id",
    "/v1/files": "file_id",
    "/v1/videos": "video_id",
    "/v1/agent": "agent_id",
    "/v1/accounts": "account_id",
    "/v1/agent/{agent_id}/runs": "run_id",
    "/v1/model-artifacts/{artifact_id}/uploads": "upload_id",
}
READS = ("GET", "HEAD", "POST")
ENDS = ("/stop", "/rotate", "/credits")
"""Paths with POST requests that change objects that other calls need."""

made: dict[str, list[dict[str, str]]] = {}
"""Maps a parameter to identifiers of created objects, each with the identifiers of its parents."""


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    """Removes unsupported parts of the document: pairs, and schemas of streams. A stream's schema
    describes the whole body, but would be checked against each event.
    """
    _without_pairs(raw_schema)
    operations = [entry for path in raw_schema["paths"].values() for entry in path.values()]
    for operation in operations:
        for response in operation["responses"].values():
            response.get("content", {}).get("text/event-stream", {}).pop("schema", None)


def _without_pairs(schema: Any) -> None:
    if isinstance(schema, dict):
        if "prefixItems" in schema:
            schema["items"] = {"anyOf": schema.pop("prefixItems")}
        schema = [*schema.values()]
    for child in schema if isinstance(schema, list) else ():
        _without_pairs(child)


@schemathesis.hook
def before_call(_context: Any, case: Any, **_kwargs: Any) -> None:
    _find(case)
    calls = WORLD["calls"].get(case.path)
    if calls and isinstance(case.body, dict):
        case.body = _met(CHANCE.choice(calls), case.body, case.media_type or "")


@schemathesis.hook
def after_call(_context: Any, case: Any, response: Any) -> None:
    name = MADE_BY.get(case.path)
    if name is None or case.method.upper() != "POST" or response.status_code not in (200, 201):
        return
    created = response.json()
    above = {
        parameter: value
        for parameter, value in (case.path_parameters or {}).items()
        if isinstance(value, str)
    }
    identifiers = made.setdefault(name, [])
    identifiers.append({**above, name: created.get("id") or created.get("upload_id")})
    del identifiers[:-MOST_KEPT]


def _find(case: Any) -> None:
    """Fills the path's parameters with existing identifiers."""
    parameters = case.path_parameters or {}
    if parameters.get("key_id") == WORLD["own_key_id"] and case.method.upper() != "GET":
        # Responses contain the own key's id. A call that revokes it would make the remaining calls
        # useless.
        case.path_parameters = {**parameters, "key_id": "key_0"}
    names = [entry for entry in parameters if entry in {*MADE_BY.values()}]
    # A run's event stream lasts until the run ends, which may be never.
    if not names or case.path.endswith("/events") or CHANCE.random() > KNOWN:
        return
    pool = list(made.get(names[-1], ()))
    if case.method.upper() in READS and not case.path.endswith(ENDS):
        pool += WORLD["there"].get(names[-1], [])
    for entry in CHANCE.sample(pool, min(1, len(pool))):
        case.path_parameters = {**case.path_parameters, **entry}


def _met(call: dict[str, Any], body: dict[str, Any], media_type: str) -> dict[str, Any]:
    drawn = CHANCE.random()
    if drawn < UNTOUCHED:
        return body
    if drawn < UNTOUCHED + NAMED:
        return {**body, "model": call["model"]}
    good = {"model": call["model"], **call["body"]}
    for name, file in call["files"].items():
        content = Path(file["path"]).read_bytes()
        if media_type.startswith("multipart/"):
            good[name] = content
        else:
            uri = base64.b64encode(content).decode()
            good[name] = f"data:{file['type']};base64,{uri}"
    if media_type.startswith("multipart/"):
        good = {
            name: value if isinstance(value, bytes | str) else json.dumps(value)
            for name, value in good.items()
        }
    generated = {name: value for name, value in body.items() if CHANCE.random() < OWN_FIELDS}
    generated.pop("model", None)
    return {**good, **generated}
