"""`POST /v1/messages` and `POST /v1/messages/count_tokens`: requests of Anthropic's clients."""

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BeforeValidator, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from stoker.inference.anthropic.blocks import SystemContent
from stoker.inference.anthropic.conversation import InputMessage, for_template, shown_tools
from stoker.inference.openai.answer_forms import Schema, check_schema_is_named
from stoker.inference.openai.items import served_only
from stoker.inference.openai.messages import MAX_MESSAGES, MAX_TOOLS, Text
from stoker.inference.openai.prompting import TemplatedRequest
from stoker.inference.openai.sampling import (
    MAX_TOKENS,
    ModelRequest,
    Name,
    OpenAIRequest,
    StopString,
)
from stoker.models.tasks.field_checks import refusal
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Conversation, Generation, Guide, Sampling, Tools

EXAMPLE: dict[str, Any] = {
    "model": "tiny-chat",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
TOOL_NAME = r"^[a-zA-Z0-9_-]{1,128}$"
_NO_CODE = "is not supported: models call tools directly, not from code"
_NO_CONTAINER = "is not supported: the server runs no code in containers"
_NO_MCP = (
    "is not supported by this endpoint: send the tools of the server as 'tools'. Agents "
    "(POST /v1/agents) call MCP servers"
)


def _own_tool(value: Any) -> Any:
    if isinstance(value, str) and value != "custom":
        raise ValueError(
            f"'{value}' is not supported: only Anthropic's servers and models have this tool. "
            "Define a tool of your own with 'name' and 'input_schema'"
        )
    return value


class MessageTool(OpenAIRequest):
    type: Annotated[Literal["custom"] | None, BeforeValidator(_own_tool)] = None
    name: str = Field(pattern=TOOL_NAME)
    description: Text | None = None
    input_schema: dict[str, Any] = Field(max_length=4096, description="A JSON schema of an object.")
    strict: bool | None = Field(
        default=None, description="Reject a schema that cannot be fully enforced."
    )
    defer_loading: bool | None = Field(
        default=None,
        description="True: the model sees the tool only after a block `tool_reference` or "
        "`tool_addition` that names it.",
    )
    allowed_callers: Annotated[
        list[Literal["direct"]] | None, served_only(["direct"], why=_NO_CODE)
    ] = Field(default=None, max_length=1)

    checks_spelling = True

    @model_validator(mode="before")
    @classmethod
    def _has_its_schema(cls, data: Any) -> Any:
        check_schema_is_named(cls, data, "input_schema")
        return data

    def for_template(self) -> dict[str, Any]:
        function = self.model_dump(include={"name", "description", "strict"}, exclude_none=True)
        return {"type": "function", "function": function | {"parameters": self.input_schema}}


class MessageToolChoice(OpenAIRequest):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(default=None, pattern=TOOL_NAME, description="With `tool`.")
    disable_parallel_tool_use: bool | None = Field(
        default=None, description="True: at most one call per answer."
    )

    checks_spelling = True

    @model_validator(mode="after")
    def _names_a_tool(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise refusal("is required", "name")
        return self


class ThinkingConfig(OpenAIRequest):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(
        default=None, ge=0, le=MAX_TOKENS, description="Not used: `max_tokens` limits the answer."
    )
    display: Literal["summarized", "omitted"] | None = Field(
        default=None,
        description="`omitted`: blocks without their text. Default: the text that the model wrote.",
    )

    checks_spelling = True


class MessageJsonFormat(OpenAIRequest):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class MessageOutputConfig(OpenAIRequest):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="For models whose chat template reads `reasoning_effort`."
    )
    format: MessageJsonFormat | None = None

    checks_spelling = True


class MessageMetadata(OpenAIRequest):
    user_id: str | None = Field(
        default=None,
        max_length=1024,
        description="End user of the call. All calls of one user may go to the same version.",
    )


class CountTokensRequest(TemplatedRequest, ModelRequest):
    messages: list[InputMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: SystemContent | None = None
    tools: list[MessageTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingConfig | None = Field(
        default=None,
        description="Default: disabled. Models whose chat template has a switch then do not "
        "reason. Reasoning of other models is left out of the answer.",
    )
    output_config: MessageOutputConfig | None = None
    container: Annotated[SkipJsonSchema[None], served_only(why=_NO_CONTAINER)] = None
    mcp_servers: Annotated[SkipJsonSchema[None], served_only([], why=_NO_MCP)] = None

    checks_spelling = True

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [tool.name for tool in self.tools or []]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise refusal(f"'{name}' is also the name of another tool", "tools", index, "name")
        choice = self.tool_choice
        if choice and choice.type in ("any", "tool") and not names:
            raise refusal("needs 'tools'", "tool_choice")
        if choice and choice.type == "tool" and choice.name not in names:
            raise refusal("is not among the tools", "tool_choice", "name")
        return self

    def generation(self, answer: dict[str, Any]) -> Generation:
        """Returns the internal form. Raises `InvalidRequestError`."""
        return Generation(
            api="count_tokens", prompts=[self._conversation()], sampling=Sampling(), answer=answer
        )

    def _conversation(self) -> Conversation:
        messages = for_template(self.messages, self.system)
        last = messages[-1]
        return Conversation(
            messages=messages,
            tools=self._tools(),
            variables=self.chat_template_kwargs or {},
            hints=self._hints(),
            # A last message of the assistant is the beginning of the answer.
            continues=last["role"] == "assistant" and "tool_calls" not in last,
        )

    def _hints(self) -> dict[str, Any]:
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        hints: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
        if self.output_config and self.output_config.effort:
            effort = self.output_config.effort
            hints["reasoning_effort"] = "high" if effort in ("xhigh", "max") else effort
        return hints

    def _tools(self) -> Tools | None:
        if not self.tools:
            return None
        choice = self.tool_choice or MessageToolChoice(type="auto")
        names = {
            tool.name: not tool.defer_loading or tool.name == choice.name for tool in self.tools
        }
        shown = shown_tools(self.messages, names)
        if not shown:
            return None
        allowed = sorted(shown) if len(shown) < len(names) else None
        functions = [tool.for_template() for tool in self.tools]
        schema_field = "tools[{}].input_schema"
        if choice.type == "tool":
            return Tools(
                functions=functions,
                choice="required",
                name=choice.name,
                allowed=allowed,
                parallel=False,
                schema_field=schema_field,
            )
        kinds: dict[str, Literal["auto", "none", "required"]] = {"any": "required", "none": "none"}
        return Tools(
            functions=functions,
            choice=kinds.get(choice.type, "auto"),
            allowed=allowed,
            parallel=not choice.disable_parallel_tool_use,
            schema_field=schema_field,
        )


class MessagesRequest(CountTokensRequest):
    max_tokens: int = Field(
        ge=1,
        le=MAX_TOKENS,
        description="A number beyond the room in the model's context ends the answer there, with "
        "the stop reason `model_context_window_exceeded`.",
    )
    stop_sequences: list[StopString] | None = Field(default=None, max_length=wire.MAX_STOPS)
    stream: bool | None = Field(
        default=None, description="Answer in server-sent events as the tokens are generated."
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="0: the likeliest token; default: the model's own."
    )
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=1 << 20)
    service_tier: Literal["auto", "standard_only"] | None = Field(
        default=None,
        description="`auto`: the tier of the header `x-stoker-service-tier`, else `default`. "
        "`standard_only`: `default`.",
    )
    metadata: MessageMetadata | None = None
    user: SkipJsonSchema[Name | None] = None

    @model_validator(mode="after")
    def _names_its_user(self) -> Self:
        if self.metadata:
            self.user = self.metadata.user_id
        return self

    def generation(self, answer: dict[str, Any]) -> Generation:
        tools = self._tools()
        forced = tools is not None and tools.choice == "required"
        return Generation(
            api="messages",
            prompts=[msgspec.structs.replace(self._conversation(), tools=tools)],
            sampling=Sampling(
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                stop=self.stop_sequences or [],
            ),
            # A form applies to the text. An answer that must consist of calls has none.
            guide=None if forced else self._guide(),
            stream=bool(self.stream),
            lowers_limit=True,
            answer=answer | {"thinking": self._shown_thinking()},
        )

    def _guide(self) -> Guide | None:
        form = self.output_config.format if self.output_config else None
        if form is None:
            return None
        field = "output_config.format.schema"
        return Guide(kind="json_schema", value=form.schema_, field=field, strict=True)

    def _shown_thinking(self) -> Literal["left out", "omitted", "shown"]:
        if self.thinking is None or self.thinking.type == "disabled":
            return "left out"
        return "omitted" if self.thinking.display == "omitted" else "shown"
