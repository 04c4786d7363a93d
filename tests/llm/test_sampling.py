import math
from collections import Counter
from typing import Any

import pytest
import torch
import transformers

from stoker.models.llm import samplers
from stoker.models.llm.draws import DrawRow, Draws
from stoker.models.llm.errors import DrawError
from stoker.models.llm.interface import Logprob
from stoker.models.llm.sampling import draw, shaped
from stoker.wire.generation_request import Sampling

library: Any = transformers

SIZE = 1000


def sampling(**more: Any) -> Sampling:
    wishes: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    return Sampling(**(wishes | more))


def draws(*, prompt: tuple[int, ...] = (), size: int = SIZE, **more: Any) -> Draws:
    return Draws(sampling(**more), prompt, frozenset(), size)


def logits(seed: int, size: int = SIZE, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale


def token(row: torch.Tensor, one: Draws) -> int:
    (result,) = draw(row[None], [one])
    assert not isinstance(result, DrawError)
    return result[0]


def drawn(row: torch.Tensor, count: int, **more: Any) -> Counter[int]:
    draw_state = draws(size=row.numel(), **more)
    return Counter(token(row, draw_state) for _ in range(count))


def edited(row: torch.Tensor, draw_state: Draws) -> torch.Tensor:
    """Returns a row of logits after all changes of single tokens."""
    scores, errors = shaped(row[None], [DrawRow(draw_state)])
    assert not errors
    return scores[0]


def listed(values: Any) -> list[Any]:
    return values.tolist()


def chi_square(found: Counter[int], probabilities: torch.Tensor) -> float:
    total = sum(found.values())
    assert all(float(probabilities[index]) > 0 for index in found)
    return sum(
        (found[place] - total * chance) ** 2 / (total * chance)
        for place, chance in enumerate(listed(probabilities))
        if chance > 0
    )


class TestGreedy:
    def test_the_likeliest(self) -> None:
        rows = torch.stack([logits(seed) for seed in range(5)])
        results = draw(rows, [draws(temperature=0.0) for _ in range(5)])
        assert results == [(int(row.argmax()), None) for row in rows]

    def test_beside_ones_that_are_drawn(self) -> None:
        rows = torch.stack([logits(seed) for seed in range(4)])
        ways = [draws(temperature=0.0 if place % 2 else 1.0, seed=1) for place in range(4)]
        results = draw(rows, ways)
        for place in (1, 3):
            assert results[place] == (int(rows[place].argmax()), None)


class TestDistribution:
    """Chi-square test of 2,500 draws of 10 tokens: 9 degrees of freedom, 27.9 at 99.9 percent."""

    row = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, 1.7, 0.3, -0.2])

    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_is_softmax(self, temperature: float) -> None:
        counts = drawn(self.row, 2500, temperature=temperature, seed=1)
        assert chi_square(counts, torch.softmax(self.row / temperature, -1)) < 27.9

    def test_the_measure_can_fail(self) -> None:
        counts = drawn(self.row, 2500, temperature=1.2, seed=1)
        assert chi_square(counts, torch.softmax(self.row, -1)) > 27.9

    def test_of_what_is_left(self) -> None:
        counts = drawn(self.row, 2500, seed=1, top_k=4)
        truncated = self.row.clone()
        truncated[truncated < truncated.topk(4).values[-1]] = -torch.inf
        assert len(counts) == 4
        assert chi_square(counts, torch.softmax(truncated, -1)) < 27.9

    def test_after_penalties(self) -> None:
        """A bias shapes the whole distribution, not only the likeliest token."""
        counts = drawn(self.row, 2500, seed=2, logit_bias={6: 2.5, 0: -1.0})
        shaped = self.row.clone()
        shaped[6] += 2.5
        shaped[0] -= 1.0
        assert chi_square(counts, torch.softmax(shaped, -1)) < 27.9

    def test_what_has_no_probability_is_never_drawn(self) -> None:
        row = self.row.clone()
        row[[0, 3, 9]] = -torch.inf
        counts = drawn(row, 1000, seed=3)
        assert set(counts) == {1, 2, 4, 5, 6, 7, 8}


