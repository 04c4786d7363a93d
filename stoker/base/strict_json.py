"""Strict JSON types of request fields: numbers, booleans and timestamps, without Python's
conversions.

By default, pydantic reads `true` as 1, "5" as 5, and 1 as a timestamp of 1970, contrary to the
OpenAPI document. Its own strict mode would reject 5.0 for an integer, and all values of forms,
which are text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

Texts = Literal["never", "in forms", "always"]
"""Determines when text is accepted for a number or boolean."""


def _number(value: Any, texts: bool) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and not texts):
        raise ValueError(f"must be a number, not {_shown(value)}")
    return value


def _truth(value: Any, texts: bool) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number or (isinstance(value, str) and not texts):
        raise ValueError(f"must be true or false, not {_shown(value)}")
    return value


def _moment(value: Any, _texts: bool) -> Any:
    if isinstance(value, bool | int | float):
        raise ValueError(f"must be a timestamp such as '2026-11-21T10:00:00Z', not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return "a text"
    return str(value).lower() if isinstance(value, bool) else f"the number {value}"


_CHECKS: Mapping[str, Callable[[Any, bool], Any]] = {
    "int": _number,
    "float": _number,
    "bool": _truth,
    "datetime": _moment,
}
"""Maps the type of a core schema to the check that rejects values of other types."""
_NOT_SCHEMAS = frozenset({"metadata", "serialization", "default", "expected"})


@dataclass(frozen=True)
class _Check:
    kind: str
    texts: Texts

    def __call__(self, value: Any, info: ValidationInfo) -> Any:
        # Values that are no longer JSON came from a form or a query.
        in_form = self.texts == "in forms" and info.mode == "python"
        return _CHECKS[self.kind](value, in_form or self.texts == "always")


MOST_DEPTH = 100
"""Maximum nesting depth of lists and objects in a field that accepts any JSON."""


def check_storable(value: Any, *, takes_nul: bool = False) -> None:
    """Raises `ValueError` for text that no database can store, and for JSON that is nested too
    deeply.
    """
    # Level by level: a depth for each part would double the time, which blocks the event loop.
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH + 1):
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                _check_text(node, takes_nul)
            elif isinstance(node, dict):
                members = cast("dict[str, Any]", node)
                below += members.keys()
                below += members.values()
            elif isinstance(node, list):
                below += cast("list[Any]", node)
        if not below:
            return
        level = below
    raise ValueError(f"is nested more than {MOST_DEPTH} levels deep")


def _check_text(text: str, takes_nul: bool) -> None:
    if not takes_nul and "\0" in text:
        raise ValueError("contains the character U+0000, which cannot be stored")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not valid text") from None


@dataclass(frozen=True)
class _Storable:
    takes_nul: bool

    def __call__(self, value: Any, _info: ValidationInfo) -> Any:
        check_storable(value, takes_nul=self.takes_nul)
        return value


@dataclass(frozen=True)
class _Measure:
    """Rejects an object with too many members before its members are checked."""

    most: int

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict) and len(cast("dict[str, Any]", value)) > self.most:
            count = len(cast("dict[str, Any]", value))
            raise ValueError(f"must have at most {self.most} members, not {count}")
        return cast("Any", value)


def _checked(schema: Any, model: "type[Strict]") -> Any:
    """Returns a model's core schema with a check before each number, boolean, timestamp and stored
    text.
    """
    if isinstance(schema, list | tuple):
        many = cast("list[Any] | tuple[Any, ...]", schema)
        return type(many)(_checked(item, model) for item in many)
    if not isinstance(schema, dict):
        return schema
    node = cast("dict[str, Any]", schema)
    kind = str(node.get("type"))
    if kind == "list":
        # Only one error is reported.
        node = node | {"fail_fast": True}
    if check := _check_of(kind, model):
        return core_schema.with_info_before_validator_function(check, cast("CoreSchema", node))
    if _has_checks(node, kind, model):
        return node
    checked = {
        name: value if name in _NOT_SCHEMAS else _checked(value, model)
        for name, value in node.items()
    }
    if kind == "dict" and "max_length" in node:
        measure = _Measure(node["max_length"])
        return core_schema.no_info_before_validator_function(measure, cast("CoreSchema", checked))
    return checked


def _check_of(kind: str, model: "type[Strict]") -> _Check | _Storable | None:
    """Returns the check that runs before values of a core schema, or None."""
    if kind in _CHECKS:
        return _Check(kind, model.texts_for_values)
    is_open = kind in ("str", "any")
    return _Storable(model.takes_nul) if model.is_stored and is_open else None


def _has_checks(node: dict[str, Any], kind: str, model: "type[Strict]") -> bool:
    """True if a node already has its checks, because another model has added them."""
    if kind == "model":
        return node.get("cls") is not model
    function = node["function"]["function"] if kind == "function-before" else None
    return isinstance(function, _Check | _Measure | _Storable)


class Strict(BaseModel):
    """Base of all requests."""

    texts_for_values: ClassVar[Texts] = "never"
    is_stored: ClassVar[bool] = False
    """True if fields are stored unencrypted. Text that a database cannot store is rejected."""
    takes_nul: ClassVar[bool] = False
    """True if fields are stored encrypted, so that U+0000 is allowed."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler, /
    ) -> CoreSchema:
        return cast("CoreSchema", _checked(handler(source), cls))
