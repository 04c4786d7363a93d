"""Closes the objects of a JSON schema: strict callers expect no members but those that it names.

JSON Schema lets an object that says nothing of others have any. Only what is silent is closed:
`additionalProperties` stays as it was given, and objects that name no members stay free. Where
several schemas speak of one object (`allOf`, `anyOf` beside `properties`, a `$ref` beside either),
all of them together say which members it has, as with `unevaluatedProperties` of
https://json-schema.org/draft/2020-12/json-schema-core#section-11.3; none of them is closed alone.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, cast
from urllib.parse import unquote

Schema = dict[str, Any]

_ONE = ("items", "additionalItems", "contains", "additionalProperties", "unevaluatedItems")
"""Keywords whose value is the schema of inner values."""
_LISTS = ("items", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_EITHER = ("anyOf", "oneOf")
_SPEAKING = (
    *("$ref", "allOf", *_EITHER),
    *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
)
"""Keywords that define the members of an object."""
_BEYOND = ("if", "then", "else", "dependentSchemas", "$dynamicRef", "$recursiveRef")
"""Keywords whose members depend on the value."""


def closed(schema: Mapping[str, Any]) -> Schema:
    """Returns a schema of the same values without members that it does not name."""
    return _Closing(dict(schema)).result()


class _Closing:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._open: dict[str, str] = {}
        """A reference → the name of an open copy of its target."""
        self._waiting: deque[str] = deque()

    def result(self) -> Schema:
        found = self._close(self._root)
        copies: Schema = {}
        while self._waiting:
            reference = self._waiting.popleft()
            target = _without(self._target(reference), "$defs", "definitions")
            copies[self._open[reference]] = self._opened(target)
        if copies:
            own = found.get("$defs")
            found["$defs"] = {**(cast("Schema", own) if isinstance(own, dict) else {}), **copies}
        return found

    def _close(self, given: Any, beside: "_Members | None" = None) -> Any:
        """
        Args:
            beside: members that other schemas name for the same object.
        """
        if not isinstance(given, dict):
            return given
        schema = cast("Schema", given)
        if beside is None and (key := _only(schema)):
            # The target of the reference is closed at its own place.
            members = [self._close(one) for one in _listed(schema, key)]
            return self._within(schema) | ({key: members} if members else {})
        if not _is_merged(schema):
            members = self._members([schema], beside)
            return self._limited(self._within(schema), members)
        return self._merged(schema, beside)

    def _merged(self, schema: Schema, beside: "_Members | None") -> Schema:
        """Closes a schema that describes an object together with other schemas."""
        members = self._members([schema], beside)
        if members.free:
            return self._opened(schema)
        key = next((one for one in _EITHER if _listed(schema, one)), None)
        common = self._members([_without(schema, *_EITHER)], beside)
        if key is None or common.names == members.names:
            return self._limited(self._opened(schema), members)
        if sum(one in schema for one in _EITHER) > 1:
            return self._limited(self._opened(schema), members)
        alternatives = [self._close(one, common) for one in _listed(schema, key)]
        return self._opened(_without(schema, key)) | {key: alternatives}

    def _limited(self, schema: Schema, members: "_Members") -> Schema:
        """Limits an object to these members, unless they are free."""
        if members.free or not members.named:
            return schema
        found = _without(schema, "unevaluatedProperties")
        for keyword, names in (("properties", members.names), ("patternProperties", members.like)):
            own = found.get(keyword, {})
            if names and isinstance(own, dict):
                found[keyword] = {**dict.fromkeys(names, True), **cast("Schema", own)}
        return found | {"additionalProperties": False}

    def _opened(self, given: Any) -> Any:
        """Returns a schema without its own limit. The schemas of its members are closed."""
        if not isinstance(given, dict):
            return given
        schema = cast("Schema", given)
        found = self._within(schema)
        for key in ("allOf", *_EITHER):
            if members := _listed(schema, key):
                found[key] = [self._opened(one) for one in members]
        reference = schema.get("$ref")
        if isinstance(reference, str) and isinstance(self._target(reference), dict):
            found["$ref"] = f"#/$defs/{self._copy(reference)}"
        return found

    def _copy(self, reference: str) -> str:
        """Returns the name of an open copy. `result` makes the copy."""
        if reference not in self._open:
            taken: Any = self._root.get("$defs") or {}
            names = (f"open-{number}" for number in count(len(self._open)))
            name = next(one for one in names if one not in taken)
            self._open[reference] = name
            self._waiting.append(reference)
        return self._open[reference]

    def _within(self, schema: Schema) -> Schema:
        """Returns a schema whose inner values are closed."""
        found = dict(schema)
        for key in _ONE:
            if isinstance(schema.get(key), dict):
                found[key] = self._close(schema[key])
        for key in _LISTS:
            if members := _listed(schema, key):
                found[key] = [self._close(one) for one in members]
        for key in _NAMED:
            if isinstance(schema.get(key), dict):
                named = cast("Schema", schema[key])
                found[key] = {name: self._close(one) for name, one in named.items()}
        return found

    def _members(self, schemas: Iterable[Any], beside: "_Members | None") -> "_Members":
        """Returns the members that several schemas name for the same object."""
        found = _Members(beside)
        waiting, seen = deque(schemas), set[str]()
        while waiting:
            one = waiting.popleft()
            if not isinstance(one, dict):
                continue
            schema = cast("Schema", one)
            found.add(schema)
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                waiting.append(self._target(reference))
            for key in ("allOf", *_EITHER):
                waiting.extend(_listed(schema, key))
        return found

    def _target(self, reference: str) -> Any:
        """Returns the target of a reference within the schema, or None."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        found: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = cast("Schema", found).get(name)
            elif isinstance(found, list) and name.isdecimal():
                items = cast("list[Any]", found)
                found = items[int(name)] if int(name) < len(items) else None
            else:
                return None
        return found


class _Members:
    """The members that schemas name for an object."""

    def __init__(self, beside: "_Members | None") -> None:
        self.names: dict[str, None] = dict(beside.names) if beside else {}
        self.like: dict[str, None] = dict(beside.like) if beside else {}
        """Patterns of names."""
        self.named = beside.named if beside else False
        """Whether a schema lists names. The list may be empty."""
        self.free = beside.free if beside else False
        """Whether other keywords than names decide which members are allowed."""

    def add(self, schema: Schema) -> None:
        for found, key in ((self.names, "properties"), (self.like, "patternProperties")):
            if isinstance(schema.get(key), dict):
                found.update(dict.fromkeys(schema[key]))
        self.named |= isinstance(schema.get("properties"), dict)
        self.free |= any(key in schema for key in ("additionalProperties", *_BEYOND))
        self.free |= schema.get("unevaluatedProperties", False) is not False


def _is_merged(schema: Schema) -> bool:
    return any(key in schema for key in ("allOf", "$ref", *_EITHER))


def _only(schema: Schema) -> str | None:
    """Returns the only keyword of an object that refers to other schemas, or None."""
    found = [key for key in _SPEAKING if key in schema]
    if len(found) != 1 or found[0] not in ("$ref", "allOf", *_EITHER):
        return None
    return None if found[0] == "allOf" and len(_listed(schema, "allOf")) > 1 else found[0]


def _listed(schema: Schema, key: str) -> list[Any]:
    """Returns a keyword's list. The compiler refuses other values."""
    found = schema.get(key)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _without(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}
