"""What requests for generated text have in common: OpenAI's names, and vLLM's for the rest."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from stoker.strictness import Strict
from stoker.tasks.base import refusal
from stoker.tasks.inputs import MAX_TOKEN_ID
from stoker.wire import generation_request as wire
from stoker.wire.generation_request import Guide, Sampling

MAX_TOKENS = 1 << 20
MAX_TEXT_CHARS = 1 << 20

StopString = Annotated[str, Field(min_length=1, max_length=512)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


class OpenAIRequest(Strict):
    """Unknown fields are ignored, because OpenAI's clients send new ones all the time."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    # Numbers are texts in some of its types, such as a video's seconds.
    texts_for_values = "always"


class ModelRequest(OpenAIRequest):
    """Names the deployment that is asked."""

    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="The deployment's model id; needed where the key covers several.",
    )


class StreamOptions(OpenAIRequest):
    include_usage: bool = Field(
        default=False, description="A last chunk, without choices, counts the tokens."
    )
    include_obfuscation: bool = Field(default=False, description="Not used.")


class StructuredOutputs(BaseModel):
    """One form that the whole answer has to have."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    regex: str | None = Field(default=None, min_length=1, max_length=65_536)
    choice: list[Annotated[str, Field(min_length=1, max_length=4096)]] | None = Field(
        default=None, min_length=1, max_length=1024
    )
    grammar: str | None = Field(
        default=None, min_length=1, max_length=65_536, description="In Lark's or GBNF's notation."
    )
    json_: dict[str, Any] | None = Field(
        default=None, alias="json", max_length=4096, description="A JSON schema."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self.given()) != 1:
            raise ValueError("give exactly one of regex, choice, grammar and json")
        return self

    def given(self) -> dict[str, Any]:
        named = {
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "json_schema": self.json_,
        }
        return {kind: value for kind, value in named.items() if value is not None}

    def guide(self) -> Guide:
        ((kind, value),) = self.given().items()
        return Guide(kind=kind, value=value, field="structured_outputs")  # pyright: ignore[reportArgumentType]


_NEVER = {
    "prompt_embeds": "is not accepted: a prompt is a text or tokens, not what a model makes of it"
}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class GenerationRequest(ModelRequest):
    """Fields that chat and text completions share."""

    stream: bool | None = Field(
        default=None, description="Answer in server-sent events, as the tokens are drawn."
    )
    stream_options: StreamOptions | None = None
    n: int | None = Field(
        default=None, ge=1, le=wire.MAX_CHOICES, description="Answers to each prompt; default: 1."
    )
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    min_tokens: int | None = Field(
        default=None,
        ge=0,
        le=MAX_TOKENS,
        description="Fewest tokens to draw; default: the model's own.",
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="0: the likeliest token; default: the model's own."
    )
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(
        default=None, ge=-1, le=1_000_000, description="Draw from so many likeliest; 0 or -1: any."
    )
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: (
        Annotated[
            list[StopString],
            Field(max_length=wire.MAX_STOPS),
            BeforeValidator(_listed, json_schema_input_type=str | list[str]),
        ]
        | None
    ) = None
    stop_token_ids: list[TokenId] = Field(default=[], max_length=128)
    ignore_eos: bool = Field(
        default=False, description="Go on after the model's own end; for measuring."
    )
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=wire.MIN_PENALTY, le=wire.MAX_PENALTY)
    logit_bias: (
        dict[Annotated[str, Field(pattern=r"^\d{1,10}$")], Annotated[float, Field(ge=-100, le=100)]]
        | None
    ) = Field(default=None, max_length=wire.MAX_LOGIT_BIAS)
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="A form that the answer has to have, beside JSON's."
    )
    user: str | None = Field(
        default=None,
        max_length=1024,
        description="On whose behalf; all calls of one may go to the same version.",
    )

    refused: ClassVar[dict[str, str]] = {}
    """Known fields that nothing here can honour → why."""

    @model_validator(mode="before")
    @classmethod
    def _honoured(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name, why in (_NEVER | cls.refused).items():
                if data.get(name) is not None:  # pyright: ignore[reportUnknownMemberType]
                    raise refusal(why, name)
        return data  # pyright: ignore[reportUnknownVariableType]

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
            ignore_eos=self.ignore_eos,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(token): value for token, value in (self.logit_bias or {}).items()},
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


class PromptTokensDetails(BaseModel):
    cached_tokens: int = Field(description="Found computed: the beginning was a known one.")


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


FinishReason = Literal["stop", "length", "tool_calls"]
