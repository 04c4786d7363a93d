"""Hugging Face's request form, `{"inputs": …, "parameters": {…}}`, for OpenAI's endpoints."""

from collections.abc import Collection
from typing import Any, cast

from stoker.models.tasks.base import refusal


def is_asked(data: Any) -> bool:
    return isinstance(data, dict) and "inputs" in data


def unnested(
    data: Any, field: str, parameters: Collection[str], refused: Collection[str] = ()
) -> Any:
    """Converts a body of this form to the endpoint's own, with its inputs in `field`. Other bodies
    are returned unchanged.

    Unknown parameters are an error, except for those in `refused`, which the endpoint rejects
    itself. Unknown fields of OpenAI's form are not an error. Hugging Face's client sends only
    parameters that its caller set.
    """
    if not is_asked(data):
        return data
    body = dict(cast("dict[str, Any]", data))
    inputs, nested = body.pop("inputs"), body.pop("parameters", None)
    if nested is None:
        nested = {}
    if not isinstance(nested, dict):
        raise refusal("must be an object", "parameters")
    options = cast("dict[str, Any]", nested)
    if field in body or field in options:
        raise refusal("is given twice: 'inputs' means the same", field)
    if twice := sorted(set(options) & set(body)):
        raise refusal("is given twice, in 'parameters' and next to 'inputs'", twice[0])
    if unknown := sorted(set(options) - {*parameters, *refused}):
        known = ", ".join(sorted(set(parameters) - {field, "model"}))
        raise refusal(f"is not a parameter of this endpoint, which accepts {known}", unknown[0])
    return body | options | {field: inputs}
