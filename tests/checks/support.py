from typing import Any


def doubling(levels: int, *, by_anchors: bool = False) -> dict[str, Any]:
    """Returns a small schema that takes 2**levels steps for any array.

    Args:
        by_anchors: if True, references are not JSON pointers. The bounds on schemas do not follow
            them.
    """
    first = {"type": "array"}
    definitions: dict[str, Any] = {"a0": {**first, "$anchor": "a0"} if by_anchors else first}
    for level in range(1, levels + 1):
        below = f"#a{level - 1}" if by_anchors else f"#/$defs/a{level - 1}"
        definitions[f"a{level}"] = {"allOf": [{"$ref": below}, {"$ref": below}]}
        if by_anchors:
            definitions[f"a{level}"]["$anchor"] = f"a{level}"
    last = f"a{levels}"
    return {"$defs": definitions, "$ref": f"#{last}" if by_anchors else f"#/$defs/{last}"}
