"""Text generation: the options of a request, and stages that run `generate` with them.

The gateway imports this module through the task files, so torch is imported inside functions.
"""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from stoker.models.stages.base import InputError, Stages
from stoker.wire.generation_request import MAX_PENALTY, MIN_PENALTY
from stoker.wire.notices import Notice, unserved

if TYPE_CHECKING:
    import torch

DEFAULT_NEW_TOKENS = 256
MAX_NEW_TOKENS = 4096
MAX_BEAMS = 16
MIN_TEMPERATURE = 1e-6
"""Minimum temperature. Logits are divided by it and must not overflow."""

Options = tuple[tuple[str, Any], ...]
"""Arguments of `generate`, sorted by name. Hashable, so that samples with equal options share a
batch.
"""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed")
_BEAMS = ("length_penalty", "early_stopping")


class _Generation(BaseModel):
    """Options by transformers' names. Omitted options keep the model's own values."""

    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NEW_TOKENS,
        description="Maximum number of tokens to generate. Default: the model's own "
        f"`max_new_tokens` or `max_length`, else {DEFAULT_NEW_TOKENS}, within the "
        "model's own limit.",
    )
    min_new_tokens: int | None = Field(
        default=None, ge=0, le=MAX_NEW_TOKENS, description="Minimum number of tokens to generate."
    )
    num_beams: int | None = Field(
        default=None, ge=1, le=MAX_BEAMS, description="Number of beams. 1 means no beam search."
    )
    do_sample: bool | None = Field(
        default=None, description="Sample tokens at random instead of choosing the likeliest."
    )
    temperature: float | None = Field(
        default=None,
        ge=MIN_TEMPERATURE,
        le=100,
        description="Values above 1 flatten the distribution to sample from.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Sample from the likeliest tokens with this total probability.",
    )
    top_k: int | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Sample from this many likeliest tokens. 0 means all tokens.",
    )
    repetition_penalty: float | None = Field(
        default=None,
        ge=MIN_PENALTY,
        le=MAX_PENALTY,
        description="Values above 1 make repetitions of generated tokens less likely.",
    )
    length_penalty: float | None = Field(
        default=None,
        ge=-10,
        le=10,
        description="For beam search: values above 0 favour longer texts.",
    )
    no_repeat_ngram_size: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Length of token sequences that must not repeat. 0 means no limit.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Makes sampling repeatable, separately for each input.",
    )


class GenerateKwargs(_Generation):
    """Further options by the names of `generate`. Other names are rejected."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    early_stopping: bool | Literal["never"] | None = Field(
        default=None, description="Condition that ends beam search, as transformers defines it."
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Minimum probability of a token, as a share of the likeliest token's.",
    )
    typical_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Sample from locally typical tokens with this total probability.",
    )


class GenerationOptions(_Generation):
    """Mix-in with the generation fields of a request, in addition to `TaskRequest`."""

    generate_kwargs: GenerateKwargs | None = Field(
        default=None,
        validation_alias=AliasChoices("generate_kwargs", "generate_parameters"),
        description="Options of `generate` in an object: these and some rarer ones. "
        "`generate_parameters` is accepted, too.",
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        further = self.generate_kwargs or GenerateKwargs()
        if twice := sorted(further.model_fields_set & self.model_fields_set):
            raise ValueError(f"'{twice[0]}' is given twice: in 'generate_kwargs' and outside it")
        return self


class GenerateStages(Stages):
    """Stages that run `generate`. Samples with equal options share a batch.

    A subclass sets `tokenizer`, creates samples with `call=self.call_of(parameters)` and
    `alone=self.alone(parameters)`, and reads outputs with `text`. Greedy and beam search return the
    same answer in any batch, if the features mark the padding.
    """

    tokenizer: Any

    def call_of(
        self, parameters: Mapping[str, Any], *, prompt: int = 1, **forced: Hashable
    ) -> Options:
        """Returns the options of a request, checked against the model.

        Args:
            prompt: Number of tokens in the decoder before the first generated one.
            forced: Further arguments of `generate` that the server chooses, not the client.

        Raises:
            InputError: The model does not support an option. The error names it.
        """
        options, model_options = _given(parameters), self._own_options()
        _refuse_unused(options, model_options)
        limit = self._new_tokens_limit(prompt)
        wished = options.setdefault(
            "max_new_tokens", min(_default_tokens(model_options, prompt), limit)
        )
        if wished > limit:
            raise _refusal("max_new_tokens", f"is {wished}; this model generates at most {limit}.")
        if options.get("min_new_tokens", 0) > wished:
            raise _refusal("min_new_tokens", f"must not exceed 'max_new_tokens', {wished}.")
        return tuple(sorted((options | forced).items()))

    def alone(self, parameters: Mapping[str, Any]) -> bool:
        """Returns True if a sample must not share a batch.

        A seed reproduces only the same draws. Options that compare with the input's tokens would
        read padding as input.
        """
        options = self._own_options()
        reads_input = any(options.get(name) not in off for name, off in _READING_INPUT.items())
        return "seed" in _given(parameters) or reads_input

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        """Returns `sequences`: the decoder's tokens, (batch, longest), int64, including the start
        token, and `INVALID`.
        """
        import torch

        from stoker.models.stages.score_check import generated

        library: Any = torch
        options = dict(cast("Options", call))
        if self._own_options().get("stop_strings"):
            options["tokenizer"] = self.tokenizer
        if (seed := options.pop("seed", None)) is None:
            return generated(model, "sequences", **batch, **options)
        devices = [model.device] if model.device.type == "cuda" else []
        with library.random.fork_rng(devices=devices):
            library.manual_seed(seed)
            return generated(model, "sequences", **batch, **options)

    def prompt_length(self, output: Mapping[str, Any]) -> int:
        """Returns the number of tokens in the decoder's prompt, before the generated ones."""
        prompt = output.get("decoder_input_ids")
        return 1 if prompt is None else prompt.shape[1]

    def text(self, output: Mapping[str, Any], **decoding: Any) -> str:
        """Returns the generated text of one sample.

        Args:
            output: Output with `sequences`, (1, length).
            decoding: Further arguments of the tokenizer's `decode`.
        """
        tokens, end = self._generated(output)
        options = {"skip_special_tokens": True} | decoding
        return self.tokenizer.decode(tokens[:end], **options).strip()

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        tokens, end = self._generated(output)
        # The end token was generated too.
        return super().counts(output) | {"output_tokens": min(end + 1, len(tokens))}

    def _generated(self, output: Mapping[str, Any]) -> tuple[list[int], int]:
        """Returns the decoder's tokens after its prompt, and the number of tokens before the end
        token.
        """
        skip = self.prompt_length(output)
        eos_token_id: Any = self._own_options().get("eos_token_id")
        ends = cast("list[int]", eos_token_id if isinstance(eos_token_id, list) else [eos_token_id])
        tokens: list[int] = output["sequences"][0, skip:].tolist()
        # Tokens after the end are padding, because other rows of the batch were longer.
        return tokens, next((at for at, token in enumerate(tokens) if token in ends), len(tokens))

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._generation_config: Any = model.generation_config
        self.notices = [*self.notices, *settle(self._generation_config)]

    def _own_options(self) -> dict[str, Any]:
        """Returns the options from the model's own generation_config.json."""
        return self._generation_config.to_dict()

    def _new_tokens_limit(self, prompt: int) -> int:
        """Returns the number of tokens that fit the decoder's positions. The last token needs no
        position.
        """
        decoder = self.config.get_text_config(decoder=True)
        for name in ("max_decoder_position_embeddings", "max_position_embeddings"):
            positions = getattr(decoder, name, None)
            if isinstance(positions, int) and positions > 0:
                return max(1, min(MAX_NEW_TOKENS, positions - prompt + 1))
        return MAX_NEW_TOKENS


