"""Cheap limits on a caller's JSON schema, checked before it is compiled.

A schema of two kilobytes may need 2**64 steps: by definitions that refer to each other twice, or by
counted repetitions within counted repetitions. The limits of the compiling process apply to schemas
that these checks miss.
"""

import re
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

MAX_STEPS = 100_000
"""Maximum number of subschemas that apply to one value, with each `$ref` replaced by its target."""
MAX_REPEATED = 20_000
"""Maximum size of all patterns together, with each counted repetition expanded."""
MAX_DEPTH = 100
"""Maximum nesting depth of the schema's source."""
_MAX_EXPANDED_DEPTH = 300
_DEFINITIONS = frozenset({"$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default", "examples"})
_COUNT = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")


def excess(schema: dict[str, Any]) -> str:
    """Returns which limit a schema exceeds, as the rest of a sentence. Returns an empty text if it
    exceeds none.
    """
    try:
        repeated = sum(map(_repeated, _patterns(schema)))
        steps = _Steps(schema).of(schema, 0)
    except _TooDeepError as error:
        return str(error)
    if steps > MAX_STEPS:
        return f"takes more than {MAX_STEPS} steps once its references are expanded"
    if repeated > MAX_REPEATED:
        return f"has patterns whose repetitions come to {repeated}; the limit is {MAX_REPEATED}"
    return ""


class _TooDeepError(Exception):
    pass


class _Steps:
    """Counts the subschemas that apply to one value. Each target of a `$ref` is counted once."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}

    def of(self, value: Any, depth: int) -> int:
        if depth > _MAX_EXPANDED_DEPTH:
            raise _TooDeepError("is nested too deep once its references are expanded")
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return sum([self.of(item, depth + 1) for item in items])
        if not isinstance(value, dict):
            return 0
        members = cast("dict[str, Any]", value)
        steps = 1
        for name, member in members.items():
            if name == "$ref" and isinstance(member, str):
                steps += self._target(member, depth)
            elif name not in _DEFINITIONS and name not in _VALUES:
                steps += self.of(member, depth + 1)
        return steps

    def _target(self, reference: str, depth: int) -> int:
        if reference not in self._known:
            # A schema that contains itself ends with the value that it describes.
            self._known[reference] = 1
            self._known[reference] = self.of(_resolved(self._root, reference), depth + 1)
        return self._known[reference]


def _resolved(root: Any, reference: str) -> Any:
    """Returns the target of a JSON pointer (RFC 6901), or None for any other reference."""
    if not reference.startswith("#"):
        return None
    target = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = cast("dict[str, Any]", target).get(name)
        elif isinstance(target, list) and name.isdecimal() and len(name) < 7:
            items = cast("list[Any]", target)
            target = items[int(name)] if int(name) < len(items) else None
        else:
            return None
    return target


def _patterns(schema: Any) -> Iterator[str]:
    pending: list[tuple[Any, int]] = [(schema, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _TooDeepError(f"is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, list):
            pending += [(item, depth + 1) for item in cast("list[Any]", value)]
        elif isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            if isinstance(pattern := members.get("pattern"), str):
                yield pattern
            if isinstance(named := members.get("patternProperties"), dict):
                yield from cast("dict[str, Any]", named)
            pending += [(item, depth + 1) for item in members.values()]


def _repeated(pattern: str) -> int:
    """Returns the size of a regular expression with its counted repetitions expanded."""
    open_groups: list[int] = []
    """Sizes before each open group."""
    size = last = 0
    """Sizes of the innermost group and of its last item."""
    at = 0
    while at < len(pattern):
        if counted := _COUNT.match(pattern, at):
            low, comma, high = counted.groups()
            times = int(high or low) if comma else int(low)
            size += last * (times - 1) if times else 0
            last *= max(times, 1)
            at = counted.end()
            continue
        char = pattern[at]
        if char == "(":
            open_groups.append(size)
            size = last = 0
        elif char == ")" and open_groups:
            size, last = open_groups.pop() + size, size
        elif char == "[":
            at = _class_end(pattern, at)
            size, last = size + 1, 1
        elif char not in "*+?|":
            at += char == "\\"
            size, last = size + 1, 1
        at += 1
    # Groups that are still open: compiling the pattern will reject it.
    return size + sum(open_groups)


def _class_end(pattern: str, at: int) -> int:
    """Returns the position of the bracket that closes the class."""
    at += 2 if pattern[at + 1 : at + 2] != "^" else 3
    while at < len(pattern) and pattern[at] != "]":
        at += 1 + (pattern[at] == "\\")
    return at
