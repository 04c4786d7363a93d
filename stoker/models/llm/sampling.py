"""Samples tokens from logits, for all rows of a step at once: penalties, biases, truncation, seeds,
log probabilities.

Each row has its own random numbers, so the result of a seed does not depend on the batch. The
logits stay on their device. The number of operations on the device does not depend on the number of
rows, and all results are copied to the host together.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

import numpy as np
import torch

from stoker.models.llm import samplers
from stoker.models.llm.draws import DrawRow, Draws
from stoker.models.llm.errors import DrawError, FormError
from stoker.models.llm.interface import Logprob
from stoker.models.llm.samplers import SampledTokens, Sampler, SamplerOptions
from stoker.models.llm.token_edits import Array, BatchEdits, exclude, uploaded
from stoker.wire.generation_request import MAX_LOGPROBS

NOTHING = (
    "The model returned no token that could be sampled. All tokens are excluded, or its scores are "
    "not numbers (NaN or infinity): its weights may be damaged, or its 'dtype' too narrow. Deploy "
    "it with 'dtype': 'float32'."
)
UNWRITABLE = (
    "The answer cannot follow the requested form: the model's tokenizer, or its "
    "generation_config.json, has no token that may come next. Request a less "
    "restrictive form, or none."
)
_CPU_BLOCK = 1 << 20
"""Maximum number of logits that a CPU processes together. More do not fit its caches."""

Drawn = tuple[int, Logprob | None]


def draw(logits: torch.Tensor, rows: Sequence[Draws]) -> list[Drawn | DrawError]:
    """Samples a token for each row, with its log probability if requested.

    Args:
        logits: (rows, vocabulary), float32, on any device.
        rows: sampling state of each row. Each counts the sampled token.

    Returns:
        A token or, for a row without a possible token, the error. The other rows are unaffected.
    """
    return [results[0] for results in draw_after(logits, rows, [()] * len(rows))]


@torch.inference_mode()
def draw_after(
    logits: torch.Tensor, sequences: Sequence[Draws], drafts: Sequence[Sequence[int]]
) -> list[list[Drawn | DrawError]]:
    """Samples the next tokens of sequences that have draft tokens.

    Args:
        logits: for each sequence a row for its next token, then a row after each draft token.
        sequences: sampling state of each sequence. Each counts its sampled tokens.
        drafts: draft tokens of each sequence. Empty unless the sequence is `independent`.

    Returns:
        The tokens of each sequence, up to the first token that differs from its draft.
    """
    rows = [
        DrawRow(draws, place)
        for draws, draft in zip(sequences, drafts, strict=True)
        for place in range(len(draft) + 1)
    ]
    drawn = iter(_drawn(logits, rows))
    return [
        _counted(draws, draft, list(islice(drawn, len(draft) + 1)))
        for draws, draft in zip(sequences, drafts, strict=True)
    ]


def _counted(
    draws: Draws, draft: Sequence[int], drawn: list[Drawn | DrawError]
) -> list[Drawn | DrawError]:
    for place, result in enumerate(drawn):
        if isinstance(result, DrawError):
            return drawn[: place + 1]
        draws.count(result[0])
        if place < len(draft) and draft[place] != result[0]:
            return drawn[: place + 1]
    return drawn


def _drawn(logits: torch.Tensor, rows: Sequence[DrawRow]) -> list[Drawn | DrawError]:
    block = max(1, len(rows))
    if logits.device.type == "cpu" and not all(row.plain for row in rows):
        block = max(1, _CPU_BLOCK // logits.shape[-1])
    return [
        result
        for start in range(0, len(rows), block)
        for result in _block(logits[start : start + block], rows[start : start + block])
    ]


def rows_of(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Returns rows of the logits. Copies them only if they are not adjacent, because a row is as
    wide as the vocabulary.
    """
    start, end = rows[0], rows[-1] + 1
    if end - start == len(rows):
        return logits[start:end]
    return logits.index_select(0, uploaded(np.array(rows), logits.device))


def _block(logits: torch.Tensor, rows: Sequence[DrawRow]) -> list[Drawn | DrawError]:
    if all(row.plain for row in rows):
        return _greedy(logits)
    scores, errors = shaped(logits, rows)
    picked = _sample(logits, scores, rows)
    if again := [place for place, pick in enumerate(picked) if pick.finite and not pick.exact]:
        some = [rows[place] for place in again]
        thorough = _sample(rows_of(logits, again), rows_of(scores, again), some, thorough=True)
        for place, pick in zip(again, thorough, strict=True):
            picked[place] = pick
    results: list[Drawn | DrawError] = []
    for place, pick in enumerate(picked):
        if error := errors.get(place):
            results.append(error)
        elif pick.finite:
            results.append((pick.token, pick.logprob))
        elif rows[place].draws.matcher and torch.isfinite(logits[place].max()):
            results.append(FormError(UNWRITABLE))
        else:
            results.append(DrawError(NOTHING))
    return results


def _greedy(logits: torch.Tensor) -> list[Drawn | DrawError]:
    values, tokens = _to_host(samplers.largest_logits(logits))
    return [
        (int(token), None) if isfinite(value) else DrawError(NOTHING)
        for (value,), (token,) in zip(values, tokens, strict=True)
    ]


def shaped(
    logits: torch.Tensor, rows: Sequence[DrawRow]
) -> tuple[torch.Tensor, dict[int, DrawError]]:
    """Returns the logits (rows, vocabulary) after penalties, biases and masks, and the error of
    each row that failed. Does not change the input.
    """
    if not any(row.draws.changes(row.place) for row in rows):
        return logits, {}
    scores = logits.clone(memory_format=torch.contiguous_format)
    edits = BatchEdits()
    masks: dict[int, Array] = {}
    errors: dict[int, DrawError] = {}
    for place, row in enumerate(rows):
        if rules := row.draws.rules:
            scores[place] = rules.shaped(scores[place])
        row.draws.edit(edits, place * scores.shape[-1], row.place)
        try:
            if (mask := row.draws.mask()) is not None:
                masks[place] = mask
        except DrawError as error:
            errors[place] = error
    edits.apply(scores)
    exclude(scores, masks)
    for place, row in enumerate(rows):
        if row.by_rules and row.draws.rules:
            scores[place] = row.draws.rules.truncated(scores[place])
    return scores, errors


@dataclass(frozen=True)
class _SampledToken:
    """Values of a row of `SampledTokens`, with the log probability if requested."""

    token: int
    finite: bool
    exact: bool
    logprob: Logprob | None


def _sample(
    logits: torch.Tensor, scores: torch.Tensor, rows: Sequence[DrawRow], *, thorough: bool = False
) -> list[_SampledToken]:
    """Samples a token of each row from the scores. Synchronizes with the device once."""
    choice = _sample_groups(scores, rows, thorough=thorough)
    tops = {
        place: top
        for place, row in enumerate(rows)
        if (top := row.draws.sampling.logprobs) is not None
    }
    parts = [choice.token, choice.largest, choice.exact]
    if tops:
        reported, tokens = rows_of(logits, [*tops]), rows_of(choice.token, [*tops])
        parts += samplers.logprobs(reported, tokens, _alternatives(logits, tops.values()))
    tokens, largest, exact, *numbers = _to_host(parts)
    reports = _reports([tokens[place][0] for place in tops], tops.values(), numbers)
    logprobs = dict(zip(tops, reports, strict=True))
    return [
        _SampledToken(int(token), isfinite(value), is_exact > 0, logprobs.get(place))
        for place, ((token,), (value,), (is_exact,)) in enumerate(
            zip(tokens, largest, exact, strict=True)
        )
    ]


def _sample_groups(
    scores: torch.Tensor, rows: Sequence[DrawRow], *, thorough: bool
) -> SampledTokens:
    """Samples a token of each row: one batch per sampler."""
    groups: dict[Sampler, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.sampler, []).append(place)
    order = [place for group in groups.values() for place in group]
    numbers = [*zip(*[rows[place].options for place in order], strict=True)]
    has_min_p, has_top_k = any(numbers[3]), any(numbers[4])
    table = uploaded(np.array(numbers, np.float32)[:, :, None], scores.device)

    def drawn(sampler: Sampler, part: torch.Tensor, columns: torch.Tensor) -> SampledTokens:
        uniform, temperature, top_p, min_p, top_k = columns
        options = SamplerOptions(
            uniform,
            temperature,
            top_p,
            min_p if has_min_p else None,
            top_k if has_top_k else None,
        )
        return sampler(part, options, thorough=thorough)

    if len(groups) == 1:
        (sampler,) = groups
        return drawn(sampler, scores, table)
    places, back = uploaded(np.array([order, np.argsort(order)]), scores.device)
    sizes = [len(group) for group in groups.values()]
    choices = [
        drawn(sampler, scores.index_select(0, some), columns)
        for sampler, some, columns in zip(
            groups, torch.split(places, sizes), torch.split(table, sizes, dim=1), strict=True
        )
    ]
    return SampledTokens(
        torch.cat([choice.token for choice in choices]).index_select(0, back),
        torch.cat([choice.largest for choice in choices]).index_select(0, back),
        torch.cat([choice.exact for choice in choices]).index_select(0, back),
    )


def _to_host(parts: Sequence[torch.Tensor]) -> list[list[list[float]]]:
    """Returns the values of matrices. They are copied from a GPU together, as float32.

    Token ids are exact, because no vocabulary has 2**24 tokens.
    """
    if parts[0].device.type == "cpu":
        separate: Any = parts
        return [part.tolist() for part in separate]
    together: Any = torch.cat([part.flatten() for part in parts])
    values = iter(together.tolist())
    return [[list(islice(values, part.shape[1])) for _ in range(part.shape[0])] for part in parts]


@torch.inference_mode()
def scored(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[Logprob]:
    """Returns the log probability of each row's token.

    Args:
        logits: (rows, vocabulary), float32.
        top: number of likeliest tokens to report with each token.
    """
    tops = [top] * len(tokens)
    known = uploaded(np.array(tokens, np.int64)[:, None], logits.device)
    numbers = _to_host(samplers.logprobs(logits, known, _alternatives(logits, tops)))
    return _reports(tokens, tops, numbers)


def _alternatives(logits: torch.Tensor, tops: Collection[int]) -> int:
    """Returns how many of the likeliest tokens are computed for each row. It is at least
    `MAX_LOGPROBS`, so that the requested number does not decide which of two equally likely tokens
    is reported.
    """
    return min(max(MAX_LOGPROBS, *tops), logits.shape[-1]) if any(tops) else 0


def _reports(
    tokens: Sequence[float], tops: Collection[int], numbers: Sequence[Sequence[Sequence[float]]]
) -> list[Logprob]:
    """Returns reports from the values of `samplers.logprobs`."""
    if not numbers:
        return []
    values, *likeliest = numbers
    return [
        Logprob(
            int(token),
            values[place][0],
            [
                (int(top_token), value)
                for top_token, value in zip(*(part[place][:top] for part in likeliest), strict=True)
            ]
            if top
            else (),
        )
        for place, (token, top) in enumerate(zip(tokens, tops, strict=True))
    ]
