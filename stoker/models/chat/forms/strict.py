"""Closes the objects of a JSON schema, because strict callers expect only the members that it
names.

JSON Schema allows any other members in an object unless the schema restricts them. Only
unrestricted objects are closed. An existing `additionalProperties` is unchanged, and objects
without named members stay free. If several schemas describe one object (`allOf`, `anyOf` next to
`properties`, a `$ref` next to either), all of them together define its members. That corresponds to
`unevaluatedProperties` of https://json-schema.org/draft/2020-12/json-schema-core#section-11.3. None
of them is closed alone.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, cast
from urllib.parse import unquote

Schema = dict[str, Any]

_ONE = ("items", "additionalItems", "contains", "additionalProperties", "unevaluatedItems")
"""Keywords with the schema of inner values as their value."""
_LISTS = ("items", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_EITHER = ("anyOf", "oneOf")
_SPEAKING = (
    *("$ref", "allOf", *_EITHER),
    *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties"),
)
"""Keywords that define the members of an object."""
_BEYOND = ("if", "then", "else", "dependentSchemas", "$dynamicRef", "$recursiveRef")
"""Keywords with members that depend on the value."""


def closed(schema: Mapping[str, Any]) -> Schema:
    """Returns a schema of the same values, but without members that it does not name."""
    return _Closing(dict(schema)).result()


class _Closing:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._open: dict[str, str] = {}
        """Maps a reference to the name of an open copy of its target."""
        self._waiting: deque[str] = deque()

    def result(self) -> Schema:
        root_schema = self._close(self._root)
        copies: Schema = {}
        while self._waiting:
            reference = self._waiting.popleft()
            target = _without(self._target(reference), "$defs", "definitions")
            copies[self._open[reference]] = self._opened(target)
        if copies:
            definitions = root_schema.get("$defs")
            root_schema["$defs"] = {
                **(cast("Schema", definitions) if isinstance(definitions, dict) else {}),
                **copies,
            }
        return root_schema

    def _close(self, given: Any, beside: "_Members | None" = None) -> Any:
        """
        Args:
            beside: members that other schemas name for the same object.
        """
        if not isinstance(given, dict):
            return given
        schema = cast("Schema", given)
        if beside is None and (key := _only(schema)):
            # The target of the reference is closed at its own location.
            members = [self._close(part) for part in _listed(schema, key)]
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
        key = next((item for item in _EITHER if _listed(schema, item)), None)
        common = self._members([_without(schema, *_EITHER)], beside)
        if key is None or common.names == members.names:
            return self._limited(self._opened(schema), members)
        if sum(item in schema for item in _EITHER) > 1:
            return self._limited(self._opened(schema), members)
        alternatives = [self._close(item, common) for item in _listed(schema, key)]
        return self._opened(_without(schema, key)) | {key: alternatives}

    def _limited(self, schema: Schema, members: "_Members") -> Schema:
        """Limits an object to these members, unless they are free."""
        if members.free or not members.named:
            return schema
        limited = _without(schema, "unevaluatedProperties")
        for keyword, names in (("properties", members.names), ("patternProperties", members.like)):
            existing = limited.get(keyword, {})
            if names and isinstance(existing, dict):
                limited[keyword] = {**dict.fromkeys(names, True), **cast("Schema", existing)}
        return limited | {"additionalProperties": False}

    def _opened(self, given: Any) -> Any:
        """Returns a schema without its own limit. The schemas of its members are closed."""
        if not isinstance(given, dict):
            return given
        schema = cast("Schema", given)
        opened = self._within(schema)
        for key in ("allOf", *_EITHER):
            if members := _listed(schema, key):
                opened[key] = [self._opened(member) for member in members]
        reference = schema.get("$ref")
        if isinstance(reference, str) and isinstance(self._target(reference), dict):
            opened["$ref"] = f"#/$defs/{self._copy(reference)}"
        return opened

    def _copy(self, reference: str) -> str:
        """Returns the name of an open copy. `result` makes the copy."""
        if reference not in self._open:
            definitions: Any = self._root.get("$defs") or {}
            names = (f"open-{number}" for number in count(len(self._open)))
            name = next(candidate for candidate in names if candidate not in definitions)
            self._open[reference] = name
            self._waiting.append(reference)
        return self._open[reference]

    def _within(self, schema: Schema) -> Schema:
        """Returns a schema with closed inner values."""
        result = dict(schema)
        for key in _ONE:
            if isinstance(schema.get(key), dict):
                result[key] = self._close(schema[key])
        for key in _LISTS:
            if members := _listed(schema, key):
                result[key] = [self._close(value) for value in members]
        for key in _NAMED:
            if isinstance(schema.get(key), dict):
                named = cast("Schema", schema[key])
                result[key] = {name: self._close(value) for name, value in named.items()}
        return result

    def _members(self, schemas: Iterable[Any], beside: "_Members | None") -> "_Members":
        """Returns the members that several schemas name for the same object."""
        collected = _Members(beside)
        waiting, followed = deque(schemas), set[str]()
        while waiting:
            item = waiting.popleft()
            if not isinstance(item, dict):
                continue
            schema = cast("Schema", item)
            collected.add(schema)
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                waiting.append(self._target(reference))
            for key in ("allOf", *_EITHER):
                waiting.extend(_listed(schema, key))
        return collected

    def _target(self, reference: str) -> Any:
        """Returns the target of a reference within the schema, or None."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        target: Any = self._root
        for part in unquote(reference[1:]).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = cast("Schema", target).get(name)
            elif isinstance(target, list) and name.isdecimal():
                items = cast("list[Any]", target)
                target = items[int(name)] if int(name) < len(items) else None
            else:
                return None
        return target


class _Members:
    """The members that schemas name for an object."""

    def __init__(self, beside: "_Members | None") -> None:
        self.names: dict[str, None] = dict(beside.names) if beside else {}
        self.like: dict[str, None] = dict(beside.like) if beside else {}
        """Patterns of names."""
        self.named = beside.named if beside else False
        """True if a schema lists names. The list may be empty."""
        self.free = beside.free if beside else False
        """True if keywords other than names decide which members are allowed."""

    def add(self, schema: Schema) -> None:
        for names, key in ((self.names, "properties"), (self.like, "patternProperties")):
            if isinstance(schema.get(key), dict):
                names.update(dict.fromkeys(schema[key]))
        self.named |= isinstance(schema.get("properties"), dict)
        self.free |= any(key in schema for key in ("additionalProperties", *_BEYOND))
        self.free |= schema.get("unevaluatedProperties", False) is not False


def _is_merged(schema: Schema) -> bool:
    return any(key in schema for key in ("allOf", "$ref", *_EITHER))


def _only(schema: Schema) -> str | None:
    """Returns the only keyword of an object that refers to other schemas, or None."""
    keywords = [key for key in _SPEAKING if key in schema]
    if len(keywords) != 1 or keywords[0] not in ("$ref", "allOf", *_EITHER):
        return None
    return None if keywords[0] == "allOf" and len(_listed(schema, "allOf")) > 1 else keywords[0]


def _listed(schema: Schema, key: str) -> list[Any]:
    """Returns a keyword's list. The compiler refuses other values."""
    value = schema.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []


def _without(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}
