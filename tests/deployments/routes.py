"""Route table of the app, for tests that check all routes."""

import functools
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from stoker.base.config import Settings
from stoker.inference.registry import OF_OTHER_APIS
from stoker.models.tasks.registry import TASKS
from stoker.server.app import create_app

OPEN = {"/health", "/ready", "/docs", "/openapi.json", "/v1/agent/openapi.json"}
"""Paths that need no key."""
PAGES = {"/", "/console", "/console/{path:path}"}
"""Paths of the console's pages. They need no key and exist only if the console was built."""
SIGNED_IN = "/console/session"
"""Path for browsers, which accepts a key in a body or a cookie: see `tests/console`."""
STREAMS = {"/v1/events"}
"""Paths that stream a response for as long as the client stays connected: see `tests/events`."""
CALLS = {"/info"}
"""Paths whose GET calls a model: see `tests/other_servers`."""
OPERATORS = {
    "/v1/accounts",
    "/v1/accounts/{account_id}",
    "/v1/accounts/{account_id}/credits",
    "/v1/nodes",
    "/metrics",
}
INFERENCE = {
    *CALLS,
    "/v1/models",
    "/v1/models/{model:path}",
    "/v1/console/links",
    "/v1/uploads",
    "/v1/batches",
    *STREAMS,
    *(path for task in TASKS.values() for path in task.paths),
    *(operation.path for operation in OF_OTHER_APIS),
}
"""Paths that a deployment's key may call."""
MADE = ("/v1/files", "/v1/videos", "/v1/batches", "/v1/responses/", "/v1/uploads/")
"""Paths below which a deployment's key reaches objects of its deployments, and its own uploads."""
BODIES = {
    "/v1/deployments/{deployment_id}/checks": {"checks": []},
    "/v1/deployments/{deployment_id}/versions": {"dtype": "float32"},
    "/v1/deployments/{deployment_id}/rollback": {},
    "/v1/deployments/{deployment_id}/traffic": {"weights": {"ver_1": 100}},
    "/v1/model-artifacts/{artifact_id}/imports": {"repo_id": "org/name"},
    "/v1/agent/{agent_id}/runs": {"input": "hello"},
    "/v1/api-keys/{key_id}": {"may_prioritize": True},
    "/v1/uploads/{file_upload_id}/complete": {"part_ids": ["filepart_1"]},
    "/v1/agent/{agent_id}/runs/{run_id}/tool-outputs": {
        "tool_outputs": [{"tool_call_id": "call_1", "output": "sunny"}]
    },
}
"""Request bodies by path, for requests on an object that cannot have an empty body."""


def is_inference(path: str) -> bool:
    return path in INFERENCE or path.startswith(MADE)


_PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")


@dataclass(frozen=True)
class Place:
    """HTTP method and path of a route."""

    method: str
    path: str

    @property
    def parameters(self) -> list[str]:
        return [match[1] for match in _PARAMETER.finditer(self.path)]

    def url(self, values: Mapping[str, str] | None = None) -> str:
        def value(match: re.Match[str]) -> str:
            return (values or {}).get(match[1], "1" if match[2] == "part" else "x")

        return _PARAMETER.sub(value, self.path)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@functools.cache
def app() -> FastAPI:
    with tempfile.TemporaryDirectory() as folder:
        return create_app(Settings(data_dir=Path(folder)))


@functools.cache
def places() -> list[Place]:
    all_places = [
        Place(method, str(route.path))
        for route in iter_route_contexts(app().routes)
        for method in sorted(route.methods or [])
    ]
    # The tests would prove nothing if the list missed the routers' routes.
    assert len(all_places) > 30
    return all_places


def keyed() -> list[Place]:
    return [place for place in places() if place.path not in OPEN | PAGES | {SIGNED_IN}]
