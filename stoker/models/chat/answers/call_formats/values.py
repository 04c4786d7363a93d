"""Values of arguments that a model writes without JSON's quotes, typed by the tool's schema."""

import ast
import json
from collections.abc import Mapping
from typing import Any, cast

from stoker.models.chat.answers.call_formats.calls import MalformedCallError

CONSTANTS: Mapping[str, Any] = {
    **{"true": True, "false": False, "null": None},
    **{"True": True, "False": False, "None": None},
}
_ALL = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_NAMES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
    list: "array",
    dict: "object",
}
TEXT_ONLY = frozenset({"string"})
DEEPEST = 8
"""Maximum depth of nested references and combinations."""


def property_schemas(parameters: Any) -> Mapping[str, Any]:
    """Returns the schemas of a function's arguments, by their names."""
    if not isinstance(parameters, dict):
        return {}
    schema = cast("dict[str, Any]", parameters)
    schemas: dict[str, Any] = {}
    _collect(schema, schema, schemas, {}, 0)
    return schemas


def _collect(
    schema: Any,
    root: Mapping[str, Any],
    found: dict[str, Any],
    followed: dict[str, int],
    depth: int,
) -> None:
    """
    Args:
        followed: references and the depths at which they were followed. Without it, references
            that name each other take exponential time.
    """
    if not isinstance(schema, dict) or depth > DEEPEST:
        return
    body = cast("dict[str, Any]", schema)
    properties = body.get("properties")
    if isinstance(properties, dict):
        for name, value in cast("dict[str, Any]", properties).items():
            found.setdefault(name, value)
    for part in _parts(body):
        _collect(part, root, found, followed, depth + 1)
    reference: Any = body.get("$ref")
    if isinstance(reference, str) and followed.get(reference, DEEPEST) > depth:
        followed[reference] = depth
        _collect(resolved(reference, root), root, found, followed, depth + 1)


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    parts: list[Any] = []
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            parts += schema[key]
    return parts


def resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """Returns the part of a schema that a reference names. None if it does not exist."""
    if not reference.startswith("#"):
        return None
    target: Any = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = cast("dict[str, Any]", target).get(name) if isinstance(target, dict) else None
    return target


def types(schema: Any, root: Any) -> frozenset[str]:
    """Returns the JSON types that a schema allows.

    Args:
        root: the function's parameters, in which references are looked up.
    """
    return _types(schema, root, {}, 0)


def _types(
    schema: Any, root: Any, known: dict[tuple[str, int], frozenset[str]], depth: int
) -> frozenset[str]:
    """
    Args:
        known: the results for references, by their depths. Without it, references that name
            each other take exponential time.
    """
    if not isinstance(schema, dict) or depth > DEEPEST:
        return _ALL
    body = cast("dict[str, Any]", schema)
    allowed = _own_types(body)
    whole = cast("dict[str, Any]", root) if isinstance(root, dict) else {}
    for key in ("anyOf", "oneOf"):
        if isinstance(body.get(key), list):
            members: list[Any] = body[key]
            either = [_types(member, whole, known, depth + 1) for member in members]
            allowed &= frozenset[str]().union(*either)
    parts: list[Any] = body["allOf"] if isinstance(body.get("allOf"), list) else []
    for part in parts:
        allowed &= _types(part, whole, known, depth + 1)
    if isinstance(reference := body.get("$ref"), str):
        if (reference, depth) not in known:
            target = resolved(reference, whole)
            known[reference, depth] = _types(target, whole, known, depth + 1)
        allowed &= known[reference, depth]
    if body.get("nullable") is True:
        allowed |= {"null"}
    return allowed


def _kind(value: Any) -> str:
    kind: type = value.__class__
    return _NAMES.get(kind, "")


def _own_types(schema: Mapping[str, Any]) -> frozenset[str]:
    declared: Any = schema.get("type")
    if isinstance(declared, str):
        kinds = frozenset({declared})
    elif isinstance(declared, list):
        kinds = frozenset(str(item) for item in cast("list[Any]", declared))
    elif isinstance(schema.get("enum"), list):
        values: list[Any] = schema["enum"]
        kinds = frozenset(_kind(item) for item in values)
    elif "const" in schema:
        kinds = frozenset({_kind(schema["const"])})
    elif isinstance(schema.get("properties"), dict):
        kinds = frozenset({"object"})
    elif "items" in schema:
        kinds = frozenset({"array"})
    else:
        return _ALL
    return kinds | {"integer"} if "number" in kinds else kinds


def typed(text: str, allowed: frozenset[str], *, python: bool = True) -> Any:
    """Returns the value of a text without quotes.

    A text stays a text if only texts are allowed, or if it is no value of another allowed type.

    Args:
        allowed: JSON types.
        python: True if Python's spelling of a value is also accepted.
    """
    if allowed == TEXT_ONLY:
        return text
    try:
        value = _parsed(text.strip(), python=python)
    except (MalformedCallError, ValueError, RecursionError, MemoryError, SyntaxError):
        return text
    if allowed == _ALL:
        # The type is unknown.
        return text if isinstance(value, str) else value
    if isinstance(value, float) and "number" not in allowed and value.is_integer():
        value = int(value)
    kind = _kind(value)
    if kind in allowed and (kind != "string" or "string" not in allowed):
        return value
    return text if "string" in allowed or kind == "" else value


def _parsed(text: str, *, python: bool) -> Any:
    if text in CONSTANTS:
        return CONSTANTS[text]
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError:
        if not python:
            raise
        return python_value(ast.parse(text, mode="eval").body)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def python_value(node: ast.expr) -> Any:
    """Returns the value of a Python literal, if JSON can express it. Executes no code.

    Raises `MalformedCallError`.
    """
    match node:
        case ast.Constant(value=str() as text):
            # JSON's escapes write characters beyond the first plane as pairs.
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case ast.Constant(value=bool() | int() | float() | None as value):
            return value
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [python_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {
                _python_key(key): python_value(value)
                for key, value in zip(keys, values, strict=True)
            }
        case _:
            raise MalformedCallError


def _python_key(node: ast.expr | None) -> str:
    key = python_value(node) if node is not None else None
    if not isinstance(key, str):
        raise MalformedCallError
    return key
