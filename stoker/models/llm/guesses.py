"""Adds guessed tokens to the chunks of a step."""

from collections.abc import Sequence
from dataclasses import replace

from stoker.models.llm.runner import Chunk, Runner
from stoker.models.llm.running import Running
from stoker.models.llm.speculation import MOST_SEQUENCES, Speculation


def may_guess(runner: Runner, pairs: Sequence[tuple[Running, Chunk]]) -> bool:
    """Returns True if all chunks sample a token on this runner. Passes with prompts gain nothing
    from guesses.
    """
    if not runner.can_retract or not 0 < len(pairs) <= MOST_SEQUENCES:
        return False
    return all(
        len(chunk.tokens) == 1
        and chunk.start > 0
        and chunk.sampled
        and not chunk.scored
        and sequence.runner is runner
        for sequence, chunk in pairs
    )


def guessed(
    speculation: Speculation, pairs: list[tuple[Running, Chunk]], step_tokens: int
) -> list[tuple[Running, Chunk]]:
    """Returns the chunks with as many guesses as are expected to save time. Guesses never preempt
    another sequence.

    Args:
        step_tokens: maximum tokens of the pass.
    """
    guesses = {sequence.id: sequence.guess() for sequence, _ in pairs}
    chances = {sequence.id: sequence.chances(len(guesses[sequence.id])) for sequence, _ in pairs}
    counts = speculation.chosen(chances, len(pairs), step_tokens - len(pairs))
    if not counts:
        return pairs
    extended: list[tuple[Running, Chunk]] = []
    for sequence, chunk in pairs:
        draft = guesses[sequence.id][: counts[sequence.id]]
        if draft and sequence.runner.reserve(sequence.id, chunk.certain + len(draft)):
            sequence.draft = draft
            tokens = [*chunk.tokens, *draft]
            chunk = replace(chunk, tokens=tokens, draft=len(draft))  # noqa: PLW2901
            speculation.drafted += len(draft)
        extended.append((sequence, chunk))
    return extended
