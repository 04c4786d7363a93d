"""References within a JSON schema."""

from typing import Any, cast


def references_in(schema: Any) -> list[str]:
    """Returns the values of all `$ref` keywords at any depth of a schema."""
    references: list[str] = []
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            members = cast("dict[str, Any]", part)
            reference = members.get("$ref")
            if isinstance(reference, str):
                references.append(reference)
            waiting += members.values()
        elif isinstance(part, list):
            waiting += cast("list[Any]", part)
    return references
