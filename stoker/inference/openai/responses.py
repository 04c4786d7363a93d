"""`POST /v1/responses`: the request. Nothing is stored, so `input` must contain the whole
conversation.
"""

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BeforeValidator, Field, Tag, model_validator

from stoker.inference.openai.answer_forms import check_schema_is_named
from stoker.inference.openai.items import Input, for_template, served_only
from stoker.inference.openai.messages import FUNCTION_NAME, MAX_TOOLS, Text
from stoker.inference.openai.prompting import TemplatedRequest
from stoker.inference.openai.response_formats import (
    JsonObjectFormat,
    JsonSchema,
    TextFormat,
    schema_guide,
)
from stoker.inference.openai.sampling import (
    MAX_TOKENS,
    NOT_IN_CALLS,
    GenerationRequest,
    Name,
    OpenAIRequest,
)
from stoker.inference.openai.unions import one_of
from stoker.models.tasks.base import refusal
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Conversation, Generation, Guide, Tools

EXAMPLE: dict[str, Any] = {"model": "tiny-chat", "input": "What is the capital of France?"}
LOGPROBS = "message.output_text.logprobs"


def _own_function(value: Any) -> Any:
    if isinstance(value, str) and value != "function":
        raise ValueError(f"'{value}' is not supported. Tools must be functions of your own")
    return value


_NO_PROGRAMS = "is not supported: models call functions directly, not through programs"
_NO_SEARCH = "is not supported: tools are not searched. Send all that may be called"


class FunctionTool(OpenAIRequest):
    type: Annotated[Literal["function"], BeforeValidator(_own_function)]
    name: str = Field(pattern=FUNCTION_NAME)
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, max_length=4096, description="A JSON schema of an object."
    )
    strict: bool | None = Field(
        default=None, description="Reject a schema that cannot be fully enforced."
    )
    allowed_callers: Annotated[
        list[Literal["direct"]] | None, served_only(["direct"], why=_NO_PROGRAMS)
    ] = Field(default=None, max_length=1)
    defer_loading: Annotated[Literal[False] | None, served_only(False, why=_NO_SEARCH)] = None
    async_: Annotated[Literal[False] | None, served_only(False, why="is not supported here")] = (
        Field(default=None, alias="async")
    )
    output_schema: Annotated[None, served_only(why=_NO_PROGRAMS)] = None

    checks_spelling = True

    @model_validator(mode="before")
    @classmethod
    def _has_its_schema(cls, data: Any) -> Any:
        check_schema_is_named(cls, data, "parameters")
        return data

    def for_template(self) -> dict[str, Any]:
        fields = {"name", "description", "parameters", "strict"}
        return {"type": "function", "function": self.model_dump(include=fields, exclude_none=True)}

    def echo(self) -> dict[str, Any]:
        fields = {"type", "name", "description", "parameters"}
        return {**self.model_dump(include=fields), "strict": bool(self.strict)}


class ChosenFunction(OpenAIRequest):
    type: Annotated[Literal["function"], BeforeValidator(_own_function)]
    name: str = Field(pattern=FUNCTION_NAME)


