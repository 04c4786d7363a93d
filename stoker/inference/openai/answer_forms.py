"""Request fields that constrain the form of the answer, in the dialects of several servers."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from stoker.models.tasks.field_checks import refusal
from stoker.wire.generation_request import Guide

MAX_FORM_CHARS = 65_536

Regex = Annotated[str, Field(max_length=MAX_FORM_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=4096)]],
    Field(min_length=1, max_length=1024),
]
Grammar = Annotated[
    str, Field(max_length=MAX_FORM_CHARS, description="In Lark's or GBNF's notation.")
]


def _schema(value: Any) -> Any:
    """Parses a schema that was sent as a JSON text. Returns other values unchanged."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_FORM_CHARS:
        raise ValueError(f"must have at most {MAX_FORM_CHARS} characters")
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError("must be a JSON schema: an object, or the JSON of an object") from None


Schema = Annotated[
    dict[str, Any],
    Field(max_length=4096, description="A JSON schema: an object, or its JSON as a string."),
    BeforeValidator(_schema, json_schema_input_type=dict[str, Any] | str),
]


_OTHER_NAMES = frozenset(
    ["args_schema", "arguments", "input_schema", "inputSchema", "params", "schema"]
)
"""Names of the schema of a function's arguments in other APIs and libraries."""


def check_schema_is_named(model: type[BaseModel], data: Any, member: str) -> None:
    """Raises `ValidationError` for a schema under another name, which would be ignored."""
    members = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if members.get(member) is not None:
        return
    known = {field.alias or name for name, field in model.model_fields.items()}
    for name, value in members.items():
        is_schema = isinstance(value, dict) and (member == "schema" or name in _OTHER_NAMES)
        if name not in known and is_schema:
            raise refusal(f"is unknown. Send the schema as '{member}'", name)


def only_default(why: str, *accepted: Any) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value is not None and value not in accepted:
            raise ValueError(why)
        return value

    return BeforeValidator(check)


class StructuredOutputs(BaseModel):
    """Form that the whole answer must have."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    regex: Annotated[Regex, Field(min_length=1)] | None = None
    choice: Choices | None = None
    grammar: Annotated[Grammar, Field(min_length=1)] | None = None
    json_: Schema | None = Field(default=None, alias="json")
    json_object: bool | None = Field(default=None, description="True: any JSON object.")
    disable_any_whitespace: bool | None = Field(
        default=None, description="Not used: JSON is written on one line."
    )
    disable_additional_properties: bool = Field(
        default=False, description="Objects may have only the members that the schema names."
    )
    whitespace_pattern: Annotated[
        None, only_default("is not supported. JSON is written on one line")
    ] = None
    structural_tag: Annotated[
        None, only_default("is not supported. Use 'grammar', or send 'tools'")
    ] = None

    @model_validator(mode="after")
    def _one(self) -> "StructuredOutputs":
        if len(self._given()) != 1:
            raise ValueError(
                "must contain exactly one of regex, choice, grammar, json and json_object"
            )
        return self

    def _given(self) -> dict[str, Any]:
        named = {
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "json_schema": self.json_,
            "json_object": self.json_object or None,
        }
        return {kind: value for kind, value in named.items() if value is not None}

    def guide(self) -> Guide:
        ((kind, value),) = self._given().items()
        return Guide(
            kind=kind,  # pyright: ignore[reportArgumentType]
            value=None if kind == "json_object" else value,
            field="structured_outputs",
            strict=self.disable_additional_properties,
        )


class FormFields(BaseModel):
    """Fields of vLLM, SGLang and llama.cpp that constrain the form of the whole answer."""

    structured_outputs: StructuredOutputs | None = Field(
        default=None,
        description="Form that the answer must have: JSON, a regex, a choice or a grammar.",
    )
    guided_json: Schema | None = Field(default=None, description="As `structured_outputs.json`.")
    guided_regex: Regex | None = Field(default=None, description="As `structured_outputs.regex`.")
    guided_choice: Choices | None = Field(
        default=None, description="As `structured_outputs.choice`."
    )
    guided_grammar: Grammar | None = Field(
        default=None, description="As `structured_outputs.grammar`."
    )
    regex: Regex | None = Field(default=None, description="As `structured_outputs.regex`.")
    ebnf: Grammar | None = Field(default=None, description="As `structured_outputs.grammar`.")
    grammar: Grammar | None = Field(default=None, description="As `structured_outputs.grammar`.")
    json_schema: Schema | None = Field(default=None, description="As `structured_outputs.json`.")
    bad_words: list[Annotated[str, Field(min_length=1, max_length=256)]] | None = Field(
        default=None,
        max_length=128,
        description="Texts that the answer must not contain. Excludes every other form.",
    )

    def asked_format(self) -> Guide | None:
        """Returns the form that OpenAI's own field requests."""
        return None

    @model_validator(mode="after")
    def _has_one_form(self) -> "FormFields":
        first, *rest = [*self._forms(), None]
        for other in rest:
            if first and other:
                name = _root(first.field)
                raise refusal(
                    f"cannot be combined with '{name}'. Send only one of them", _root(other.field)
                )
        return self

    def form(self) -> Guide | None:
        """Returns the form of the answer that the request specifies."""
        return next(self._forms(), None)

    def _forms(self) -> Iterator[Guide]:
        if named := self.asked_format():
            yield named
        if self.structured_outputs:
            yield self.structured_outputs.guide()
        for name, kind in _KINDS.items():
            # An empty text or list sets no form. An empty schema allows any JSON.
            if (value := getattr(self, name)) or value == {}:
                yield Guide(kind=kind, value=value, field=name)  # pyright: ignore[reportArgumentType]


_KINDS = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
    "json_schema": "json_schema",
    "bad_words": "without",
}


def _root(field: str) -> str:
    return "text.format" if field.startswith("text.format") else field.partition(".")[0]
