"""Applies the logit rules of a model's generation_config.json with transformers' own processors.

The order is that of `generate`. Biases and penalties come first, then forbidden and forced tokens.
For tokens drawn at random, the truncation of the distribution follows. Only models with such fields
in their files incur the cost.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import WatermarkingConfig
from transformers.generation import logits_process

from stoker.models.llm.token_edits import uploaded
from stoker.wire.generation_request import Sampling

_library: Any = logits_process
_Decay = _library.ExponentialDecayLengthPenalty
_EncoderPenalty = _library.EncoderRepetitionPenaltyLogitsProcessor
_Epsilon, _Eta = _library.EpsilonLogitsWarper, _library.EtaLogitsWarper
_ForcedBegin = _library.ForcedBOSTokenLogitsProcessor
_ForcedEnd = _library.ForcedEOSTokenLogitsProcessor
_MinNewTokens = _library.MinNewTokensLengthLogitsProcessor
_MinP, _TopP, _TopK = (
    _library.MinPLogitsWarper,
    _library.TopPLogitsWarper,
    _library.TopKLogitsWarper,
)
_NoBadWords = _library.NoBadWordsLogitsProcessor
_NoEncoderRepeat = _library.EncoderNoRepeatNGramLogitsProcessor
_NoRepeat = _library.NoRepeatNGramLogitsProcessor
_Penalty = _library.RepetitionPenaltyLogitsProcessor
_RemoveInvalid = _library.InfNanRemoveLogitsProcessor
_SequenceBias = _library.SequenceBiasLogitsProcessor
_Suppress = _library.SuppressTokensLogitsProcessor
_SuppressFirst = _library.SuppressTokensAtBeginLogitsProcessor
_Temperature, _TopH = _library.TemperatureLogitsWarper, _library.TopHLogitsWarper
_Typical = _library.TypicalLogitsWarper

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps tokens (1, length) and logits (1, vocabulary) to new logits."""


@dataclass(frozen=True)
class Processors:
    """Processors of one sequence for logits on one device."""

    shaping: Sequence[Processor]
    """Processors for every token."""
    drawing: Sequence[Processor]
    """Processors for tokens that are sampled at random. Empty if the request's options suffice."""


_SHAPING = (
    *("sequence_bias", "encoder_repetition_penalty", "no_repeat_ngram_size"),
    *("encoder_no_repeat_ngram_size", "bad_words_ids", "forced_bos_token_id"),
    *("forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "watermarking_config"),
)
_DRAWING = ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "watermarking_config")
_OFF: Mapping[str, Any] = {
    "encoder_repetition_penalty": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "remove_invalid_values": False,
}
_COLDEST = 1e-6


class SequenceRules:
    """The rules for one sequence."""

    def __init__(
        self, prompt: Sequence[int], draws: bool, processors: Callable[[torch.device], Processors]
    ) -> None:
        """
        Args:
            draws: True if `truncated` must be used. If False, the request's options suffice.
            processors: creates the processors for logits on a device.
        """
        self._tokens = list(prompt)
        self.draws = draws
        self._processors = cache(processors)

    def count(self, token: int) -> None:
        """Adds a drawn token."""
        self._tokens.append(token)

    def shaped(self, row: torch.Tensor) -> torch.Tensor:
        """Returns logits (vocabulary,) after all rules except the truncation for drawing."""
        return self._after(self._processors(row.device).shaping, row)

    def truncated(self, row: torch.Tensor) -> torch.Tensor:
        """Returns the logits to draw from, after the temperature. Excluded tokens are -inf.

        A row without a finite largest logit becomes NaN.
        """
        truncated = self._after(self._processors(row.device).drawing, row)
        return torch.where(torch.isfinite(row.max()), truncated, torch.nan)

    def _after(self, processors: Sequence[Processor], row: torch.Tensor) -> torch.Tensor:
        tokens, scores = uploaded(np.array([self._tokens]), row.device), row[None]
        for process in processors:
            scores = process(tokens, scores)
        return scores[0]


