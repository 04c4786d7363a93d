"""A value of an undocumented JSON type is never converted to a documented one."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError

from stoker.base.strict_json import MOST_DEPTH, Strict, check_storable
from stoker.inference.openai.sampling import OpenAIRequest
from stoker.models.tasks.base import TaskRequest
from stoker.platform.web.schemas import RequestModel
from tests.deployments.routes import app
from tests.server.test_openapi import request_models

VALUES: dict[str, Any] = {"boolean": True, "integer": 1, "string": "1"}
"""Maps each JSON type to a value that Python would convert to another type."""


def types(schema: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """Returns the JSON types that a schema admits. A number also counts as an integer."""
    if "$ref" in schema:
        return types(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root)
    many = schema.get("anyOf") or schema.get("oneOf")
    if many:
        return set[str]().union(*(types(option, root) for option in many))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {VALUE_TYPES[type(value)] for value in values}
    if "type" not in schema:
        return {"boolean", "integer", "string"}
    return {"integer" if schema["type"] == "number" else schema["type"]}


VALUE_TYPES = {str: "string", int: "integer", float: "integer", bool: "boolean", type(None): "null"}


def cases() -> Iterator[Any]:
    app()  # imports every request
    for model in sorted(
        {*request_models(Strict)} - {RequestModel, TaskRequest, OpenAIRequest},
        key=lambda model: f"{model.__module__}.{model.__name__}",
    ):
        if not model.__module__.startswith("stoker."):
            continue
        schema = model.model_json_schema()
        for name, field in schema.get("properties", {}).items():
            refused = set(VALUES) - types(field, schema)
            if issubclass(model, OpenAIRequest):
                # OpenAI's types accept numbers as texts.
                refused -= {"string"}
            for kind in sorted(refused):
                yield pytest.param(model, name, kind, id=f"{model.__name__}.{name}-{kind}")


@pytest.mark.parametrize(("model", "field", "kind"), [*cases()])
def test_other_types_are_refused(model: type[BaseModel], field: str, kind: str) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate_json(json.dumps({field: VALUES[kind]}))
    places = [error["loc"][:1] for error in refused.value.errors() if error["type"] != "missing"]
    assert (field,) in places, refused.value


class Managed(RequestModel):
    count: int = Field(default=0, ge=0, le=9)
    share: float | None = None
    is_on: bool = False
    until: datetime | None = None
    many: list[int] = []
    by_name: dict[str, float] = {}
    inner: "Inner | None" = None


class Inner(RequestModel):
    count: int = 0


class Asked(TaskRequest):
    count: int = 0
    is_on: bool = False


class OpenAIExample(OpenAIRequest):
    seconds: float = 0
    is_on: bool = False


Managed.model_rebuild()


class TestManagement:
    @pytest.mark.parametrize(
        ("given", "place"),
        [
            ({"count": True}, ("count",)),
            ({"count": "5"}, ("count",)),
            ({"count": 5.5}, ("count",)),
            ({"share": False}, ("share",)),
            ({"is_on": 1}, ("is_on",)),
            ({"is_on": "true"}, ("is_on",)),
            ({"until": 1_700_000_000}, ("until",)),
            ({"until": True}, ("until",)),
            ({"many": [1, True]}, ("many", 1)),
            ({"by_name": {"a": True}}, ("by_name", "a")),
            ({"inner": {"count": True}}, ("inner", "count")),
        ],
    )
    def test_refused(self, given: dict[str, Any], place: tuple[Any, ...]):
        with pytest.raises(ValidationError) as refused:
            Managed.model_validate(given)
        with pytest.raises(ValidationError) as of_json:
            Managed.model_validate_json(json.dumps(given))
        for error in (refused, of_json):
            assert [detail["loc"] for detail in error.value.errors()] == [place]

    def test_taken(self):
        values = {"count": 5.0, "share": 1, "is_on": True, "until": "2026-11-21T10:00:00Z"}
        read = Managed.model_validate_json(json.dumps(values | {"many": [1, 2.0]}))
        assert (read.count, read.share, read.is_on, read.many) == (5, 1.0, True, [1, 2])
        assert read.until == datetime(2026, 11, 21, 10, tzinfo=UTC)
        with pytest.raises(ValidationError, match="less than or equal to 9"):
            Managed(count=10)

    def test_says_what_would_be_right(self):
        with pytest.raises(ValidationError, match="must be a number, not false"):
            Managed.model_validate({"count": False})
        with pytest.raises(ValidationError, match="must be true or false, not the number 0"):
            Managed.model_validate({"is_on": 0})


class TestForms:
    def test_spell_values_out(self):
        """A form has only texts, so that a request read from a form is not checked as JSON."""
        read = Asked.model_validate({"count": "5", "is_on": "true"})
        assert (read.count, read.is_on) == (5, True)
        for wrong in ({"count": "5"}, {"is_on": "true"}):
            with pytest.raises(ValidationError):
                Asked.model_validate_json(json.dumps(wrong))

    def test_of_openais_types_too(self):
        assert OpenAIExample.model_validate_json('{"seconds": "4"}').seconds == 4
        for wrong in ('{"seconds": true}', '{"is_on": 1}'):
            with pytest.raises(ValidationError):
                OpenAIExample.model_validate_json(wrong)


class TestStorable:
    @pytest.mark.parametrize("in_lists", [True, False])
    @pytest.mark.parametrize("leaf", [1, "text", [], {}])
    def test_the_deepest_value(self, leaf: Any, in_lists: bool) -> None:
        value = leaf
        for _ in range(MOST_DEPTH):
            value = [value] if in_lists else {"a": value}
        check_storable(value)
        with pytest.raises(ValueError, match=f"nested more than {MOST_DEPTH} levels deep"):
            check_storable([value])

    @pytest.mark.parametrize("value", [["a", {"b": ["\0"]}], {"a": [{"\0": 1}]}])
    def test_nul_in_a_key_or_value(self, value: Any) -> None:
        check_storable(value, takes_nul=True)
        with pytest.raises(ValueError, match=r"U\+0000"):
            check_storable(value)

    @pytest.mark.parametrize("value", [[["\ud83d"]], {"a": {"\ude00": 1}}])
    def test_half_of_a_surrogate_pair(self, value: Any) -> None:
        with pytest.raises(ValueError, match="half of a surrogate pair"):
            check_storable(value, takes_nul=True)
