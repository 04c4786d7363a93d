"""Guesses the continuation of a text from its own contents: prompt lookup.

Answers often repeat their input: a name, a passage to be edited, the keys of an object. If the last
tokens occurred before, the tokens that followed them are a guess of the next ones. The guess needs
no work of the model. The method is https://github.com/apoorvumang/prompt-lookup-decoding, with an
index instead of a search. A token costs about a microsecond, independent of the text's length.
"""

from collections.abc import Sequence
from itertools import takewhile

READ_AT_ONCE = 2048
"""Maximum tokens that are read between two passes, which takes a millisecond."""
FIRST, NEXT = 0.3, 0.7
"""Initial chances of a guess. The first is that its first token is right. The second is that a
token after right ones is right.
"""
SETTLED = 2
"""Number of right guesses in a row after which the passage counts as a repetition."""
PACE = 0.25
"""Weight of each drawn token in the update of these chances."""
_BITS = 21
"""Bits of a token in the index's keys. Two larger tokens may share a key, which makes a guess
wrong.
"""


class Lookup:
    """Guesses for one sequence. It is updated even if its guesses are unused, because that costs
    almost nothing.
    """

    def __init__(self, tokens: Sequence[int], prompt: int, ends: frozenset[int]) -> None:
        """
        Args:
            tokens: the owner's list itself, which grows with the sequence.
            prompt: number of tokens of the prompt. Repetitions within the prompt do not update the
                chances.
            ends: tokens after which nothing is guessed.
        """
        self._tokens = tokens
        self._prompt = prompt
        self._ends = ends
        self._read = 0
        self._twos: dict[int, int] = {}
        self._threes: dict[int, int] = {}
        """Maps three tokens in a row to the position after their last occurrence. `_twos` does the
        same for two.
        """
        self._source: int | None = None
        """Position of the token that is guessed to come next."""
        self._right = 0
        """Number of right guesses in a row since the source was found."""
        self._chances = [FIRST, NEXT]

    def follow(self) -> bool:
        """Reads new tokens. Returns True if all are read, so that a guess is possible."""
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
        """Returns up to `most` guessed next tokens. Empty if nothing is known."""
        source = self._source
        if source is None or most <= 0:
            return []
        # The repeated passage may extend to the current end. Then the guess repeats it in a loop.
        circle = len(self._tokens) - source
        tokens = (self._tokens[source + place % circle] for place in range(most))
        return list(takewhile(lambda token: token not in self._ends, tokens))

    def chance(self, place: int) -> float:
        """Returns the chance that a guess is right up to and including the token at this index,
        from 0.
        """
        first, following = self._chances
        if self._right >= SETTLED:
            return following ** (place + 1)
        return first * following**place

    def _compare(self, place: int) -> None:
        """Updates the chances by comparing a token with its guess."""
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
        """Returns the position after the last occurrence of the latest three tokens, or else of the
        latest two.
        """
        if place == 0:
            return None
        two = self._tokens[place - 1] << _BITS | self._tokens[place]
        three = self._tokens[place - 2] << 2 * _BITS | two
        match = self._threes.get(three) if place > 1 else None
        return match or self._twos.get(two)

    def _note(self, start: int, end: int) -> None:
        """Adds the tokens from `start` to `end` to the index."""
        tokens, twos, threes = self._tokens, self._twos, self._threes
        for place in range(max(start, 1), end):
            two = tokens[place - 1] << _BITS | tokens[place]
            twos[two] = place + 1
            if place > 1:
                threes[tokens[place - 2] << 2 * _BITS | two] = place + 1