class AllowedFunctions(OpenAIRequest):
    """Restricts the tools that may be called. The model is shown no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction] = Field(min_length=1, max_length=MAX_TOOLS)


class SchemaFormat(JsonSchema):
    type: Literal["json_schema"]


_FORMATS = "an object of the type 'text', 'json_object' or 'json_schema'"


class TextConfig(OpenAIRequest):
    checks_spelling = True

    format: (
        Annotated[
            Annotated[TextFormat, Tag("<text>")]
            | Annotated[JsonObjectFormat, Tag("<json_object>")]
            | Annotated[SchemaFormat, Tag("<json_schema>")],
            one_of("text", "json_object", "json_schema", must_be=_FORMATS),
        ]
        | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None,
        description=(
            "For models whose chat template supports it. Other models accept only `medium`."
        ),
    )


_UNSUMMARIZED = "is not supported. The answer contains the reasoning that the model wrote"


class ReasoningConfig(OpenAIRequest):
    checks_spelling = True

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="For models whose chat template supports `reasoning_effort`."
    )
    summary: Annotated[None, served_only(why=_UNSUMMARIZED)] = None
    generate_summary: Annotated[None, served_only(why=_UNSUMMARIZED)] = None
    context: Annotated[
        Literal["auto"] | None,
        served_only("auto", why="is not supported: the chat template decides. Leave it out"),
    ] = None
    mode: Annotated[
        Literal["standard"] | None,
        served_only("standard", why="is not supported: models here have one mode. Leave it out"),
    ] = None


_SCHEMA_FIELD = "tools[{}].parameters"


class ResponseRequest(TemplatedRequest, GenerationRequest):
    input: Input = Field(description="A text, or the whole conversation as items.")
    instructions: Text | None = Field(
        default=None, description="A system message before the input."
    )
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    top_logprobs: int | None = Field(default=None, ge=0, le=wire.MAX_LOGPROBS)
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        Field(
            default=None,
            max_length=8,
            description="Reasoning is in the answer as the model wrote it and is never encrypted.",
        )
    )
    tools: list[FunctionTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("<str>")]
            | Annotated[AllowedFunctions, Tag("<allowed_tools>")]
            | Annotated[ChosenFunction, Tag("<other>")],
            one_of(
                "allowed_tools",
                must_be="'none', 'auto', 'required', one function or 'allowed_tools'",
            ),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = Field(
        default=None, description="False: at most one call per answer."
    )
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None,
        description="`auto`: leave out the oldest turns of an input that does not fit the model.",
    )
    max_tool_calls: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        description=(
            "Limits calls of hosted tools. No effect, because hosted tools are not supported."
        ),
    )
    background: Annotated[
        Literal[False] | None,
        served_only(False, why="is not supported: responses are not stored. Use 'stream'"),
    ] = None
    store: Annotated[
        Literal[False] | None,
        served_only(False, why="is not supported: nothing is stored. Leave it out or send false"),
    ] = None
    metadata: dict[Name, Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16, description="Repeated in the answer."
    )
    prompt_cache_key: Name | None = Field(default=None, description="Not used.")
    prompt_cache_retention: Literal["in_memory"] | None = Field(
        default=None, description="Prompt caches stay in memory only."
    )
    safety_identifier: Name | None = Field(default=None, description="Not used.")
    n: int | None = Field(default=None, ge=1, le=1, description="One answer per request.")
    max_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="Refused: use `max_output_tokens`."
    )

    endpoint = "responses"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.top_logprobs and LOGPROBS not in (self.include or []):
            raise refusal(f'needs "include": ["{LOGPROBS}"]', "top_logprobs")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise refusal("needs 'tools'", "tool_choice")
        for index, tool in enumerate(self.tools or []):
            if any(tool.name == other.name for other in (self.tools or [])[:index]):
                raise refusal(
                    f"'{tool.name}' is also the name of another tool", "tools", index, "name"
                )
        known = {tool.name for tool in self.tools or []}
        if isinstance(self.tool_choice, ChosenFunction) and self.tool_choice.name not in known:
            raise refusal("is not among the tools", "tool_choice", "name")
        if isinstance(self.tool_choice, AllowedFunctions):
            for index, tool in enumerate(self.tool_choice.tools):
                if tool.name not in known:
                    place = ("tool_choice", "tools", index, "name")
                    raise refusal("is not among the tools", *place)
        if self.bad_words and self.tools and self.tool_choice != "none":
            raise refusal(NOT_IN_CALLS, "bad_words")
        return self

    @property
    def _format(self) -> TextFormat | JsonObjectFormat | SchemaFormat:
        return (self.text and self.text.format) or TextFormat(type="text")

    def generation(self, answer: dict[str, Any]) -> Generation:
        """Returns the internal form. Raises `InvalidRequestError`."""
        has_logprobs = LOGPROBS in (self.include or [])
        tools = self._tools()
        forced = tools is not None and tools.choice == "required"
        return Generation(
            api="responses",
            prompts=[
                Conversation(
                    messages=for_template(self.input, self.instructions),
                    tools=tools,
                    effort=self.reasoning.effort if self.reasoning else None,
                    effort_field="reasoning.effort",
                    verbosity=self.text.verbosity if self.text else None,
                    verbosity_field="text.verbosity",
                    variables=self.chat_template_kwargs or {},
                    truncate=self.truncation == "auto",
                )
            ],
            sampling=self.sampling(
                max_tokens=self.max_output_tokens,
                logprobs=(self.top_logprobs or 0) if has_logprobs else None,
            ),
            # A form applies to the text. An answer that must consist of calls has none.
            guide=None if forced else self.form(),
            stream=bool(self.stream),
            limit_field="max_output_tokens",
            answer=answer | {"settings": self._settings()},
        )

    def _tools(self) -> Tools | None:
        if not self.tools:
            return None
        functions = [tool.for_template() for tool in self.tools]
        if isinstance(self.tool_choice, ChosenFunction):
            name = self.tool_choice.name
            return Tools(
                functions=functions,
                choice="required",
                name=name,
                parallel=False,
                schema_field=_SCHEMA_FIELD,
            )
        choice, allowed = self.tool_choice or "auto", None
        if isinstance(choice, AllowedFunctions):
            choice, allowed = choice.mode, [tool.name for tool in choice.tools]
        return Tools(
            functions=functions,
            choice=choice,
            allowed=allowed,
            parallel=self.parallel_tool_calls is not False,
            schema_field=_SCHEMA_FIELD,
        )

    def asked_format(self) -> Guide | None:
        match self._format:
            case JsonObjectFormat():
                return Guide(kind="json_object", field="text.format")
            case SchemaFormat() as given:
                return schema_guide(given, "text.format.schema")
            case _:
                return None

    def _settings(self) -> dict[str, Any]:
        """Returns the request's settings that the answer repeats. None means the model's own
        value.
        """
        choice = self.tool_choice or "auto"
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {
                "effort": self.reasoning.effort if self.reasoning else None,
                "summary": None,
            },
            "safety_identifier": self.safety_identifier,
            "store": False,
            "temperature": self.temperature,
            "text": {"format": self._format.model_dump(by_alias=True), **self._verbosity()},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.echo() for tool in self.tools or []],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": self.truncation or "disabled",
            "user": self.user,
        }

    def _verbosity(self) -> dict[str, str]:
        verbosity = self.text.verbosity if self.text else None
        return {} if verbosity is None else {"verbosity": verbosity}


class InputTokensRequest(ResponseRequest):
    """Request that only counts the input tokens of a response."""

    def generation(self, answer: dict[str, Any]) -> Generation:
        generation = super().generation(answer)
        return msgspec.structs.replace(generation, api="input_tokens", guide=None, stream=False)