class LogitRules:
    """The rules of one model."""

    def __init__(self, fields: Mapping[str, Any], vocabulary: int) -> None:
        """
        Args:
            fields: values of `generation_fields.FIELDS`.
            vocabulary: width of the logits.

        Raises:
            ValueError: transformers does not know the watermark.
        """
        used = {
            name: fields[name]
            for name in {*_SHAPING, *_DRAWING}
            if name in fields and fields[name] != _OFF.get(name)
        }
        self._fields = used
        self._vocabulary = vocabulary
        self._biases = _within(used.get("sequence_bias", {}), vocabulary)
        self._bad = _within(dict.fromkeys(map(tuple, used.get("bad_words_ids", ()))), vocabulary)
        self._watermark = self._watermarking(used.get("watermarking_config"))

    def __bool__(self) -> bool:
        return bool(self._fields)

    @property
    def names(self) -> list[str]:
        """Names of the fields that have an effect."""
        return sorted(self._fields)

    def begin(
        self, prompt: Sequence[int], sampling: Sampling, ends: Sequence[int]
    ) -> SequenceRules:
        """Returns the rules for a sequence.

        Args:
            sampling: complete sampling options of the sequence.
            ends: tokens that end it, all of them in the vocabulary.
        """
        draws = bool(sampling.temperature) and not self._fields.keys().isdisjoint(_DRAWING)

        def processors(device: torch.device) -> Processors:
            shaping = self._shapers(prompt, sampling, ends, device)
            watermark = [self._watermark] if self._watermark else []
            if draws:
                return Processors(shaping, [*self._warpers(sampling, device), *watermark])
            return Processors(shaping if sampling.temperature else [*shaping, *watermark], [])

        return SequenceRules(prompt, draws, processors)

    def _shapers(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Sequence[int],
        device: torch.device,
    ) -> list[Processor]:
        fields, start = self._fields, len(prompt)
        prompt_ids = torch.tensor([list(prompt)], device=device)
        ending = torch.tensor(list(ends), dtype=torch.long, device=device)
        bad = [list(words) for words in self._bad if words not in {(end,) for end in ends}]
        first, last = self._known("forced_bos_token_id"), self._known("forced_eos_token_id")
        begin = start if start > 1 or not first else start + 1
        most = start + (sampling.max_tokens or 0)
        return _made(
            (_SequenceBias, self._biases),
            (
                lambda value: _EncoderPenalty(value, prompt_ids),
                fields.get("encoder_repetition_penalty"),
            ),
            (_Penalty, _unless(1.0, sampling.repetition_penalty)),
            (_NoRepeat, fields.get("no_repeat_ngram_size")),
            (
                lambda value: _NoEncoderRepeat(value, prompt_ids),
                fields.get("encoder_no_repeat_ngram_size"),
            ),
            (_NoBadWords, bad),
            (lambda value: _MinNewTokens(start, value, ending), sampling.min_tokens),
            (lambda value: _ForcedBegin(value[0]), first),
            (lambda value: _ForcedEnd(most, value, device), last),
            (lambda _: _RemoveInvalid(), fields.get("remove_invalid_values")),
            (
                lambda value: _Decay(value, ending, start),
                fields.get("exponential_decay_length_penalty") if ends else None,
            ),
            (lambda value: _Suppress(value, device), fields.get("suppress_tokens")),
            (
                lambda value: _SuppressFirst(value, begin, device),
                fields.get("begin_suppress_tokens"),
            ),
        )

    def _warpers(self, sampling: Sampling, device: torch.device) -> list[Processor]:
        fields = self._fields
        return _made(
            (_Temperature, _unless(1.0, max(sampling.temperature or 1.0, _COLDEST))),
            (_TopH, fields.get("top_h")),
            (_TopK, sampling.top_k),
            (_TopP, _unless(1.0, sampling.top_p)),
            (_MinP, sampling.min_p),
            (_Typical, fields.get("typical_p")),
            (_Epsilon, fields.get("epsilon_cutoff")),
            (lambda value: _Eta(value, device=device), fields.get("eta_cutoff")),
        )

    def _known(self, name: str) -> list[int]:
        return [token for token in self._fields.get(name, ()) if token < self._vocabulary]

    def _watermarking(self, given: dict[str, Any] | None) -> Processor | None:
        """Returns the processor of the watermark, which all sequences share. None without a
        watermark.
        """
        if given is None:
            return None
        kind: Any = WatermarkingConfig
        try:
            config: Any = kind(**given)
            config.validate()
            return _on_cpu(config.construct_processor(self._vocabulary, "cpu"))
        except (TypeError, ValueError) as error:
            raise ValueError(str(error)) from error


def _on_cpu(process: Processor) -> Processor:
    """Returns a processor that runs on the CPU. Random numbers differ between devices, so a
    watermark detector would otherwise need the same kind of GPU.
    """
    return lambda tokens, scores: process(tokens.cpu(), scores.cpu()).to(scores.device)


def _made(*wanted: tuple[Callable[[Any], Processor], Any]) -> list[Processor]:
    """Returns the processors with a value."""
    return [make(value) for make, value in wanted if value]


def _unless(off: float, value: float | None) -> float | None:
    return None if value == off else value


def _within(
    sequences: Mapping[tuple[int, ...], Any], vocabulary: int
) -> dict[tuple[int, ...], Any]:
    """Returns the sequences that can occur: all of their tokens are in the vocabulary."""
    return {sequence: value for sequence, value in sequences.items() if max(sequence) < vocabulary}
