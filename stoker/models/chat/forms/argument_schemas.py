"""Reads the schema of a call's arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stoker.models.chat.answers.call_formats.calls import UnwritableCallError
from stoker.models.chat.answers.call_formats.values import DEEPEST, property_schemas, resolved

Schema = Mapping[str, Any]

TEXT_ONLY = frozenset({"string"})
_QUOTED_ONLY = ("pattern", "format")
"""Keywords that a notation can enforce only for texts between quotes."""
_TYPES = frozenset(("null", "boolean", "number", "integer", "string", "array", "object"))
_COMBINED = ("anyOf", "oneOf", "allOf")
_VALUES = frozenset({"$ref", "const", "enum"})
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


def of_objects(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the schema of a call's arguments, limited to objects: other arguments are no call.

    Raises `UnwritableCallError` for a schema that allows no object.
    """
    return _of_objects(schema, schema, set(), 0)


def _of_objects(schema: Any, root: Schema, followed: set[str], depth: int) -> Any:
    """
    Args:
        followed: references that are not followed again.
        depth: the number of references and combinations around the schema.
    """
    if not isinstance(schema, dict) or depth > DEEPEST:
        return cast("Any", schema)
    own = cast("dict[str, Any]", schema)
    if "type" in own:
        return _typed_object(own)
    combined = next((key for key in _COMBINED if isinstance(own.get(key), list)), None)
    if combined is not None:
        return {**own, combined: _parts_of_objects(own[combined], combined, root, followed, depth)}
    reference: Any = own.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        target = resolved(reference, root)
        limited: Any = _of_objects(target, root, followed, depth + 1)
        if limited != target:
            beside = {key: value for key, value in own.items() if key != "$ref"}
            return {**beside, **limited}
    return own if _VALUES & own.keys() else {**own, "type": "object"}


def _typed_object(schema: Schema) -> Schema:
    given: Any = schema["type"]
    types = cast("list[Any]", given if isinstance(given, list) else [given])
    if not all(isinstance(name, str) and name in _TYPES for name in types):
        # llguidance refuses it, and the error names the place.
        return schema
    if "object" not in types:
        raise UnwritableCallError(
            f"the arguments of a call are an object, and the schema's 'type' is {given!r}; "
            "make it a property of an object"
        )
    return {**schema, "type": "object"}


def _parts_of_objects(
    parts: Sequence[Any], key: str, root: Schema, followed: set[str], depth: int
) -> Sequence[Any]:
    """Returns the parts, without those of `anyOf` and `oneOf` that allow no object.

    Raises `UnwritableCallError` if no object is allowed.
    """
    found: list[Any] = []
    refused: UnwritableCallError | None = None
    for part in parts:
        try:
            found.append(_of_objects(part, root, followed, depth + 1))
        except UnwritableCallError as error:
            refused = error
    if refused and (key == "allOf" or not found):
        raise refused
    return found


def fields(
    schema: Mapping[str, Any], *, strict: bool
) -> tuple[Mapping[str, Any], frozenset[str], bool]:
    """Returns the properties, the names of required properties, and whether others are allowed.

    Raises `UnwritableCallError` for a strict schema that is more than a list of properties.
    """
    combined = [key for key in (*_COMBINED, "$ref") if key in schema]
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
