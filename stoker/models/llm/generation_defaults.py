"""Generation defaults from a model's own files, for fields that requests omit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stoker.models.llm import generation_fields
from stoker.models.llm.checkpoint import load_generation_config
from stoker.models.llm.logit_rules import LogitRules
from stoker.wire.generation_request import Sampling
from stoker.wire.notices import Notice, unserved

_NO_END = Notice(
    "no_end_of_text",
    "This model has no token that ends an answer: generation_config.json and "
    "config.json have no 'eos_token_id', and the tokenizer has no end token. "
    "Answers continue until 'max_tokens', a 'stop', or the end of the context.",
)


@dataclass(frozen=True)
class Defaults:
    """Defaults for fields that requests may omit, and settings that only the model's files can
    contain.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ends: frozenset[int] = frozenset()
    """Tokens that end an answer."""
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    min_length: int = 0
    """Minimum tokens of prompt and answer together."""
    stop: Sequence[str] = ()
    rules: LogitRules | None = field(default=None, compare=False)
    """None if the files contain no rules that change logits."""
    notices: Sequence[Notice] = field(default=(), compare=False)
    """Notices of fields without effect, and of missing end tokens."""
    unruled: Sequence[Notice] = field(default=(), compare=False)
    """Further notices that apply if the engine does not support `rules`."""

    @classmethod
    def read(
        cls,
        folder: Path,
        tokenizer: Any,
        *,
        ends: Iterable[int] = (),
        max_length: int = 0,
        vocabulary: int = 0,
    ) -> "Defaults":
        """Reads the defaults of a model folder.

        Args:
            ends: further tokens that end an answer, such as the chat template's end of a turn.
            max_length: maximum tokens of prompt and answer. 0 means any number.
            vocabulary: width of the logits. 0 means that logits stay unchanged.
        """
        fields, file = load_generation_config(folder)
        if _is_idle(fields, max_length):
            fields = {name: value for name, value in fields.items() if name != "max_length"}
        values, notices = generation_fields.parsed(fields, file)
        rules = None
        try:
            rules = LogitRules(values, vocabulary) if vocabulary else None
        except ValueError as error:
            notices.append(unserved(_WATERMARK, values.pop(_WATERMARK), str(error), file))
            rules = LogitRules(values, vocabulary)
        known = {*values.get("eos_token_id", ()), *ends}
        if tokenizer.eos_token_id is not None:
            known.add(tokenizer.eos_token_id)
        is_greedy = values.get("do_sample") is False
        settings: dict[str, Any] = {name: values[name] for name in _AS_THEY_ARE if name in values}
        if is_greedy:
            settings["temperature"] = 0.0
        return cls(
            **settings,
            ends=frozenset(known),
            stop=values.get("stop_strings", ()),
            rules=rules or None,
            notices=notices if known else [*notices, _NO_END],
            unruled=[
                unserved(name, fields[name], "the engine does not apply it", file)
                for name in (rules.names if rules else ())
            ],
        )

    def filled(self, given: Sampling, prompt: int = 0) -> Sampling:
        """Returns a request's sampling options, completed with the model's defaults. Leaves out the
        number of tokens, which also depends on the context.

        Args:
            prompt: tokens of the prompt.
        """
        least = self.min_new_tokens
        defaults: Mapping[str, Any] = {
            "min_tokens": max(0, self.min_length - prompt) if least is None else least,
            **{name: getattr(self, name) for name in _SAMPLING},
        }
        changes = {name: value for name, value in defaults.items() if getattr(given, name) is None}
        return msgspec.structs.replace(given, **changes)


def _is_idle(given: Mapping[str, Any], most: int) -> bool:
    """Returns True if 'max_length' of the file limits no answer beyond the other limits."""
    longest = given.get("max_length")
    is_beyond = isinstance(longest, int) and 0 < most <= longest
    return is_beyond or given.get("max_new_tokens") is not None


_WATERMARK = "watermarking_config"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_AS_THEY_ARE = (*_SAMPLING, "max_new_tokens", "min_new_tokens", "min_length")
