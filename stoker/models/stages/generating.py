"""Generating text: the options a request may give, and stages that run `generate` with them.

Imported by the gateway through the task files, so torch is imported inside.
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
"""Logits are divided by it, and must not overflow."""

Options = tuple[tuple[str, Any], ...]
"""Arguments of `generate`, sorted by name: hashable, so that equal ones share a batch."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed")
_BEAMS = ("length_penalty", "early_stopping")


class _Generation(BaseModel):
    """Options by transformers' names; those left out are the model's own."""

    max_new_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NEW_TOKENS,
        description="Most tokens to generate; default: the model's own `max_new_tokens` or "
        f"`max_length`, else {DEFAULT_NEW_TOKENS}, and never more than it can.",
    )
    min_new_tokens: int | None = Field(
        default=None, ge=0, le=MAX_NEW_TOKENS, description="Fewest tokens to generate."
    )
    num_beams: int | None = Field(
        default=None, ge=1, le=MAX_BEAMS, description="Beams of the search; 1: none."
    )
    do_sample: bool | None = Field(
        default=None, description="Draw tokens at random instead of taking the likeliest."
    )
    temperature: float | None = Field(
        default=None,
        ge=MIN_TEMPERATURE,
        le=100,
        description="Above 1 flattens the distribution drawn from.",
    )
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Draw from the likeliest tokens of this total."
    )
    top_k: int | None = Field(
        default=None, ge=0, le=1_000_000, description="Draw from this many likeliest; 0: from all."
    )
    repetition_penalty: float | None = Field(
        default=None,
        ge=MIN_PENALTY,
        le=MAX_PENALTY,
        description="Above 1 makes generated tokens less likely again.",
    )
    length_penalty: float | None = Field(
        default=None, ge=-10, le=10, description="Of beam search: above 0 favours longer texts."
    )
    no_repeat_ngram_size: int | None = Field(
        default=None, ge=0, le=64, description="No sequence of so many tokens occurs twice; 0: any."
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="Makes sampling repeatable, input by input."
    )


