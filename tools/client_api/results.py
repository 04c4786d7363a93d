"""Writes the types of the results of tasks."""

from collections.abc import Sequence

from tools.client_api.annotations import Annotations
from tools.client_api.classes import docstring, typing_imports
from tools.client_api.document import Document, Operation, Schema


def results_source(
    document: Document, annotations: Annotations, operations: Sequence[Operation]
) -> str:
    """Returns the module. `annotations` has rendered the results of all operations."""
    reached = document.reached({"anyOf": [operation.response for operation in operations]})
    classes = {
        annotations.named(name): _class(
            annotations.named(name), document.schemas[name], annotations
        )
        for name in document.ordered(reached)
    }
    while left := [title for title in annotations.inline if title not in classes]:
        for title in left:
            classes[title] = _class(title, annotations.inline[title], annotations)
    body = "\n\n".join(classes.values())
    lines = ['"""Results of tasks, from the OpenAPI document."""', ""]
    lines += ["from __future__ import annotations", "", *typing_imports(body), "", body]
    return "\n".join(lines)


def _class(name: str, schema: Schema, annotations: Annotations) -> str:
    required = set(schema.get("required", ()))
    total = "" if required == set(schema["properties"]) else ", total=False"
    fields: list[str] = []
    for field, of_field in schema["properties"].items():
        kind = annotations.of(of_field)
        fields.append(
            f"    {field}: {f'Required[{kind}]' if total and field in required else kind}"
        )
    return "\n".join([f"class {name}(TypedDict{total}):", *docstring(schema), *fields, ""])
