"""Reads operations and schemas of the server's OpenAPI document."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tools.client_api.table import MERGED

Schema = dict[str, Any]

PATH = Path(__file__).parents[2] / "frontend" / "openapi.json"
_REFERENCE = "#/components/schemas/"
_JSON = "application/json"


@dataclass(frozen=True)
class Operation:
    """An operation of the API."""

    method: str
    path: str
    content: Schema

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def path_parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    @property
    def query(self) -> dict[str, Schema]:
        """Parameter name -> its description."""
        return {p["name"]: p for p in self._parameters if p["in"] == "query"}

    @property
    def is_idempotent(self) -> bool:
        return any(p["name"] == "idempotency-key" for p in self._parameters)

    @property
    def body(self) -> str | None:
        """Name of the schema of the body, if any."""
        content = self.content.get("requestBody", {}).get("content", {})
        schema: Schema = content.get(_JSON, {}).get("schema", {})
        choices: list[Schema] = schema.get("anyOf", [schema])
        return next((reference(choice) for choice in choices if "$ref" in choice), None)

    @property
    def response(self) -> Schema | None:
        """Schema of the successful JSON response, if any. Of several formats, Stoker's own."""
        schema: Schema | None = self._success.get(_JSON, {}).get("schema")
        formats: list[Schema] = (schema or {}).get("anyOf", [])
        return formats[0] if formats and all("$ref" in each for each in formats) else schema

    @property
    def is_text(self) -> bool:
        return "text/markdown" in self._success

    @property
    def summary(self) -> str:
        return f"{self.content['summary']}."

    @property
    def text(self) -> str:
        """Returns what the operation does, in one sentence."""
        text: str = self.content.get("description") or self.content["summary"]
        return " ".join(text.partition("\n\n")[0].split()).rstrip(".") + "."

    @property
    def _parameters(self) -> list[Schema]:
        return self.content.get("parameters", [])

    @property
    def _success(self) -> Schema:
        responses: Mapping[str, Schema] = self.content["responses"]
        return next(r.get("content", {}) for status, r in responses.items() if status[0] == "2")


class Document:
    """The server's OpenAPI document."""

    def __init__(self, content: Schema) -> None:
        self._content = content

    @classmethod
    def read(cls) -> "Document":
        return cls(json.loads(PATH.read_text()))

    @cached_property
    def operations(self) -> dict[str, Operation]:
        """Method and path -> operation."""
        paths: Mapping[str, Mapping[str, Schema]] = self._content["paths"]
        operations = [
            Operation(method.upper(), path, content)
            for path, item in paths.items()
            for method, content in item.items()
            if method != "parameters"
        ]
        return {operation.key: operation for operation in operations}

    @cached_property
    def schemas(self) -> dict[str, Schema]:
        schemas: dict[str, Schema] = dict(self._content["components"]["schemas"])
        return schemas | {name: _merged(schemas, parts) for name, parts in MERGED.items()}

    def elements(self, operation: Operation) -> Schema | None:
        """Returns the schema of the objects that an operation lists. None if it lists none."""
        response = operation.response
        if not response or "$ref" not in response:
            return None
        properties: Mapping[str, Schema] = self.schemas[reference(response)]["properties"]
        items: Schema = properties.get("data", {}).get("items", {})
        is_list = properties.get("object", {}).get("const") == "list"
        return items if is_list and references(items) else None

    def reached(self, schema: Schema) -> set[str]:
        """Returns the names of the schemas that a schema refers to, directly or not."""
        names, pending = set[str](), [schema]
        while pending:
            for name in references(pending.pop()):
                if name not in names:
                    names.add(name)
                    pending.append(self.schemas[name])
        return names

    def ordered(self, names: set[str]) -> list[str]:
        """Returns names so that each schema follows the schemas that it refers to."""
        order: dict[str, None] = {}

        def visit(name: str) -> None:
            for other in sorted(references(self.schemas[name])):
                if other in names and other not in order and other != name:
                    visit(other)
            order.setdefault(name)

        for name in sorted(names):
            visit(name)
        return list(order)


def reference(schema: Schema) -> str:
    """Returns the name of the schema that a reference names."""
    return str(schema["$ref"]).removeprefix(_REFERENCE)


def references(schema: Schema) -> set[str]:
    """Returns the names of the schemas that a schema refers to directly."""
    names = merged_name(schema)
    if names:
        return {names}
    found = {reference(schema)} if "$ref" in schema else set[str]()
    for part in _parts(schema):
        found |= references(part)
    return found


def merged_name(schema: Schema) -> str | None:
    """Returns the Struct that stands for a union of schemas, if any."""
    choices = cast("list[Schema]", schema.get("anyOf", ()))
    names = tuple(reference(choice) for choice in choices if "$ref" in choice)
    return next((name for name, parts in MERGED.items() if parts == names), None)


def _parts(schema: Schema) -> Iterator[Schema]:
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        yield from schema.get(key, ())
    for key in ("properties", "patternProperties"):
        yield from schema.get(key, {}).values()
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield schema[key]


def _merged(schemas: Mapping[str, Schema], parts: tuple[str, ...]) -> Schema:
    properties: dict[str, Schema] = {}
    for part in parts:
        for name, schema in schemas[part]["properties"].items():
            known = properties.get(name)
            # A field whose schemas differ is a text in all of them.
            properties[name] = schema if known in (None, schema) else {"type": "string"}
    required = set(properties)
    for part in parts:
        required &= set(schemas[part]["required"])
    description = " ".join(schemas[part]["description"] for part in parts)
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": sorted(required),
    }
