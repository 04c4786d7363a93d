"""Shared fields of requests for generated text: OpenAI's names, and vLLM's for the others."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from stoker.base.strict_json import Strict
from stoker.inference.openai.answer_forms import FormFields
from stoker.models.tasks.field_checks import CheckedFields, refusal
from stoker.models.tasks.inputs import MAX_TOKEN_ID, checked_tokens
from stoker.models.tasks.service_tier import PrioritizedRequest
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Sampling

MAX_TOKENS = 1 << 20
MAX_TEXT_CHARS = 1 << 20
NOT_IN_CALLS = 'needs "tool_choice": "none": tool calls are not checked for words'
"""Reason why `bad_words` are rejected together with tools."""

StopString = Annotated[str, Field(min_length=1, max_length=512)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class OpenAIRequest(Strict, CheckedFields):
    """Base of requests, and of the objects in them, that ignore unknown fields."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    # OpenAI types some numbers as texts, such as a video's seconds.
    texts_for_values = "always"


class ModelRequest(OpenAIRequest):
    """Request that names the deployment to call."""

    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Model id of the deployment. Required if the key covers several.",
    )


def _only_at_the_end(value: Any) -> Any:
    if value:
        raise ValueError("is not supported. Use 'include_usage' for token counts in a last chunk")
    return value


class StreamOptions(OpenAIRequest):
    include_usage: bool = Field(
        default=False,
        description="Adds a last chunk without choices that contains the token counts.",
    )
    include_obfuscation: bool = Field(default=False, description="Not used.")
    continuous_usage_stats: Annotated[Literal[False] | None, BeforeValidator(_only_at_the_end)] = (
        None
    )

    checks_spelling = True


def _allowed(value: Any) -> list[int] | None:
    if value is None:
        return None
    most = wire.MAX_ALLOWED_TOKENS
    if not isinstance(value, list) or not 0 < len(cast("list[Any]", value)) <= most:
        raise ValueError(f"must be a list of 1 to {most} token ids")
    return checked_tokens(cast("list[Any]", value))


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GenerationRequest(PrioritizedRequest, ModelRequest, FormFields):
    """Fields that chat and text completions share."""

    stream: bool | None = Field(
        default=None, description="Answer in server-sent events as the tokens are generated."
    )
    stream_options: StreamOptions | None = None
    n: int | None = Field(
        default=None,
        ge=1,
        le=wire.MAX_CHOICES,
        description="Number of answers to each prompt. Default: 1.",
    )
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    min_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description="Minimum number of tokens to generate. Default: the model's own.",
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="0: the likeliest token; default: the model's own."
    )
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(
        default=None,
        ge=-1,
        le=1_000_000,
        description="Sample from this many most likely tokens; 0 or -1: all.",
    )
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    allowed_token_ids: (
        # The items are checked together. Checking each one would take a microsecond.
        Annotated[list[int], PlainValidator(_allowed, json_schema_input_type=list[TokenId])] | None
    ) = Field(
        default=None,
        description=(
            "Only these tokens may be generated. The answer ends early only if they "
            "include "
            "a token that ends it."
        ),
    )
    stop: (
        Annotated[
            list[StopString],
            Field(max_length=wire.MAX_STOPS),
            BeforeValidator(_listed, json_schema_input_type=str | list[str]),
        ]
        | None
    ) = None
    stop_token_ids: list[TokenId] = Field(default=[], max_length=128)
    include_stop_str_in_output: bool = Field(
        default=False, description="The text includes the stop string that ended it."
    )
    no_stop_trim: bool = Field(
        default=False, description="SGLang's name for `include_stop_str_in_output`."
    )
    ignore_eos: bool = Field(
        default=False, description="Continue after the model's own end, for measurements."
    )
    skip_special_tokens: bool = Field(
        default=True,
        description="False: the text contains the special tokens that the model writes.",
    )
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=wire.MIN_PENALTY, le=wire.MAX_PENALTY)
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^\d{1,10}$")], Annotated[float, Field(ge=-100, le=100)]]
        | None
    ) = Field(default=None, max_length=wire.MAX_LOGIT_BIAS)
    user: str | None = Field(
        default=None,
        max_length=1024,
        description="End user of the call. All calls of one user may go to the same version.",
    )

    @model_validator(mode="after")
    def _streamed(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise refusal('needs "stream": true', "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(
        self,
        *,
        max_tokens: int | None,
        default_tokens: int | None = None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> Sampling:
        return Sampling(
            max_tokens=max_tokens,
            default_tokens=default_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop or [],
            stop_token_ids=self.stop_token_ids,
            include_stop=self.include_stop_str_in_output or self.no_stop_trim,
            ignore_eos=self.ignore_eos,
            skip_special=self.skip_special_tokens,
            allowed_tokens=self.allowed_token_ids or [],
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(token): value for token, value in (self.logit_bias or {}).items()},
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(
        description="Tokens of a known beginning, which were already computed."
    )


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


FinishReason = Literal["stop", "length", "tool_calls"]