def theirs(row: torch.Tensor, *processors: Any) -> set[int]:
    """Returns the tokens that transformers' processors leave, applied one after the other."""
    scores = row[None].clone()
    for processor in processors:
        scores = processor(torch.zeros(1, 0, dtype=torch.long), scores)
    return set(listed(torch.isfinite(scores[0]).nonzero().flatten()))


def ours(row: torch.Tensor, monkeypatch: pytest.MonkeyPatch, **more: Any) -> set[int]:
    """Returns the tokens that may be drawn, found by choosing the uniform number.

    A larger number never gives an earlier token: if two numbers give the same token, no other token
    is between them.
    """

    def at(number: float) -> int:
        draw_state = draws(size=row.numel(), **more)
        monkeypatch.setattr(draw_state, "uniform", lambda _: number)
        return token(row, draw_state)

    def between(low: float, first: int, high: float, last: int) -> set[int]:
        if first == last or high - low < 1e-6:
            return {first, last}
        middle = (low + high) / 2
        middle_token = at(middle)
        return between(low, first, middle, middle_token) | between(middle, middle_token, high, last)

    end = 1 - 2**-53
    return between(0.0, at(0.0), end, at(end))


class TestTruncation:
    @pytest.mark.parametrize("count", [1, 2, 40])
    def test_top_k(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        row = logits(count, 50, 0.5)
        expected = theirs(row, library.TopKLogitsWarper(count))
        assert len(expected) == count
        assert ours(row, monkeypatch, top_k=count) == expected

    def test_top_k_of_more_than_there_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        row = logits(1, 30, 0.5)
        assert ours(row, monkeypatch, top_k=500) == set(range(30))

    @pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.99])
    def test_top_p(self, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
        row = logits(int(share * 1000), 60, 0.7)
        assert ours(row, monkeypatch, top_p=share) == theirs(row, library.TopPLogitsWarper(share))

    @pytest.mark.parametrize("share", [0.01, 0.2, 0.7, 1.0])
    def test_min_p(self, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
        row = logits(int(share * 1000), 60, 0.7)
        assert ours(row, monkeypatch, min_p=share) == theirs(row, library.MinPLogitsWarper(share))

    @pytest.mark.parametrize("share", [0.1, 0.8, 0.99])
    def test_top_p_over_more_tokens_than_are_sorted_at_first(
        self, share: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(samplers, "CANDIDATES", 16)
        row = logits(5, 60, 0.3)
        assert ours(row, monkeypatch, top_p=share) == theirs(row, library.TopPLogitsWarper(share))

    @pytest.mark.parametrize("count", [15, 16, 17, 30])
    def test_top_k_about_as_large_as_what_is_sorted_at_first(
        self, count: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(samplers, "CANDIDATES", 16)
        row = logits(6, 60, 0.3)
        drawable = ours(row, monkeypatch, top_k=count)
        assert drawable == theirs(row, library.TopKLogitsWarper(count))

    @pytest.mark.parametrize(
        ("count", "share", "least"),
        [(10, 1.0, 0.3), (40, 1.0, 0.05), (10, 0.7, 0.0), (20, 0.8, 0.0), (20, 0.95, 0.2)],
    )
    def test_all_of_them(
        self, count: int, share: float, least: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Limits apply one after the other, as in transformers: top-p applies to the result of
        top-k.
        """
        row = logits(7, 60, 0.7)
        processors = [
            library.TopKLogitsWarper(count),
            library.TopPLogitsWarper(share),
            library.MinPLogitsWarper(least),
        ]
        drawable = ours(row, monkeypatch, top_k=count, top_p=share, min_p=least)
        assert drawable == theirs(row, *processors)

    def test_temperature_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        row = logits(8, 60, 0.7)
        expected = theirs(row, library.TemperatureLogitsWarper(0.5), library.TopPLogitsWarper(0.6))
        assert len(expected) < len(theirs(row, library.TopPLogitsWarper(0.6)))
        assert ours(row, monkeypatch, temperature=0.5, top_p=0.6) == expected

    def test_the_likeliest_is_always_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        row = logits(9, 60)
        drawable = ours(row, monkeypatch, top_p=1e-9, min_p=1.0, top_k=1)
        assert drawable == {int(row.argmax())}


class TestTemperature:
    @pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-30, 1e-38, 1e-45, 5e-324])
    @pytest.mark.parametrize("top_k", [0, 5])
    def test_a_tiny_one_draws_the_likeliest(self, temperature: float, top_k: int) -> None:
        row = logits(4, 50)
        counts = drawn(row, 20, temperature=temperature, top_k=top_k, seed=1)
        assert counts == {int(row.argmax()): 20}


class TestPenalties:
    def test_repetition_is_that_of_transformers(self) -> None:
        prompt, generated_tokens = (3, 5, 5, 8), (13, 5, 21)
        draw_state = draws(prompt=prompt, repetition_penalty=1.3)
        for place in generated_tokens:
            draw_state.count(place)
        row = logits(1)
        processor = library.RepetitionPenaltyLogitsProcessor(penalty=1.3)
        expected = processor(torch.tensor([[*prompt, *generated_tokens]]), row[None].clone())[0]
        assert torch.equal(edited(row, draw_state), expected)
        assert not torch.equal(expected, row)

    def test_frequency_counts_what_was_generated(self) -> None:
        draw_state = draws(prompt=(1, 2, 3), frequency_penalty=0.5)
        for place in (7, 7, 7, 9):
            draw_state.count(place)
        row = logits(2)
        expected = row.clone()
        expected[7] -= 1.5
        expected[9] -= 0.5
        assert torch.equal(edited(row, draw_state), expected)

    def test_presence_counts_once(self) -> None:
        draw_state = draws(prompt=(1, 2, 3), presence_penalty=0.75)
        for place in (7, 7, 7, 9):
            draw_state.count(place)
        row = logits(2)
        expected = row.clone()
        expected[[7, 9]] -= 0.75
        assert torch.equal(edited(row, draw_state), expected)

    def test_both_and_negative_ones(self) -> None:
        draw_state = draws(frequency_penalty=-1.0, presence_penalty=2.0)
        for place in (4, 4, 6):
            draw_state.count(place)
        row = torch.zeros(10)
        assert listed(edited(row, draw_state)[:8]) == [0, 0, 0, 0, 0, 0, -1, 0]

    def test_what_is_drawn_counts(self) -> None:
        """With constant logits, each token is drawn once before any is repeated."""
        row = torch.tensor([3.0, 2.0, 1.0, 0.0])
        draw_state = draws(size=4, temperature=0.0, presence_penalty=10.0)
        assert [token(row, draw_state) for _ in range(6)] == [0, 1, 2, 3, 0, 0]

    def test_the_logits_are_left_as_they_were(self) -> None:
        row = logits(3)
        before = row.clone()
        draw_state = draws(prompt=(1,), repetition_penalty=2.0, logit_bias={4: 3.0})
        edited(row, draw_state)
        assert torch.equal(row, before)


class TestBias:
    def test_forces(self) -> None:
        row = logits(1)
        worst = int(row.argmin())
        assert drawn(row, 50, seed=1, logit_bias={worst: 100.0}) == {worst: 50}

    def test_bans(self) -> None:
        row = logits(1)
        best = int(row.argmax())
        row[best] += 10
        assert drawn(row, 50, seed=1)[best] > 40
        assert drawn(row, 50, seed=1, logit_bias={best: -100.0})[best] == 0

    def test_adds(self) -> None:
        row = logits(1)
        expected = row.clone()
        expected[[5, 17]] += torch.tensor([1.5, -2.0])
        assert torch.equal(edited(row, draws(logit_bias={5: 1.5, 17: -2})), expected)


class TestMinTokens:
    def test_ends_cannot_be_drawn_before(self) -> None:
        row = torch.tensor([0.0, 1.0, 5.0, 2.0])
        # An end token beyond the width of the logits is no error.
        draw_state = Draws(sampling(temperature=0.0, min_tokens=2), (), frozenset({2, 9}), 4)
        assert [token(row, draw_state) for _ in range(4)] == [3, 3, 2, 2]


class TestSeeds:
    row = logits(12, scale=0.5)

    def series(self, seed: int | None, count: int = 30) -> list[int]:
        draw_state = draws(seed=seed)
        return [token(self.row, draw_state) for _ in range(count)]

    def test_repeat(self) -> None:
        assert self.series(7) == self.series(7)
        assert self.series(7) != self.series(8)

    def test_without_one_nothing_repeats(self) -> None:
        assert self.series(None) != self.series(None)

    def test_whatever_shares_the_batch(self) -> None:
        expected = self.series(7)
        draw_state = draws(seed=7)
        tokens: list[int] = []
        for step in range(30):
            neighbours = [
                draws(seed=step),
                draws(temperature=0.0),
                draws(seed=7, top_k=3, logprobs=2),
            ]
            rows = torch.stack([logits(step), self.row, logits(step + 1), logits(step + 2)])
            result = draw(rows, [neighbours[0], draw_state, *neighbours[1:]])[1]
            assert not isinstance(result, DrawError)
            tokens.append(result[0])
        assert tokens == expected

    def test_of_several_answers_differ(self) -> None:
        wishes = sampling(seed=5)
        assert [wishes.of(number).seed for number in range(3)] == [5, 6, 7]
        assert sampling().of(3).seed is None


class TestLogprobs:
    def one(self, row: torch.Tensor, **more: Any) -> Logprob:
        (result,) = draw(row[None], [draws(size=row.numel(), **more)])
        assert not isinstance(result, DrawError)
        assert result[1] is not None
        assert result[1].token == result[0]
        return result[1]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_are_those_of_log_softmax(self, temperature: float) -> None:
        row = logits(20)
        expected = torch.log_softmax(row.double(), -1)
        logprob = self.one(row, temperature=temperature, seed=1, logprobs=5)
        assert logprob.value == pytest.approx(float(expected[logprob.token]), abs=1e-4)
        values, tokens = expected.topk(5)
        assert [token for token, _ in logprob.top] == listed(tokens)
        assert [value for _, value in logprob.top] == pytest.approx(listed(values), abs=1e-4)
        assert [value for _, value in logprob.top] == sorted(
            (value for _, value in logprob.top), reverse=True
        )

    def test_of_the_models_own_distribution(self) -> None:
        """Options that change the draw do not change the reported log probabilities."""
        row = logits(21)
        worst = int(row.argmin())
        logprob = self.one(row, temperature=0.3, top_k=1, logit_bias={worst: 100.0}, logprobs=1)
        assert logprob.token == worst
        assert logprob.value == pytest.approx(float(torch.log_softmax(row, -1)[worst]), abs=1e-4)
        assert logprob.top[0][0] == int(row.argmax())

    def test_its_own_alone(self) -> None:
        row = logits(22)
        logprob = self.one(row, temperature=0.0, logprobs=0)
        assert logprob.top == ()
        assert logprob.value == pytest.approx(float(torch.log_softmax(row, -1).max()), abs=1e-4)

    def test_of_no_more_than_there_are(self) -> None:
        logprob = self.one(torch.tensor([0.0, math.log(3.0)]), temperature=0.0, logprobs=20)
        assert logprob.top == [
            (1, pytest.approx(math.log(0.75))),
            (0, pytest.approx(math.log(0.25))),
        ]

    def test_only_where_they_were_asked_for(self) -> None:
        rows = torch.stack([logits(1), logits(2)])
        first, second = draw(rows, [draws(temperature=0.0), draws(temperature=0.0, logprobs=0)])
        assert first == (int(rows[0].argmax()), None)
        assert not isinstance(second, DrawError)
        assert second[1] is not None


class TestFailures:
    """A row without a token to draw fails alone and does not affect other rows."""

    @pytest.mark.parametrize("bad", [-torch.inf, torch.nan])
    @pytest.mark.parametrize("more", [{}, {"temperature": 0.0}, {"top_k": 5}, {"logprobs": 2}])
    def test_hurts_nobody_else(self, bad: float, more: dict[str, Any]) -> None:
        rows = torch.stack([logits(1), torch.full((SIZE,), bad), logits(2)])
        wishes: dict[str, Any] = {"seed": 1, **more}
        expected = [draw(rows[[place]], [draws(**wishes)])[0] for place in (0, 2)]
        first, second, third = draw(rows, [draws(**wishes) for _ in range(3)])
        assert isinstance(second, DrawError)
        assert "no token" in str(second)
        assert [first, third] == expected

    @pytest.mark.parametrize("more", [{"seed": 1}, {"temperature": 0.0}])
    def test_a_single_nan(self, more: dict[str, Any]) -> None:
        row = logits(1)
        row[500] = torch.nan
        (error,) = draw(row[None], [draws(**more)])
        assert isinstance(error, DrawError)
