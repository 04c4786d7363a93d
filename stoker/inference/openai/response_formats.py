"""`response_format`: the requested form of the answer."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, Tag, model_validator

from stoker.inference.openai.answer_forms import Regex, Schema, check_schema_is_named
from stoker.inference.openai.sampling import OpenAIRequest
from stoker.inference.openai.unions import one_of
from stoker.models.tasks.field_checks import refusal
from stoker.wire.generation_request import Guide

_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class JsonSchema(OpenAIRequest):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = Field(default=None, max_length=4096)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema", max_length=4096)
    strict: bool | None = Field(
        default=None,
        description="Objects may have only the members that the schema names, unless it sets "
        "`additionalProperties` for them. The schema is enforced either way.",
    )

    checks_spelling = True

    @model_validator(mode="before")
    @classmethod
    def _has_its_schema(cls, data: Any) -> Any:
        check_schema_is_named(cls, data, "schema")
        return data


class TextFormat(OpenAIRequest):
    type: Literal["text"]


class JsonObjectFormat(OpenAIRequest):
    type: Literal["json_object"]


class JsonValueFormat(OpenAIRequest):
    """Form of any object, or of a value of a schema, which clients of other servers send under two
    names.
    """

    type: Literal["json_object", "json"]
    value: Schema | None = Field(
        default=None, description="A JSON schema. The type `json` needs this field or `schema`."
    )
    schema_: Schema | None = Field(
        default=None, alias="schema", description="A JSON schema, as llama.cpp's clients send it."
    )

    checks_spelling = True

    @model_validator(mode="after")
    def _has_a_schema(self) -> Self:
        if self.type == "json" and self.value is None and self.schema_ is None:
            raise refusal("is required. Send a JSON schema", "value")
        if self.value is not None and self.schema_ is not None:
            raise refusal("means the same as 'value'. Send only one of them", "schema")
        return self


class JsonSchemaFormat(OpenAIRequest):
    type: Literal["json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Schema | None = Field(
        default=None, alias="schema", description="Replaces `json_schema`, as in other APIs."
    )
    value: Schema | None = Field(
        default=None, description="Replaces `json_schema`, as in other APIs."
    )

    checks_spelling = True

    @model_validator(mode="after")
    def _has_one_schema(self) -> Self:
        schemas = [
            schema for schema in (self.json_schema, self.schema_, self.value) if schema is not None
        ]
        if len(schemas) != 1:
            raise refusal(
                "is required" if not schemas else "must be the only schema", "json_schema"
            )
        return self


class RegexFormat(OpenAIRequest):
    """Form that Text Generation Inference's clients send."""

    type: Literal["regex"]
    value: Annotated[Regex, Field(min_length=1)]


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JsonValueFormat, Tag("<json_object>")]
    | Annotated[JsonValueFormat, Tag("<json>")]
    | Annotated[JsonSchemaFormat, Tag("<json_schema>")]
    | Annotated[RegexFormat, Tag("<regex>")],
    one_of(
        "text",
        "json_object",
        "json",
        "json_schema",
        "regex",
        must_be="a form of the type 'text', 'json_object', 'json_schema' or 'regex'",
    ),
]


def schema_guide(given: JsonSchema, field: str) -> Guide:
    schema = _ANY_OBJECT if given.schema_ is None else given.schema_
    return Guide(kind="json_schema", value=schema, field=field, strict=bool(given.strict))


def format_guide(given: ResponseFormat | None) -> Guide | None:
    """Returns the form that `response_format` requests. None means any text."""
    match given:
        case JsonValueFormat(value=None, schema_=None):
            return Guide(kind="json_object", field="response_format")
        case JsonSchemaFormat(json_schema=JsonSchema() as named):
            return schema_guide(named, "response_format.json_schema.schema")
        case JsonValueFormat() | JsonSchemaFormat():
            name = "schema" if given.value is None else "value"
            schema = given.schema_ if given.value is None else given.value
            return Guide(kind="json_schema", value=schema, field=f"response_format.{name}")
        case RegexFormat():
            return Guide(kind="regex", value=given.value, field="response_format.value")
        case _:
            return None
