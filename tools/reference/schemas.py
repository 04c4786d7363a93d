"""Tables of the fields of JSON schemas."""

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]


def branches(shape: Schema) -> list[Schema]:
    """Returns the alternatives of a schema, without null."""
    found = [*shape.get("anyOf", ()), *shape.get("oneOf", ()), *shape.get("allOf", ())]
    return [branch for branch in found if branch.get("type") != "null"]


def described(shape: Schema, key: str = "description") -> str:
    """Returns a schema's text under a key, or that of its first alternative with one."""
    if key in shape:
        return " ".join(str(shape[key]).split()).replace("|", "\\|")
    return next(filter(None, (described(branch, key) for branch in branches(shape))), "")


def resolved(shape: Schema, definitions: Schema) -> Schema:
    """Returns the schema that a reference names, or the schema itself."""
    name = str(shape.get("$ref", "")).rpartition("/")[2]
    return definitions[name] if name else shape


def values(shape: Schema, definitions: Schema) -> str:
    """Returns the types, choices or range of a schema."""
    shape = resolved(shape, definitions)
    if alternatives := branches(shape):
        shown = dict.fromkeys(filter(None, (values(each, definitions) for each in alternatives)))
        return " or ".join(shown)
    if "enum" in shape:
        return ", ".join(f"`{choice}`" for choice in shape["enum"])
    if "const" in shape:
        return f"`{shape['const']}`"
    kind = str(shape.get("type", ""))
    low = _number(shape.get("minimum", shape.get("exclusiveMinimum")))
    high = _number(shape.get("maximum", shape.get("exclusiveMaximum")))
    if low is None and high is None:
        return {"array": "list", "string": "text"}.get(kind, kind)
    above = "above " if "exclusiveMinimum" in shape else ""
    below = "below " if "exclusiveMaximum" in shape else ""
    return f"{above}{low} to {below}{high}" if high is not None else f"from {above}{low}"


def _number(limit: float | None) -> float | None:
    """Returns a limit, without a fraction if it is whole."""
    return int(limit) if limit is not None and limit == int(limit) else limit


def table(head: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Returns the lines of a table, and an empty one. Empty without rows."""
    if not rows:
        return []
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]
