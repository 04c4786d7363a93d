"""Guesses how a text goes on from what stands in it already: prompt lookup.

Answers often repeat what they were given: a name, a passage to be edited, the keys of an object. So
where the last tokens have stood before, those that came after them then are a guess of those that
come next, for no model's work. The method is https://github.com/apoorvumang/prompt-lookup-decoding,
with an index in place of its search: a token costs about a microsecond, however long the text is.
"""

from collections.abc import Sequence
from itertools import takewhile

READ_AT_ONCE = 2048
"""Most tokens that are read between two passes: a millisecond."""
FIRST, NEXT = 0.3, 0.7
"""What a guess is held for until there were some: the chance that its first token is right, and
that one is right behind others that were."""
SETTLED = 2
"""A guess that was right so often is taken for a passage that is repeated."""
PACE = 0.25
"""How far each token that is drawn moves these chances."""
_BITS = 21
"""Of a token in the index's keys. Two of larger tokens may share one, and a guess is wrong."""


class Lookup:
    """One sequence's. It is watched whether or not its guesses are used: that costs nothing."""

    def __init__(self, tokens: Sequence[int], prompt: int, ends: frozenset[int]) -> None:
        """
        Args:
            tokens: grows as the sequence does: it is the owner's own list.
            prompt: how many of them are the prompt's, whose own repetitions say nothing.
            ends: tokens behind which nothing is guessed.
        """
        self._tokens = tokens
        self._prompt = prompt
        self._ends = ends
        self._read = 0
        self._twos: dict[int, int] = {}
        self._threes: dict[int, int] = {}
        """So many tokens in a row → the place behind where they stood last."""
        self._source: int | None = None
        """Where the token stands that is guessed to come next."""
        self._right = 0
        """How many guesses in a row were right from where the source was found."""
        self._chances = [FIRST, NEXT]

    def follow(self) -> bool:
        """Read what has come; whether that is all, so that there may be a guess."""
        end = min(len(self._tokens), self._read + READ_AT_ONCE)
        alone = max(self._read, min(end, self._prompt - 1))
        self._note(self._read, alone)
        for place in range(alone, end):
            self._compare(place)
            if self._source is None:
                self._source, self._right = self._found(place), 0
            self._note(place, place + 1)
        self._read = end
        return end == len(self._tokens)

    def guess(self, most: int) -> list[int]:
        """The tokens that may come next, at most so many; none where nothing is known."""
        source = self._source
        if source is None or most <= 0:
            return []
        # What is repeated may be what was written just now: then it goes on in a circle.
        circle = len(self._tokens) - source
        tokens = (self._tokens[source + place % circle] for place in range(most))
        return list(takewhile(lambda token: token not in self._ends, tokens))

    def chance(self, place: int) -> float:
        """The chance that a guess is right up to and with its token at this place, from 0."""
        first, following = self._chances
        if self._right >= SETTLED:
            return following ** (place + 1)
        return first * following**place

    def _compare(self, place: int) -> None:
        """Learn from a token what the guess of it was worth."""
        if self._source is None:
            return
        right = self._tokens[self._source] == self._tokens[place]
        of = int(self._right >= SETTLED)
        self._chances[of] += PACE * (right - self._chances[of])
        if right:
            self._source += 1
            self._right += 1
        else:
            self._source = None

    def _found(self, place: int) -> int | None:
        """The place behind where the tokens up to this one stood last: three, or else two."""
        if place == 0:
            return None
        two = self._tokens[place - 1] << _BITS | self._tokens[place]
        three = self._tokens[place - 2] << 2 * _BITS | two
        found = self._threes.get(three) if place > 1 else None
        return found or self._twos.get(two)

    def _note(self, start: int, end: int) -> None:
        """Tokens from one place to another have been read."""
        tokens, twos, threes = self._tokens, self._twos, self._threes
        for place in range(max(start, 1), end):
            two = tokens[place - 1] << _BITS | tokens[place]
            twos[two] = place + 1
            if place > 1:
                threes[tokens[place - 2] << 2 * _BITS | two] = place + 1
