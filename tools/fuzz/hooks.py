"""Loaded by schemathesis: has made-up calls meet what there is.

Of itself it makes up names and identifiers that nothing has, and media that are none: most calls
would end where they begin. So most of them get a model that serves their endpoint, or the fields
of a good call with some of their own in them; and identifiers of what earlier calls have made.
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
"""Shares of calls of a model: left as they are, and those that get a name alone."""
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
"""What is posted there changes what others need."""

made: dict[str, list[dict[str, str]]] = {}
"""Parameter → identifiers of what was made, each with those above it."""


@schemathesis.hook
def before_load_schema(_context: Any, raw_schema: dict[str, Any]) -> None:
    """Take away what it does not understand: schemas of streams, which are of the whole body and
    would be held against each event, and pairs.
    """
    _without_pairs(raw_schema)
    operations = [one for path in raw_schema["paths"].values() for one in path.values()]
    for operation in operations:
        for response in operation["responses"].values():
            response.get("content", {}).get("text/event-stream", {}).pop("schema", None)


def _without_pairs(schema: Any) -> None:
    if isinstance(schema, dict):
        if "prefixItems" in schema:
            schema["items"] = {"anyOf": schema.pop("prefixItems")}
        schema = [*schema.values()]
    for one in schema if isinstance(schema, list) else ():
        _without_pairs(one)


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
    found = response.json()
    above = {
        one: value for one, value in (case.path_parameters or {}).items() if isinstance(value, str)
    }
    kept = made.setdefault(name, [])
    kept.append({**above, name: found.get("id") or found.get("upload_id")})
    del kept[:-MOST_KEPT]


def _find(case: Any) -> None:
    """Have its path name what there is."""
    parameters = case.path_parameters or {}
    if parameters.get("key_id") == WORLD["own_key_id"] and case.method.upper() != "GET":
        # It is in the answers, and whoever revokes it learns nothing more.
        case.path_parameters = {**parameters, "key_id": "key_0"}
    names = [one for one in parameters if one in {*MADE_BY.values()}]
    # A run's events are told until it ends, which may be never.
    if not names or case.path.endswith("/events") or CHANCE.random() > KNOWN:
        return
    pool = list(made.get(names[-1], ()))
    if case.method.upper() in READS and not case.path.endswith(ENDS):
        pool += WORLD["there"].get(names[-1], [])
    for one in CHANCE.sample(pool, min(1, len(pool))):
        case.path_parameters = {**case.path_parameters, **one}


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
    own = {name: value for name, value in body.items() if CHANCE.random() < OWN_FIELDS}
    own.pop("model", None)
    return {**good, **own}
