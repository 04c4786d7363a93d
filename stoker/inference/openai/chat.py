"""`POST /v1/chat/completions`: request and response."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.messages import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Message,
    NamedTool,
    Tool,
    ToolChoice,
    checked_tools,
    for_template,
)
from stoker.inference.openai.prompting import Documents, PromptCutting, TemplatedRequest
from stoker.inference.openai.response_formats import ResponseFormat, format_guide
from stoker.inference.openai.sampling import (
    MAX_TOKENS,
    NOT_IN_CALLS,
    FinishReason,
    GenerationRequest,
    Name,
    Usage,
)
from stoker.models.tasks.base import refusal
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Conversation, Generation, Guide, Tools

EXAMPLE: dict[str, Any] = {
    "model": "tiny-chat",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


class ChatRequest(TemplatedRequest, PromptCutting, GenerationRequest):
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="The newer name of `max_tokens`."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=wire.MAX_LOGPROBS)
    response_format: ResponseFormat | None = None
    documents: Documents | None = Field(
        default=None, description="For models whose chat template reads `documents`."
    )
    add_generation_prompt: bool | None = Field(
        default=None,
        description="False: the prompt omits the tokens that begin an answer. Default: true.",
    )
    continue_final_message: bool = Field(
        default=False, description="The answer continues the text of the last message."
    )
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = Field(
        default=None, description="False: at most one call per answer."
    )
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="For models whose chat template supports it."
    )
    verbosity: Literal["low", "medium", "high"] | None = Field(
        default=None,
        description=(
            "For models whose chat template supports it. Other models accept only `medium`."
        ),
    )
    modalities: list[Literal["text"]] | None = Field(default=None, max_length=1)
    store: Literal[False] | None = Field(default=None, description="Nothing is stored.")
    metadata: dict[Name, Annotated[str, Field(max_length=512)]] | None = Field(
        default=None, max_length=16, description="Not used."
    )
    prompt_cache_key: Name | None = Field(default=None, description="Not used.")
    prompt_cache_retention: Literal["in_memory"] | None = Field(
        default=None, description="Prompt caches stay in memory only."
    )
    safety_identifier: Name | None = Field(default=None, description="Not used.")

    endpoint = "chat"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refusal(
                "means the same as 'max_tokens'. Send only one of them", "max_completion_tokens"
            )
        if self.top_logprobs is not None and not self.logprobs:
            raise refusal('needs "logprobs": true', "top_logprobs")
        free = (None, "none", "auto") if self.tools is not None else (None, "none")
        if not self.tools and self.tool_choice not in free:
            raise refusal("needs 'tools'", "tool_choice")
        if self.bad_words and self.tools and self.tool_choice != "none":
            raise refusal(NOT_IN_CALLS, "bad_words")
        if self.continue_final_message and self.add_generation_prompt:
            why = "must be false if 'continue_final_message' is true: no new message begins"
            raise refusal(why, "add_generation_prompt")
        return self

    def generation(self, answer: dict[str, Any]) -> Generation:
        """Returns the internal form. Raises `InvalidRequestError`."""
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
                    variables=self.chat_template_kwargs or {},
                    documents=self.documents,
                    begins_answer=self.add_generation_prompt is not False,
                    continues=self.continue_final_message,
                )
            ],
            sampling=self.sampling(
                max_tokens=self.max_tokens if newer is None else newer,
                logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            ),
            # A form applies to the text. An answer that must consist of calls has none.
            guide=None if forced else self.form(),
            cut=self.cut(),
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
        names = [tool.function.name for tool in named]
        for name in names:
            if all(tool["function"]["name"] != name for tool in functions):
                raise InvalidRequestError(
                    f"'tool_choice' names '{name}', which is not among the tools.",
                    param="tool_choice",
                )
        if isinstance(choice, NamedTool):
            return Tools(functions=functions, choice="required", name=names[0], parallel=False)
        mode = choice.allowed_tools.mode
        return Tools(functions=functions, choice=mode, allowed=names, parallel=parallel)

    def asked_format(self) -> Guide | None:
        return format_guide(self.response_format)


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
        default=None, description="Reasoning that the model wrote before its answer, if any."
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
    service_tier: Literal["default", "flex", "priority"] | None = Field(
        default=None, description="The used tier, if the request names one."
    )
