"""Models of the answers of `/v1/messages`, used for documentation only: the replica writes them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class MessageTokens(BaseModel):
    input_tokens: int = Field(
        description="The sum of the input tokens that the message would report."
    )


class AnsweredText(BaseModel):
    type: Literal["text"]
    text: str


class AnsweredThinking(BaseModel):
    """Text that the model wrote before its answer, if `thinking` is enabled."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnsweredToolUse(BaseModel):
    type: Literal["tool_use"]
    id: str = Field(description="Id that the `tool_result` must repeat.")
    name: str
    input: dict[str, Any]


StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class OutputDetails(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    input_tokens: int = Field(description="Tokens of the prompt that were computed.")
    cache_creation_input_tokens: int = Field(
        description="Always 0: storing tokens in the cache costs nothing."
    )
    cache_read_input_tokens: int = Field(
        description="Tokens of a known beginning, which were already computed."
    )
    output_tokens: int
    output_tokens_details: OutputDetails
    service_tier: Literal["standard", "priority", "batch"] = Field(
        description="The used tier: `standard` for `default`, `batch` for `flex`."
    )


class MessageObject(BaseModel):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[
        Annotated[AnsweredText | AnsweredThinking | AnsweredToolUse, Field(discriminator="type")]
    ]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage
