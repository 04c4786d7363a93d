"""Models of the answers of `/v1/responses`, used for documentation only: the replica writes the
answers.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from stoker.inference.openai.chat import TokenLogprob


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int = Field(
        description="The value that `usage.input_tokens` of the response would have."
    )


Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[None] = Field(description="Always empty.")
    logprobs: list[TokenLogprob]


class OutputMessage(BaseModel):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(BaseModel):
    type: Literal["function_call"]
    id: str
    status: Status
    call_id: str = Field(description="Id that the `function_call_output` must repeat.")
    name: str
    namespace: str | None = Field(default=None, description="Namespace of the tool, if it has one.")
    arguments: str = Field(description="JSON.")


class OutputCustomCall(BaseModel):
    type: Literal["custom_tool_call"]
    id: str
    status: Status
    call_id: str = Field(description="Id that the `custom_tool_call_output` must repeat.")
    name: str
    namespace: str | None = Field(default=None, description="Namespace of the tool, if it has one.")
    input: str


class OutputReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputSummary(BaseModel):
    type: Literal["summary_text"]
    text: str


class OutputReasoning(BaseModel):
    """Text that the model wrote before its answer, if it does so."""

    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[OutputSummary] = Field(
        description="The reasoning, if the request asks for a summary."
    )
    content: list[OutputReasoningText] = Field(description="The reasoning, without a summary.")
    encrypted_content: str | None = Field(
        default=None, description="The reasoning, sealed. Only the same server can read it."
    )


class OutputCompaction(BaseModel):
    type: Literal["compaction"]
    id: str
    encrypted_content: str = Field(
        description="Summary of the conversation, sealed. Only the same server can read it."
    )


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class FailureDetails(BaseModel):
    code: Literal["server_error"]
    message: str


class InputTokensDetails(BaseModel):
    cached_tokens: int = Field(
        description="Tokens of a known beginning, which were already computed."
    )
    cache_write_tokens: int = Field(
        description="Always 0: storing tokens in the cache costs nothing."
    )


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(BaseModel):
    """A response. It repeats the request's settings."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix seconds.")
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: FailureDetails | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[
        Annotated[
            OutputMessage | OutputCall | OutputCustomCall | OutputReasoning | OutputCompaction,
            Field(discriminator="type"),
        ]
    ]
    usage: ResponseUsage | None = Field(description="Null until the end of the answer.")
    background: bool
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default", "flex", "priority"] = Field(description="The used tier.")
    store: bool
    temperature: float | None = Field(description="Null means the model's own value.")
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: Sequence[dict[str, Any]]
    top_logprobs: int
    top_p: float | None = Field(description="Null means the model's own value.")
    truncation: Literal["auto", "disabled"]
    user: str | None


class CompactedConversation(BaseModel):
    id: str
    object: Literal["response.compaction"]
    created_at: int = Field(description="Unix seconds.")
    output: list[OutputCompaction] = Field(
        description="One item. It replaces all items of the input."
    )
    usage: ResponseUsage
