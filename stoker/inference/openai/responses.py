"""`POST /v1/responses`: the request."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import Field, Tag, model_validator

from stoker.inference.openai.item_messages import for_template
from stoker.inference.openai.items import CompactionTrigger, Input, served_only
from stoker.inference.openai.messages import MAX_TOOLS, Text
from stoker.inference.openai.prompting import TemplatedRequest
from stoker.inference.openai.response_formats import (
    JsonObjectFormat,
    JsonSchema,
    TextFormat,
    schema_guide,
)
from stoker.inference.openai.response_tools import (
    AllowedResponseTools,
    ChosenResponseTool,
    Tool,
    ToolList,
    chosen_name,
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
from stoker.wire.generation_request import Conversation, Generation, Guide

EXAMPLE: dict[str, Any] = {"model": "tiny-chat", "input": "What is the capital of France?"}
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"


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


Summary = Literal["auto", "concise", "detailed"]


class ReasoningConfig(OpenAIRequest):
    checks_spelling = True

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="For models whose chat template supports `reasoning_effort`."
    )
    summary: Summary | None = Field(
        default=None,
        description="Any value: the reasoning is in `summary`, as the model wrote it, instead of "
        "in `content`. Models here write no separate summary.",
    )
    generate_summary: Summary | None = Field(default=None, description="As `summary`.")
    context: Annotated[
        Literal["auto"] | None,
        served_only("auto", why="is not supported: the chat template decides. Leave it out"),
    ] = None
    mode: Annotated[
        Literal["standard"] | None,
        served_only("standard", why="is not supported: models here have one mode. Leave it out"),
    ] = None


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
            description="`reasoning.encrypted_content`: the reasoning is also sealed, for clients "
            "that send it back.",
        )
    )
    tools: list[Tool] | None = Field(
        default=None,
        max_length=MAX_TOOLS,
        description="Hosted tools, such as `web_search`, are left out. The header "
        "`x-stoker-dropped` names their types.",
    )
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("<str>")]
            | Annotated[AllowedResponseTools, Tag("<allowed_tools>")]
            | Annotated[ChosenResponseTool, Tag("<other>")],
            one_of(
                "allowed_tools",
                must_be="'none', 'auto', 'required', one tool or 'allowed_tools'",
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
    background: bool | None = Field(
        default=None, description="True: answer at once, work as a job, and store the response."
    )
    store: bool | None = Field(
        default=None,
        description="True: store the response with its input. Default: `background`.",
    )
    previous_response_id: Name | None = Field(
        default=None, description="Stored response that the conversation continues."
    )
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
    compaction_object: ClassVar = "response"
    """Type of the answer that contains a compaction."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.top_logprobs and LOGPROBS not in (self.include or []):
            raise refusal(f'needs "include": ["{LOGPROBS}"]', "top_logprobs")
        known = self.tool_list.by_name
        choice = self.tool_choice
        if not known and choice not in (None, "none", "auto"):
            raise refusal("needs 'tools' of your own", "tool_choice")
        if isinstance(choice, ChosenResponseTool) and chosen_name(choice) not in known:
            raise refusal("is not among the tools", "tool_choice", "name")
        if isinstance(choice, AllowedResponseTools):
            for index, tool in enumerate(choice.tools):
                if chosen_name(tool) not in known:
                    place = ("tool_choice", "tools", index, "name")
                    raise refusal("is not among the tools", *place)
        if self.background and self.store is False:
            raise refusal("needs \"store\": true, or no 'store'", "background")
        if self.bad_words and self.tools and self.tool_choice != "none":
            raise refusal(NOT_IN_CALLS, "bad_words")
        return self

    @cached_property
    def tool_list(self) -> ToolList:
        return ToolList(self.tools or [])

    @property
    def compacts(self) -> bool:
        """True if the answer is a compaction of the conversation."""
        return not isinstance(self.input, str) and isinstance(self.input[-1], CompactionTrigger)

    @property
    def stores(self) -> bool:
        return bool(self.store or self.background)

    @property
    def is_sealed(self) -> bool:
        """True if the answer contains sealed text."""
        return ENCRYPTED in (self.include or []) or self.compacts

    @property
    def summary(self) -> Summary | None:
        reasoning = self.reasoning
        return (reasoning.summary or reasoning.generate_summary) if reasoning else None

    @property
    def _format(self) -> TextFormat | JsonObjectFormat | SchemaFormat:
        return (self.text and self.text.format) or TextFormat(type="text")

    def generation(self, answer: dict[str, Any]) -> Generation:
        """Returns the internal form. Raises `InvalidRequestError`."""
        if self.compacts:
            return self._compaction(answer)
        has_logprobs = LOGPROBS in (self.include or [])
        tools = self.tool_list.for_model(
            self.tool_choice, parallel=self.parallel_tool_calls is not False
        )
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
            answer=answer
            | {
                "settings": self._settings(),
                "calls": self.tool_list.calls(),
                "summarizes": self.summary is not None,
            },
        )

    def _compaction(self, answer: dict[str, Any]) -> Generation:
        """Returns the request for a summary of the conversation. Tools and forms do not apply."""
        return Generation(
            api="responses",
            prompts=[
                Conversation(
                    messages=for_template(self.input, self.instructions, summarizes=True),
                    effort=self.reasoning.effort if self.reasoning else None,
                    effort_field="reasoning.effort",
                    variables=self.chat_template_kwargs or {},
                    # A conversation that no longer fits is the usual reason for a compaction.
                    truncate=True,
                )
            ],
            sampling=self.sampling(max_tokens=self.max_output_tokens, logprobs=None),
            stream=bool(self.stream),
            limit_field="max_output_tokens",
            answer=answer | {"settings": self._settings(), "compacts": self.compaction_object},
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
            "background": bool(self.background),
            "frequency_penalty": self.frequency_penalty or 0.0,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "presence_penalty": self.presence_penalty or 0.0,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {
                "effort": self.reasoning.effort if self.reasoning else None,
                "summary": self.summary,
            },
            "safety_identifier": self.safety_identifier,
            "store": self.stores,
            "temperature": self.temperature,
            "text": {"format": self._format.model_dump(by_alias=True), **self._verbosity()},
            "tool_choice": choice
            if isinstance(choice, str)
            else choice.model_dump(exclude_none=True),
            "tools": self.tool_list.echo(),
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

    @property
    def stores(self) -> bool:
        return False

    def generation(self, answer: dict[str, Any]) -> Generation:
        generation = super().generation(answer)
        return msgspec.structs.replace(generation, api="input_tokens", guide=None, stream=False)


class CompactionRequest(ResponseRequest):
    """Request that replaces a conversation by one item. Answers are never streamed."""

    compaction_object: ClassVar = "response.compaction"

    @property
    def compacts(self) -> bool:
        return True

    @property
    def stores(self) -> bool:
        return False

    def generation(self, answer: dict[str, Any]) -> Generation:
        return msgspec.structs.replace(super().generation(answer), stream=False)
