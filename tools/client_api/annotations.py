"""Renders JSON schemas as Python annotations."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from tools.client_api.document import Schema, merged_name, reference

SCALARS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}


class TypeUse(Enum):
    """What the annotations describe. It decides how strict they are."""

    RESPONSE = "a Struct, which has to accept responses of newer servers"
    PARAMETER = "a body, which editors and type checkers compare with the schema"
    RESULT = "a plain JSON value"


NULL: Schema = {"type": "null"}


@dataclass
class Annotations:
    """Renders the schemas of one module."""

    use: TypeUse
    named: Callable[[str], str]
    """Maps the name of a schema to the name of its class."""
    inline: dict[str, Schema] = field(default_factory=dict[str, Schema])
    """Objects that were found inside other schemas, by their title."""

    def of(self, schema: Schema, *, media: bool = False) -> str:
        """Returns an annotation.

        Args:
            media: True if texts may also be files or bytes.
        """
        if name := merged_name(schema):
            return self.named(name)
        if "$ref" in schema:
            return self.named(reference(schema))
        if "const" in schema or "enum" in schema:
            return self._literal(schema)
        if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
            return self._union(choices, media=media)
        return self._typed(schema, media=media)

    def _literal(self, schema: Schema) -> str:
        if self.use is TypeUse.RESPONSE:
            return SCALARS[schema["type"]]
        return literal(schema)

    def _union(self, choices: list[Schema], *, media: bool) -> str:
        parts = dict.fromkeys(
            "None" if choice == NULL else self.of(choice, media=media) for choice in choices
        )
        objects = [part for part in parts if part.split("[")[0] not in SIMPLE]
        if self.use is TypeUse.RESPONSE and len(objects) > 1:
            # msgspec cannot tell Structs without tags apart.
            parts = dict.fromkeys(part for part in parts if part not in objects)
            parts["dict[str, Any]"] = None
        if "None" in parts:
            del parts["None"]
            parts["None"] = None
        return " | ".join(parts)

    def _typed(self, schema: Schema, *, media: bool) -> str:
        match schema.get("type"):
            case "array":
                return self._array(schema, media=media)
            case "object":
                return self._object(schema)
            case "string" if media:
                return "Media"
            case "null" if self.use is TypeUse.RESPONSE:
                # A newer server may fill it.
                return "Any"
            case str(name):
                return SCALARS[name]
            case _:
                return "Any"

    def _array(self, schema: Schema, *, media: bool) -> str:
        container = "Sequence" if self.use is TypeUse.PARAMETER else "list"
        if items := cast("list[Schema]", schema.get("prefixItems")):
            parts = [self.of(item) for item in items]
            if self.use is TypeUse.PARAMETER:
                return f"tuple[{', '.join(parts)}]"
            return f"list[{' | '.join(dict.fromkeys(parts))}]"
        return f"{container}[{self.of(schema.get('items', {}), media=media)}]"

    def _object(self, schema: Schema) -> str:
        if "properties" in schema and self.use is not TypeUse.RESPONSE and "title" in schema:
            self.inline[schema["title"]] = schema
            return str(schema["title"])
        values: Any = schema.get("additionalProperties")
        if patterns := schema.get("patternProperties"):
            values = next(iter(patterns.values()))
        container = "Mapping" if self.use is TypeUse.PARAMETER else "dict"
        value = self.of(cast("Schema", values)) if isinstance(values, dict) else "Any"
        return f"{container}[str, {value}]"


SIMPLE = {*SCALARS.values(), "list", "dict", "Any", "Literal", "tuple"}


def literal(schema: Schema) -> str:
    """Returns the values of an enumeration or a constant."""
    values: list[object] = schema["enum"] if "enum" in schema else [schema["const"]]
    return f"Literal[{', '.join(repr_of(value) for value in values)}]"


def repr_of(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
