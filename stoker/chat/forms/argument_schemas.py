"""Reads the schema of a call's arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stoker.chat.answers.call_formats.calls import UnwritableCallError
from stoker.chat.answers.call_formats.values import property_schemas

TEXT_ONLY = frozenset({"string"})
_QUOTED_ONLY = ("pattern", "format")
"""Keywords that a notation can enforce only for texts between quotes."""
_NO_SCHEMAS = frozenset({"const", "enum", "default", "examples"})


def moved(schema: Any, name: str) -> Any:
    """Returns a schema for use as a property of another. References to its root are rewritten."""
    if isinstance(schema, list):
        return [moved(item, name) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            copy[key] = f"#/properties/{name}{value[1:]}"
        else:
            copy[key] = value if key in _NO_SCHEMAS else moved(value, name)
    return copy


def fields(
    schema: Mapping[str, Any], *, strict: bool
) -> tuple[Mapping[str, Any], frozenset[str], bool]:
    """Returns the properties, the names of required properties, and whether others are allowed.

    Raises `UnwritableCallError` for a strict schema that is more than a list of properties.
    """
    combined = [key for key in ("anyOf", "oneOf", "allOf", "$ref") if key in schema]
    if strict and combined:
        raise UnwritableCallError(f"this model's notation has no '{combined[0]}' of all arguments")
    properties: dict[str, Any] = dict(property_schemas(schema))
    given: Any = schema.get("required")
    required = [str(name) for name in cast("list[Any]", given)] if isinstance(given, list) else []
    for name in required:
        properties.setdefault(name, {})
    open_ended = schema.get("additionalProperties", True) is not False
    return properties, frozenset(required), open_ended and not strict


def refuse_unquoted_limits(schema: Any) -> None:
    """Raises `UnwritableCallError` if a text's schema has a keyword that needs quotes."""
    own = object_of(schema)
    if wanted := [key for key in _QUOTED_ONLY if key in own]:
        raise UnwritableCallError(
            f"this model writes texts without quotes, which cannot be held to a '{wanted[0]}'"
        )


def object_of(schema: Any) -> dict[str, Any]:
    """Returns a schema's keywords. The schema may be a boolean, which has none."""
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def choices_of(schema: Any) -> Sequence[Any] | None:
    """Returns the texts of a schema's `enum` or `const`. Returns None if other values are valid."""
    own = object_of(schema)
    choices: Any = own.get("enum", [own["const"]] if "const" in own else None)
    if not isinstance(choices, list) or not all(
        isinstance(choice, str) for choice in cast("list[Any]", choices)
    ):
        return None
    return cast("list[Any]", choices)


def with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns a property's schema with the definitions of its root schema."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**cast("dict[str, Any]", schema), **shared} if isinstance(schema, dict) else schema
