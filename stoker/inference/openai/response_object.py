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
    arguments: str = Field(description="JSON.")


class OutputReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(BaseModel):
    """Text that the model wrote before its answer, if it does so."""

    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[None] = Field(description="Always empty.")
    content: list[OutputReasoningText]


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
    """A response. It repeats the request's settings. Null means the model's own value."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix seconds.")
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: FailureDetails | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[
        Annotated[OutputMessage | OutputCall | OutputReasoning, Field(discriminator="type")]
    ]
    usage: ResponseUsage | None = Field(description="Null until the end of the answer.")
    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default", "flex", "priority"] = Field(description="The used tier.")
    store: Literal[False]
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: Sequence[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    user: str | None
