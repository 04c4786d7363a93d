"""Hugging Face's form of a request, `{"inputs": …, "parameters": {…}}`, for OpenAI's endpoints."""

from collections.abc import Collection
from typing import Any, cast

from stoker.models.tasks.base import refusal


def is_asked(data: Any) -> bool:
    return isinstance(data, dict) and "inputs" in data


def unnested(
    data: Any, field: str, parameters: Collection[str], refused: Collection[str] = ()
) -> Any:
    """A body of that form as the endpoint's own, its inputs in `field`; another one as it is.

    Parameters other than these and those that the endpoint refuses by itself are an error, unlike
    fields of OpenAI's form: that client sends none but those that its caller gave.
    """
    if not is_asked(data):
        return data
    body = dict(cast("dict[str, Any]", data))
    inputs, nested = body.pop("inputs"), body.pop("parameters", None)
    if nested is None:
        nested = {}
    if not isinstance(nested, dict):
        raise refusal("must be an object", "parameters")
    given = cast("dict[str, Any]", nested)
    if field in body or field in given:
        raise refusal("is given twice: 'inputs' is the same", field)
    if twice := sorted(set(given) & set(body)):
        raise refusal("is given twice, in 'parameters' and beside 'inputs'", twice[0])
    if unknown := sorted(set(given) - {*parameters, *refused}):
        known = ", ".join(sorted(set(parameters) - {field, "model"}))
        raise refusal(f"is no parameter of this endpoint, which takes {known}", unknown[0])
    return body | given | {field: inputs}
