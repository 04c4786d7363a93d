"""Guesses of a text's next tokens, compared with a search of the whole text."""

import random

import pytest

from stoker.models.llm import lookup
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.speculation import UNLIKELY


def read(tokens: list[int], prompt: int, ends: frozenset[int] = frozenset()) -> Lookup:
    """Returns a `Lookup` that existed from the prompt's end on."""
    growing = tokens[:prompt]
    reader = Lookup(growing, prompt, ends)
    while not reader.follow():
        pass
    for token in tokens[prompt:]:
        growing.append(token)
        assert reader.follow()
    return reader


def searched(tokens: list[int], place: int) -> int | None:
    """Returns the position after the last earlier occurrence of the tokens up to `place`, by a full
    search.
    """
    for count in (3, 2):
        last = tokens[max(0, place - count + 1) : place + 1]
        if len(last) < count:
            continue
        for end in range(place, count - 1, -1):
            if tokens[end - count : end] == last:
                return end
    return None


def expected(tokens: list[int], prompt: int) -> int | None:
    """Returns the position that the guess is read from. A passage is followed for as long as it is
    right.
    """
    source = searched(tokens, prompt - 1)
    for place in range(prompt, len(tokens)):
        if source is not None and tokens[source] == tokens[place]:
            source += 1
        else:
            source = searched(tokens, place)
    return source


class TestGuess:
    @pytest.mark.parametrize("seed", range(40))
    def test_is_what_a_search_finds(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lookup, "READ_AT_ONCE", 7)
        chance = random.Random(seed)
        tokens = [chance.randrange(chance.choice([3, 6])) for _ in range(chance.randint(2, 60))]
        prompt = chance.randint(1, len(tokens))
        source = expected(tokens, prompt)
        guess = read(tokens, prompt).guess(5)
        if source is None:
            assert guess == []
        else:
            going = list(tokens)
            for place in range(5):
                going.append(going[source + place])
            assert guess == going[len(tokens) :]

    def test_of_a_passage(self) -> None:
        text = [9, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
        assert read(text, len(text)).guess(4) == [4, 5, 6, 7]
        assert read(text, len(text)).guess(2) == [4, 5]
        assert read(text, len(text)).guess(0) == []

    def test_three_tokens_tell_more_than_two(self) -> None:
        text = [1, 2, 3, 40, 9, 2, 3, 50, 1, 2, 3]
        assert read(text, len(text)).guess(1) == [40]

    def test_the_last_of_several(self) -> None:
        text = [1, 2, 3, 40, 1, 2, 3, 50, 1, 2, 3]
        assert read(text, len(text)).guess(1) == [50]

    def test_what_it_follows_counts_more_than_what_came_later(self) -> None:
        """The followed passage is known from earlier right guesses, further back than three
        tokens.
        """
        text = [7, 8, 1, 2, 3, 40, 41, 9, 1, 2, 3, 50, 51, 5, 7, 8]
        assert read([*text, 1, 2, 3], len(text)).guess(2) == [40, 41]
        assert read([*text, 1, 2, 3], len(text) + 3).guess(2) == [50, 51]

    def test_a_circle_goes_on(self) -> None:
        assert read([5, 1, 2, 1, 2, 1], 6).guess(5) == [2, 1, 2, 1, 2]
        assert read([4, 4, 4], 3).guess(3) == [4, 4, 4]

    def test_nothing_behind_an_end(self) -> None:
        text = [1, 2, 3, 4, 99, 5, 1, 2, 3]
        assert read(text, len(text), frozenset({99})).guess(5) == [4]
        text = [1, 2, 3, 99, 5, 1, 2, 3]
        assert read(text, len(text), frozenset({99})).guess(5) == []

    @pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3, 4, 5]])
    def test_nothing_where_nothing_repeats(self, text: list[int]) -> None:
        assert read(text, 1).guess(5) == []

    def test_tokens_beyond_any_vocabulary(self) -> None:
        text = [1 << 40, 2 << 40, 3 << 40, 7, 1 << 40, 2 << 40, 3 << 40]
        assert read(text, len(text)).guess(1) == [7]

    def test_a_long_prompt_is_read_between_passes(self) -> None:
        text = [*range(3 * lookup.READ_AT_ONCE), 0, 1, 2]
        reader = Lookup(text, len(text), frozenset())
        assert [reader.follow() for _ in range(4)] == [False, False, False, True]
        assert reader.guess(2) == [3, 4]


class TestChance:
    def test_of_a_passage_that_is_repeated(self) -> None:
        text = list(range(100))
        reader = read([*text, *range(10, 40)], len(text))
        assert reader.guess(1) == [40]
        assert reader.chance(0) > 0.95
        assert [reader.chance(place) for place in range(5)] == sorted(
            (reader.chance(place) for place in range(5)), reverse=True
        )

    def test_of_what_is_always_wrong(self) -> None:
        """Pairs repeat, but a different token follows them each time, so the chance is low."""
        text = [part for new in range(100, 130) for part in (1, 2, new)]
        reader = read([*text, 1, 2], 3)
        assert reader.guess(1) == [129]
        assert reader.chance(0) < UNLIKELY

    def test_rises_again_where_it_is_right(self) -> None:
        text = [part for new in range(100, 130) for part in (1, 2, new)]
        reader = read([*text, *text[:12]], 3)
        assert reader.chance(0) > 0.5

    def test_the_prompts_own_repetitions_say_nothing(self) -> None:
        text = [1, 2, 3, 4] * 20
        assert read(text, len(text)).chance(0) == lookup.FIRST
