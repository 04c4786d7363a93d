"""Checks the server's answers against the OpenAPI document that it serves."""

import functools
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema
from starlette.routing import compile_path

from tests.deployments.routes import app, places

METHODS = {"get", "put", "post", "delete", "patch", "head"}
HIDDEN = {"/docs", "/openapi.json", "/v1/agent/openapi.json"}
"""Paths that are served but are not in the OpenAPI document."""
MOST = 40
"""Maximum number of checked answers per operation and status. More would only take time."""
LARGEST = 256 * 1024
"""Maximum size in bytes of an answer that is checked against its schema."""
_CONVERTER = re.compile(r":\w+\}")


@dataclass(frozen=True)
class Operation:
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


answered: Counter[tuple[Operation, int]] = Counter()
"""Number of answers per operation and status that this process has checked against the document."""


headers: set[str] = set()
"""Names of the headers of these answers."""


class Client(httpx.Client):
    """Client that fails if an answer deviates from the OpenAPI document. Streams are not
    checked.
    """

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any):
        response = super().send(request, stream=stream, **options)
        if not stream:
            check(response)
        return response


@functools.cache
def document() -> dict[str, Any]:
    """Returns the OpenAPI document with closed objects: an answer may have no undocumented
    field.
    """
    return _closed(app().openapi())


def operations() -> list[Operation]:
    return [
        Operation(method.upper(), path)
        for path, item in document()["paths"].items()
        for method in item
        if method in METHODS
    ]


def check(response: httpx.Response) -> None:
    """Raises AssertionError if an answer's status, type or body is not in the document."""
    operation = operation_of(response.request.method, response.request.url.path)
    if operation is None:
        return
    answered[operation, response.status_code] += 1
    headers.update(response.headers)
    if answered[operation, response.status_code] > MOST:
        return
    label = f"{operation} answered {response.status_code}"
    responses = document()["paths"][operation.path][operation.method.lower()]["responses"]
    assert str(response.status_code) in responses, (
        f"{label}, which is not documented: {response.text}"
    )
    kinds = responses[str(response.status_code)].get("content", {})
    kind = response.headers.get("content-type", "").partition(";")[0]
    if operation.method == "HEAD" or not (kind or kinds):
        return
    assert kind in kinds, f"{label} as {kind or 'nothing'}, documented: {list(kinds)}"
    if kind == "application/json" and len(response.content) <= LARGEST:
        is_anthropic = "anthropic-version" in response.request.headers
        validator = _validator(operation, response.status_code, is_anthropic=is_anthropic)
        for error in validator.iter_errors(response.json()):
            place = "".join(f"[{part!r}]" for part in error.absolute_path)
            raise AssertionError(f"{label}, whose body{place} does not fit: {error.message[:1000]}")


@functools.cache
def _routes() -> list[tuple[str, re.Pattern[str], str]]:
    described = {operation.path for operation in operations()}
    routes = [
        (place.method, compile_path(place.path)[0], _CONVERTER.sub("}", place.path))
        for place in places()
    ]
    return [route for route in routes if route[2] in described]


def operation_of(method: str, path: str) -> Operation | None:
    """Returns the operation for a path with its values filled in, or None if no operation
    matches.
    """
    if path in HIDDEN:
        return None
    for served, pattern, template in _routes():
        if served == method and pattern.match(path):
            return Operation(method, template)
    return None


@functools.cache
def _validator(operation: Operation, status: int, *, is_anthropic: bool) -> Any:
    """Returns the validator of an answer. Of two formats, a request's header chooses one."""
    whole = document()
    operation_object = whole["paths"][operation.path][operation.method.lower()]
    schema = operation_object["responses"][str(status)]["content"]["application/json"]["schema"]
    if operation.path.startswith("/v1/models"):
        ours, theirs = schema["anyOf"]
        schema = theirs if is_anthropic else ours
    root = {"components": whole["components"], "allOf": [schema]}
    return jsonschema.Draft202012Validator(root)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    # A property may itself have the name `properties`.
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed
