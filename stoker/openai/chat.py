"""`POST /v1/chat/completions`: the request and its answer."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, Tag, model_validator

from stoker.errors import InvalidRequestError
from stoker.openai.messages import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Message,
    NamedTool,
    Tool,
    ToolChoice,
    checked_tools,
    for_template,
)
from stoker.openai.sampling import (
    MAX_TOKENS,
    FinishReason,
    GenerationRequest,
    Name,
    OpenAIRequest,
    Usage,
)
from stoker.openai.unions import one_of
from stoker.tasks.base import refusal
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Conversation, Generation, Guide, Tools

EXAMPLE: dict[str, Any] = {
    "model": "tiny-chat",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


class JsonSchema(OpenAIRequest):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str | None = Field(default=None, max_length=4096)
    schema_: dict[str, Any] | None = Field(default=None, alias="schema", max_length=4096)
    strict: bool | None = Field(
        default=None,
        description="Objects take no members but those that the schema names, unless it says "
        "`additionalProperties` of them. The schema is enforced either way.",
    )


class TextFormat(OpenAIRequest):
    type: Literal["text"]


class JsonObjectFormat(OpenAIRequest):
    type: Literal["json_object"]


class JsonValueFormat(OpenAIRequest):
    """Any object or, as huggingface_hub's client sends a schema of its own accord, one of that."""

    type: Literal["json_object", "json"]
    value: dict[str, Any] | None = Field(
        default=None, max_length=4096, description="A JSON schema. Of the type `json`: required."
    )

    @model_validator(mode="after")
    def _has_a_schema(self) -> Self:
        if self.type == "json" and self.value is None:
            raise refusal("is required: a JSON schema", "value")
        return self


class JsonSchemaFormat(OpenAIRequest):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("<text>")]
    | Annotated[JsonValueFormat, Tag("<json_object>")]
    | Annotated[JsonValueFormat, Tag("<json>")]
    | Annotated[JsonSchemaFormat, Tag("<json_schema>")],
    one_of(
        "text",
        "json_object",
        "json",
        "json_schema",
        must_be="a form of the type 'text', 'json_object' or 'json_schema'",
    ),
]

_TEXT_ONLY = "is not served: this server answers in text."


class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="The newer name of `max_tokens`."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=wire.MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(
        default=None, description="False: at most one call an answer."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="For models whose chat template knows it."
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None, description="For models whose chat template knows it; others: `medium`."
    )
    modalities: list[Literal["text"]] | None = Field(default=None, max_length=1)
    store: Literal[False] | None = Field(default=None, description="Nothing is stored.")
    metadata: dict[Name, Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16, description="Not used."
    )
    service_tier: Literal["auto", "default"] | None = Field(default=None, description="Not used.")
    prompt_cache_key: Name | None = Field(default=None, description="Not used.")
    prompt_cache_retention: Literal["in_memory"] | None = Field(
        default=None, description="What is kept of prompts is kept in memory only."
    )
    safety_identifier: Name | None = Field(default=None, description="Not used.")

    refused: ClassVar[dict[str, str]] = {
        "audio": _TEXT_ONLY,
        "function_call": "is no longer a field of this convention: use 'tool_choice'",
        "functions": "is no longer a field of this convention: use 'tools'",
        "moderation": "is not served here",
        "prediction": "is not served here",
        "prompt_cache_options": "is not served: beginnings of prompts are kept as they come",
        "web_search_options": "is not served: this server opens no pages",
    }

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refusal("means the same as 'max_tokens': give one", "max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise refusal('needs "logprobs": true', "top_logprobs")
        free = (None, "none", "auto") if self.tools is not None else (None, "none")
        if not self.tools and self.tool_choice not in free:
            raise refusal("needs 'tools'", "tool_choice")
        forms = [self.structured_outputs, self._asks_for_json or None]
        if all(forms):
            raise refusal("and 'response_format' exclude each other", "structured_outputs")
        return self

    @property
    def _asks_for_json(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    def generation(self, answer: dict[str, Any]) -> Generation:
        """The internal form. Raises `InvalidRequestError`."""
        newer = self.max_completion_tokens
        tools = self._tools()
        forced = tools is not None and tools.choice == "required"
        return Generation(
            api="chat",
            prompts=[
                Conversation(
                    messages=for_template(self.messages),
                    tools=tools,
                    effort=self.reasoning_effort,
                    verbosity=self.verbosity,
                )
            ],
            sampling=self.sampling(
                max_tokens=self.max_tokens if newer is None else newer,
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            ),
            # A form is that of the text: an answer that has to be calls has none.
            guide=None if forced else self._guide(),
            n=self.n or 1,
            stream=bool(self.stream),
            limit_field="max_tokens" if newer is None else "max_completion_tokens",
            answer=answer | {"include_usage": self.include_usage},
        )

    def _tools(self) -> Tools | None:
        if not self.tools:
            return None
        functions = checked_tools(self.tools)
        parallel = self.parallel_tool_calls is not False
        choice = self.tool_choice or "auto"
        if isinstance(choice, str):
            return Tools(functions=functions, choice=choice, parallel=parallel)
        named = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
        names = [one.function.name for one in named]
        for name in names:
            if all(one["function"]["name"] != name for one in functions):
                raise InvalidRequestError(
                    f"'tool_choice' names '{name}', which is not among the tools.",
                    param="tool_choice",
                )
        if isinstance(choice, NamedTool):
            return Tools(functions=functions, choice="required", name=names[0], parallel=False)
        mode = choice.allowed_tools.mode
        return Tools(functions=functions, choice=mode, allowed=names, parallel=parallel)

    def _guide(self) -> Guide | None:
        if self.structured_outputs:
            return self.structured_outputs.guide()
        match self.response_format:
            case JsonValueFormat(value=None):
                return Guide(kind="json_object", field="response_format")
            case JsonValueFormat(value=schema):
                return Guide(kind="json_schema", value=schema, field="response_format.value")
            case JsonSchemaFormat(json_schema=given):
                schema = given.schema_ if given.schema_ is not None else {"type": "object"}
                where = "response_format.json_schema.schema"
                strict = bool(given.strict)
                return Guide(kind="json_schema", value=schema, field=where, strict=strict)
            case _:
                return None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class Logprobs(BaseModel):
    content: list[TokenLogprob] | None
    refusal: None = None


class AnsweredFunction(BaseModel):
    name: str
    arguments: str = Field(description="JSON.")


class AnsweredCall(BaseModel):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = Field(
        default=None, description="What the model wrote before its answer, where it does."
    )
    tool_calls: list[AnsweredCall] | None = None


class Choice(BaseModel):
    index: int
    message: AnsweredMessage
    logprobs: Logprobs | None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Unix seconds.")
    model: str
    choices: list[Choice]
    usage: Usage
