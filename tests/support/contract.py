"""What the server answers, held against the OpenAPI document that it serves."""

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
"""Served, and not described by themselves."""
MOST = 40
"""Answers of one operation and status that are looked at: more of them would only take time."""
LARGEST = 256 * 1024
"""Answers larger than this, in bytes, are not looked into."""
_CONVERTER = re.compile(r":\w+\}")


@dataclass(frozen=True)
class Operation:
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


answered: Counter[tuple[Operation, int]] = Counter()
"""Operation and status → answers that were held against the document, in this process."""


headers: set[str] = set()
"""Names of the headers that these answers had."""


class Client(httpx.Client):
    """A client that fails where an answer is not what the document says. Streams pass unread."""

    def send(self, request: httpx.Request, *, stream: bool = False, **options: Any):
        response = super().send(request, stream=stream, **options)
        if not stream:
            check(response)
        return response


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI document, its objects closed: an answer has no field that it does not name."""
    return _closed(app().openapi())


def operations() -> list[Operation]:
    return [
        Operation(method.upper(), path)
        for path, item in document()["paths"].items()
        for method in item
        if method in METHODS
    ]


def check(response: httpx.Response) -> None:
    """Raise AssertionError where an answer's status, type or body is not in the document."""
    operation = operation_of(response.request.method, response.request.url.path)
    if operation is None:
        return
    answered[operation, response.status_code] += 1
    headers.update(response.headers)
    if answered[operation, response.status_code] > MOST:
        return
    what = f"{operation} answered {response.status_code}"
    found = document()["paths"][operation.path][operation.method.lower()]["responses"]
    assert str(response.status_code) in found, f"{what}, which is not documented: {response.text}"
    kinds = found[str(response.status_code)].get("content", {})
    kind = response.headers.get("content-type", "").partition(";")[0]
    if operation.method == "HEAD" or not (kind or kinds):
        return
    assert kind in kinds, f"{what} as {kind or 'nothing'}, documented: {list(kinds)}"
    if kind == "application/json" and len(response.content) <= LARGEST:
        validator = _validator(operation, response.status_code)
        for error in validator.iter_errors(response.json()):
            place = "".join(f"[{part!r}]" for part in error.absolute_path)
            raise AssertionError(f"{what}, whose body{place} does not fit: {error.message[:1000]}")


@functools.cache
def _routes() -> list[tuple[str, re.Pattern[str], str]]:
    described = {operation.path for operation in operations()}
    found = [
        (place.method, compile_path(place.path)[0], _CONVERTER.sub("}", place.path))
        for place in places()
    ]
    return [one for one in found if one[2] in described]


def operation_of(method: str, path: str) -> Operation | None:
    """The operation of a path with its values; None: there is none."""
    if path in HIDDEN:
        return None
    for served, pattern, template in _routes():
        if served == method and pattern.match(path):
            return Operation(method, template)
    return None


@functools.cache
def _validator(operation: Operation, status: int) -> Any:
    whole = document()
    operation_object = whole["paths"][operation.path][operation.method.lower()]
    schema = operation_object["responses"][str(status)]["content"]["application/json"]["schema"]
    root = {"components": whole["components"], "allOf": [schema]}
    return jsonschema.Draft202012Validator(root)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _closed(value) for name, value in schema.items()}
    # A property may be called `properties`, too.
    if isinstance(found.get("properties"), dict) and found.get("type") == "object":
        found.setdefault("additionalProperties", False)
    return found
