"""Checks if a value fits a JSON schema, for the few keywords that the tests use."""

import re
from collections.abc import Mapping
from typing import Any, cast

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = frozenset({"type", "enum", "const", "anyOf", "$ref", "$defs", "description"}) | {
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minLength", "maxLength", "minimum", "maximum", "pattern"),
}


def fits(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> bool:
    root = schema if root is None else root
    assert set(schema) <= KNOWN, "a keyword that this function would not check"
    if "$ref" in schema:
        return fits(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        return any(fits(value, subschema, root) for subschema in schema["anyOf"])
    if "const" in schema:
        return value == schema["const"]
    if "enum" in schema:
        return value in schema["enum"]
    kind: str = schema.get("type", "")
    if kind and (
        not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")
    ):
        return False
    if isinstance(value, dict):
        return _object_fits(cast("dict[str, Any]", value), schema, root)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(items))
        subschema = schema.get("items", {})
        return least <= len(items) <= most and all(fits(item, subschema, root) for item in items)
    if isinstance(value, str):
        least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
        return least <= len(value) <= most and bool(re.search(schema.get("pattern", ""), value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    return True


def _object_fits(value: dict[str, Any], schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not set(schema.get("required", ())) <= set(value):
        return False
    if schema.get("additionalProperties") is False and not set(value) <= set(properties):
        return False
    return all(
        fits(value[name], subschema, root)
        for name, subschema in properties.items()
        if name in value
    )
