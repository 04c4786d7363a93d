"""Reads the schema of a call's arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stoker.models.chat.answers.call_formats.calls import UnwritableCallError
from stoker.models.chat.answers.call_formats.values import DEEPEST, property_schemas, resolved

Schema = Mapping[str, Any]

TEXT_ONLY = frozenset({"string"})
_QUOTED_ONLY = ("pattern", "format")
"""Keywords that a notation can enforce only for quoted texts."""
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
    """Returns the schema of a call's arguments, limited to objects, because calls have no other
    arguments.

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
    keywords = cast("dict[str, Any]", schema)
    if "type" in keywords:
        return _typed_object(keywords)
    combined = next((key for key in _COMBINED if isinstance(keywords.get(key), list)), None)
    if combined is not None:
        return {
            **keywords,
            combined: _parts_of_objects(keywords[combined], combined, root, followed, depth),
        }
    reference: Any = keywords.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        target = resolved(reference, root)
        limited: Any = _of_objects(target, root, followed, depth + 1)
        if limited != target:
            beside = {key: value for key, value in keywords.items() if key != "$ref"}
            return {**beside, **limited}
    return keywords if _VALUES & keywords.keys() else {**keywords, "type": "object"}


def _typed_object(schema: Schema) -> Schema:
    declared: Any = schema["type"]
    types = cast("list[Any]", declared if isinstance(declared, list) else [declared])
    if not all(isinstance(name, str) and name in _TYPES for name in types):
        # llguidance rejects it, and the error names the location.
        return schema
    if "object" not in types:
        raise UnwritableCallError(
            f"the schema's 'type' is {declared!r}, but the arguments of a call are an "
            "object; make it a property of an object"
        )
    return {**schema, "type": "object"}


def _parts_of_objects(
    parts: Sequence[Any], key: str, root: Schema, followed: set[str], depth: int
) -> Sequence[Any]:
    """Returns the parts, without those of `anyOf` and `oneOf` that allow no object.

    Raises `UnwritableCallError` if no object is allowed.
    """
    remaining: list[Any] = []
    refused: UnwritableCallError | None = None
    for part in parts:
        try:
            remaining.append(_of_objects(part, root, followed, depth + 1))
        except UnwritableCallError as error:
            refused = error
    if refused and (key == "allOf" or not remaining):
        raise refused
    return remaining


def fields(
    schema: Mapping[str, Any], *, strict: bool
) -> tuple[Mapping[str, Any], frozenset[str], bool]:
    """Returns the properties, the names of required properties, and True if other properties are
    allowed.

    Raises `UnwritableCallError` for a strict schema that is more than a list of properties.
    """
    combined = [key for key in (*_COMBINED, "$ref") if key in schema]
    if strict and combined:
        raise UnwritableCallError(
            f"this model's notation does not support '{combined[0]}' for the arguments as a whole"
        )
    properties: dict[str, Any] = dict(property_schemas(schema))
    declared: Any = schema.get("required")
    required = (
        [str(name) for name in cast("list[Any]", declared)] if isinstance(declared, list) else []
    )
    for name in required:
        properties.setdefault(name, {})
    open_ended = schema.get("additionalProperties", True) is not False
    return properties, frozenset(required), open_ended and not strict


def refuse_unquoted_limits(schema: Any) -> None:
    """Raises `UnwritableCallError` if a text's schema has a keyword that needs quotes."""
    keywords = object_of(schema)
    if unsupported := [key for key in _QUOTED_ONLY if key in keywords]:
        raise UnwritableCallError(
            "this model writes strings without quotes, which cannot be limited by "
            f"'{unsupported[0]}'"
        )


def object_of(schema: Any) -> dict[str, Any]:
    """Returns a schema's keywords. The schema may be a boolean, which has none."""
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def choices_of(schema: Any) -> Sequence[Any] | None:
    """Returns the texts of a schema's `enum` or `const`. Returns None if other values are valid."""
    keywords = object_of(schema)
    choices: Any = keywords.get("enum", [keywords["const"]] if "const" in keywords else None)
    if not isinstance(choices, list) or not all(
        isinstance(choice, str) for choice in cast("list[Any]", choices)
    ):
        return None
    return cast("list[Any]", choices)


def with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns a property's schema with the definitions of its root schema."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**cast("dict[str, Any]", schema), **shared} if isinstance(schema, dict) else schema
