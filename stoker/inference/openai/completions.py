"""`POST /v1/completions`: request and response."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, Field, PlainValidator, model_validator

from stoker.inference.openai.prompting import PromptCutting
from stoker.inference.openai.response_formats import ResponseFormat, format_guide
from stoker.inference.openai.sampling import (
    MAX_TEXT_CHARS,
    MAX_TOKENS,
    FinishReason,
    GenerationRequest,
    Usage,
)
from stoker.models.tasks.base import refusal
from stoker.models.tasks.inputs import checked_tokens, not_texts_or_tokens
from stoker.wire.generation_request import Generation, Guide

MAX_PROMPTS = 128
DEFAULT_TOKENS = 16
"""Default number of tokens by OpenAI's convention."""
EXAMPLE: dict[str, Any] = {"model": "tiny-chat", "prompt": "1, 2, 3, 4,", "max_tokens": 12}


def _prompts(value: Any) -> Any:
    """Returns a list of prompts, each a text or a list of tokens that are used unchanged."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise not_texts_or_tokens()
    prompts = cast("list[Any]", value)
    if type(prompts[0]) is int:
        return [checked_tokens(prompts)]
    if len(prompts) > MAX_PROMPTS:
        # The field's own limit reports this before each item is checked.
        return prompts
    return [prompt if isinstance(prompt, str) else checked_tokens(prompt) for prompt in prompts]


def _taken(value: Any) -> list[int]:
    if not isinstance(value, list):
        raise not_texts_or_tokens()
    return cast("list[int]", value)


class CompletionRequest(PromptCutting, GenerationRequest):
    prompt: Annotated[
        list[
            Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
            # The items were checked together. Checking each one would take a microsecond.
            | Annotated[list[int], PlainValidator(_taken)]
        ],
        Field(max_length=MAX_PROMPTS, description="Texts, or lists of the model's own token ids."),
        BeforeValidator(
            _prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
        ),
    ]
    logprobs: int | None = Field(
        default=None, ge=0, le=5, description="Number of alternatives to report for each token."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description=f"Default: the model's `max_new_tokens`, else {DEFAULT_TOKENS}; 0 with `echo` "
        "and `logprobs` only scores prompts.",
    )
    echo: bool = Field(
        default=False,
        description=(
            "Start the answer with the prompt, and with `logprobs` with its tokens' log "
            "probabilities."
        ),
    )
    best_of: int | None = Field(default=None, ge=1, le=128, description="Must equal `n`.")

    response_format: ResponseFormat | None = None

    endpoint = "completions"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refusal("is not supported, because answers are not ranked. Use 'n'", "best_of")
        if self.echo and self.truncate_prompt_tokens is not None:
            raise refusal(
                "cannot be combined with 'echo'. Send only one of them", "truncate_prompt_tokens"
            )
        return self

    def asked_format(self) -> Guide | None:
        return format_guide(self.response_format)

    def generation(self, answer: dict[str, Any]) -> Generation:
        """Returns the internal form."""
        return Generation(
            api="completions",
            prompts=list(self.prompt),
            sampling=self.sampling(
                max_tokens=self.max_tokens,
                default_tokens=DEFAULT_TOKENS,
                logprobs=self.logprobs,
                prompt_logprobs=self.logprobs if self.echo else None,
            ),
            guide=self.form(),
            cut=self.cut(),
            n=self.n or 1,
            echo=self.echo,
            stream=bool(self.stream),
            answer=answer | {"include_usage": self.include_usage},
        )


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="Null for the first token of a prompt.")
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix seconds.")
    model: str
    choices: list[CompletionChoice]
    usage: Usage