class GenerateKwargs(_Generation):
    """Further options, as `generate` names them. Others are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    early_stopping: bool | Literal["never"] | None = Field(
        default=None, description="When beam search ends, as transformers defines it."
    )
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="Least share of the likeliest token's probability."
    )
    typical_p: float | None = Field(
        default=None, gt=0, le=1, description="Draw from locally typical tokens of this total."
    )


class GenerationOptions(_Generation):
    """Fields that a request of a generating task takes; a mix-in beside `TaskRequest`."""

    generate_kwargs: GenerateKwargs | None = Field(
        default=None,
        validation_alias=AliasChoices("generate_kwargs", "generate_parameters"),
        description="Options of `generate` in an object, these and some rarer ones; also taken "
        "as `generate_parameters`.",
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        further = self.generate_kwargs or GenerateKwargs()
        if twice := sorted(further.model_fields_set & self.model_fields_set):
            raise ValueError(f"'{twice[0]}' is given twice: in 'generate_kwargs' and beside it")
        return self


class GenerateStages(Stages):
    """Runs `generate`; samples with equal options share a batch.

    A subclass sets `tokenizer`, gives its samples `call=self.call_of(parameters)` and
    `alone=self.alone(parameters)`, and reads outputs with `text`. Greedy and beam search answer a
    sample alike whatever shares its batch, as long as its features say what is padding.
    """

    tokenizer: Any

    def call_of(
        self, parameters: Mapping[str, Any], *, prompt: int = 1, **forced: Hashable
    ) -> Options:
        """The options of a request, checked against the model.

        Args:
            prompt: tokens that stand in the decoder before the first generated one.
            forced: further arguments of `generate`, chosen here and not by the client.

        Raises:
            InputError: naming the option that the model cannot honour.
        """
        given, own = _given(parameters), self._own_options()
        _refuse_unused(given, own)
        limit = self._new_tokens_limit(prompt)
        wished = given.setdefault("max_new_tokens", min(_default_tokens(own, prompt), limit))
        if wished > limit:
            raise _refusal("max_new_tokens", f"is {wished}; this model generates at most {limit}.")
        if given.get("min_new_tokens", 0) > wished:
            raise _refusal("min_new_tokens", f"must not exceed 'max_new_tokens', {wished}.")
        return tuple(sorted((given | forced).items()))

    def alone(self, parameters: Mapping[str, Any]) -> bool:
        """Whether a sample needs a batch of its own: a seed repeats only the same draws, and what
        compares with the input's tokens would read padding as a part of the input.
        """
        own = self._own_options()
        reads_input = any(own.get(name) not in off for name, off in _READING_INPUT.items())
        return "seed" in _given(parameters) or reads_input

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        """`sequences`: the decoder's tokens, (batch, longest), int64, the start token included."""
        import torch

        library: Any = torch
        options = dict(cast("Options", call))
        if self._own_options().get("stop_strings"):
            options["tokenizer"] = self.tokenizer
        if (seed := options.pop("seed", None)) is None:
            return {"sequences": model.generate(**batch, **options)}
        devices = [model.device] if model.device.type == "cuda" else []
        with library.random.fork_rng(devices=devices):
            library.manual_seed(seed)
            return {"sequences": model.generate(**batch, **options)}

    def prompt_length(self, output: Mapping[str, Any]) -> int:
        """Tokens of the decoder's prompt, which stand before those generated."""
        prompt = output.get("decoder_input_ids")
        return 1 if prompt is None else prompt.shape[1]

    def text(self, output: Mapping[str, Any], **decoding: Any) -> str:
        """The generated text of one sample.

        Args:
            output: with `sequences`, (1, length).
            decoding: further arguments of the tokenizer's `decode`.
        """
        tokens, end = self._generated(output)
        options = {"skip_special_tokens": True} | decoding
        return self.tokenizer.decode(tokens[:end], **options).strip()

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        tokens, end = self._generated(output)
        # The token that ends it was generated, too.
        return super().counts(output) | {"output_tokens": min(end + 1, len(tokens))}

    def _generated(self, output: Mapping[str, Any]) -> tuple[list[int], int]:
        """The decoder's tokens after its prompt, and how many stand before the one that ends it."""
        skip = self.prompt_length(output)
        own: Any = self._own_options().get("eos_token_id")
        ends = cast("list[int]", own if isinstance(own, list) else [own])
        tokens: list[int] = output["sequences"][0, skip:].tolist()
        # What follows the end is padding: other rows of the batch were longer.
        return tokens, next((at for at, token in enumerate(tokens) if token in ends), len(tokens))

    def attach(self, model: Any) -> None:
        super().attach(model)
        self._generation_config: Any = model.generation_config
        self.notices = [*self.notices, *settle(self._generation_config)]

    def _own_options(self) -> dict[str, Any]:
        """What the model's own generation_config.json sets."""
        return self._generation_config.to_dict()

    def _new_tokens_limit(self, prompt: int) -> int:
        """As many as the decoder has positions for; the last one generated needs none."""
        decoder = self.config.get_text_config(decoder=True)
        for name in ("max_decoder_position_embeddings", "max_position_embeddings"):
            positions = getattr(decoder, name, None)
            if isinstance(positions, int) and positions > 0:
                return max(1, min(MAX_NEW_TOKENS, positions - prompt + 1))
        return MAX_NEW_TOKENS


def _default_tokens(own: Mapping[str, Any], prompt: int) -> int:
    """Most tokens to generate if the request does not say: as `generate`, but not its 20."""
    if most := own.get("max_new_tokens"):
        return int(most)
    longest = own.get("max_length")
    return max(1, int(longest) - prompt) if longest else DEFAULT_NEW_TOKENS


_READING_INPUT: Mapping[str, tuple[Any, ...]] = {
    "encoder_repetition_penalty": (None, 1, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0),
}
"""Fields of generation_config.json that look at the encoder's input → values that are off."""
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
"""Fields that change no answer, and the shape of what `generate` returns or how it is computed."""
_NO_SUCH_SEARCH = "transformers has it no more without code from the hub"
_UNSERVED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "constraints": ((None,), _NO_SUCH_SEARCH),
    "diversity_penalty": ((None, 0, 0.0), _NO_SUCH_SEARCH),
    "dola_layers": ((None,), _NO_SUCH_SEARCH),
    "force_words_ids": ((None,), _NO_SUCH_SEARCH),
    "guidance_scale": ((None, 1, 1.0), "there is no guidance by a second prompt"),
    "num_beam_groups": ((None, 1), _NO_SUCH_SEARCH),
    "num_return_sequences": ((None, 1), "an input has one answer"),
    "penalty_alpha": ((None, 0, 0.0), _NO_SUCH_SEARCH),
    "token_healing": ((None, False), "prompts are not shortened"),
}
"""Fields that have no effect here → values that are off, and why."""


def settle(config: Any) -> list[Notice]:
    """Takes from a model's generation configuration what has no effect here, or would have
    `generate` fail. Returns a notice of each field that would change answers.
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
    """Refuse what `generate` would leave out with no more than a warning in the log."""
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