def _default_tokens(own: Mapping[str, Any], prompt: int) -> int:
    """Returns the default for the maximum number of new tokens. Follows `generate`, except for its
    default of 20.
    """
    if most := own.get("max_new_tokens"):
        return int(most)
    longest = own.get("max_length")
    return max(1, int(longest) - prompt) if longest else DEFAULT_NEW_TOKENS


_READING_INPUT: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (None, 1, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
}
"""Maps fields of generation_config.json that read the encoder's input to the values that disable
them.
"""
_NOT_OURS: Mapping[str, Any] = {
    "assistant_early_exit": None,
    "cache_config": None,
    "cache_implementation": None,
    "low_memory": None,
    "max_cache_len": None,
    "output_attentions": None,
    "output_hidden_states": None,
    "output_logits": None,
    "output_scores": None,
    "prefill_chunk_size": None,
    "prompt_lookup_num_tokens": None,
    "return_dict_in_generate": None,
    "use_mtp": None,
}
"""Fields that do not change answers, only the return format of `generate` or its way of
computing.
"""
_NO_SUCH_SEARCH = "transformers supports it only with code from the hub"
_UNSERVED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "constraints": ((None,), _NO_SUCH_SEARCH),
    "diversity_penalty": ((None, 0, 0.0), _NO_SUCH_SEARCH),
    "dola_layers": ((None,), _NO_SUCH_SEARCH),
    "force_words_ids": ((None,), _NO_SUCH_SEARCH),
    "guidance_scale": ((None, 1, 1.0), "guidance by a second prompt is not supported"),
    "num_beam_groups": ((None, 1), _NO_SUCH_SEARCH),
    "num_return_sequences": ((None, 1), "each input has one answer"),
    "penalty_alpha": ((None, 0, 0.0), _NO_SUCH_SEARCH),
    "token_healing": ((None, False), "prompts are not shortened"),
}
"""Maps fields that have no effect here to the values that disable them and the reason."""


def settle(config: Any) -> list[Notice]:
    """Removes fields from a generation configuration that have no effect here or would make
    `generate` fail.

    Returns a notice for each removed field that would change answers.
    """
    for name, value in _NOT_OURS.items():
        setattr(config, name, value)
    notices: list[Notice] = []
    for name, (off, why) in _UNSERVED.items():
        if (value := getattr(config, name, None)) not in off:
            notices.append(unserved(name, value, why, "generation_config.json"))
        setattr(config, name, None)
    return notices


def _given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    further: Mapping[str, Any] = parameters.get("generate_kwargs") or {}
    named = {name: parameters[name] for name in _Generation.model_fields if name in parameters}
    return named | dict(further)


def _refuse_unused(given: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raises `InputError` for options that `generate` would ignore with only a warning in the
    log.
    """
    if not given.get("do_sample", own.get("do_sample")):
        for name in _SAMPLING:
            if name in given:
                raise _refusal(name, 'is an option of sampling: it needs "do_sample": true.')
    if (given.get("num_beams", own.get("num_beams")) or 1) == 1:
        for name in _BEAMS:
            if name in given:
                raise _refusal(name, "is an option of beam search: it needs 'num_beams' above 1.")


def _refusal(name: str, what: str) -> InputError:
    return InputError(f"'{name}' {what}", field=name, of_item=False)
