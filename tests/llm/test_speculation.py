"""Guessed tokens change no answer, and are computed only while they pay."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from stoker.models.llm import sampling as sampling_module
from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.draws import Draws
from stoker.models.llm.interface import Output
from stoker.models.llm.lookup import Lookup
from stoker.models.llm.scheduler import Scheduler
from stoker.models.llm.speculation import MOST_PATIENCE, PATIENCE, PassDurations, Speculation
from stoker.wire.generation_request import Sampling
from tests.llm.support import (
    Answers,
    Mix,
    Toy,
    ToyRunner,
    forgetful_logits,
    measured,
    submission,
    toy_answer,
    toy_logits,
    wavering_logits,
)


def sampling(**more: Any) -> Sampling:
    wishes: dict[str, Any] = {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
    }
    return Sampling(**(wishes | more))


def eager(runner: ToyRunner, ends: Sequence[int] = (), **more: Any) -> Scheduler:
    """Returns a scheduler with passes that all take equally long, so that every guess that may be
    right pays.
    """
    return Scheduler(runner, ends, speculation=measured(), clock=lambda: 0.0, **more)


def counts(scheduler: Scheduler) -> tuple[int, int]:
    """Returns the number of guessed and computed tokens, and how many of them were drawn."""
    return scheduler.speculated


def alone(
    prompt: list[int], wishes: Sampling, *, ends: Sequence[int] = (), logits: Toy = toy_logits
) -> list[Output]:
    """Returns the outputs of a sequence if nothing else runs and nothing is guessed."""
    scheduler = Scheduler(ToyRunner(max_length=96, logits=logits), ends)
    scheduler.submit(submission(0, prompt, wishes))
    outputs: list[Output] = []
    while scheduler.running:
        outputs += scheduler.step()
    return outputs


def plain(outputs: Sequence[Output]) -> list[Any]:
    """Returns everything in the outputs that a client may see."""
    return [
        (output.tokens, output.logprobs, output.finish, output.end)
        for output in outputs
        if output.tokens or output.finish
    ]


MIXES = [
    Mix(blocks=24, budget=256, max_running=256, seed=1),
    Mix(blocks=30, budget=40, max_running=4, seed=2),
    Mix(blocks=26, budget=9, max_running=256, seed=3),
    Mix(blocks=400, budget=64, max_running=3, seed=4),
    Mix(blocks=400, budget=256, max_running=256, seed=5),
    Mix(blocks=400, budget=256, max_running=1, seed=6),
]


class TestAnyMix:
    @pytest.mark.parametrize("mix", MIXES, ids=str)
    def test_each_gets_what_it_gets_alone(self, mix: Mix, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sequences match token by token, with log probabilities and end, greedy or drawn by a
        seed.
        """
        monkeypatch.setattr(scheduling, "STEP_TOKENS", mix.budget)
        chance = random.Random(mix.seed)
        runner = ToyRunner(mix.blocks, max_length=96, logits=wavering_logits)
        ends = (33, 34)
        scheduler = eager(runner, ends, max_running=mix.max_running)
        answers = Answers(scheduler)
        outputs: dict[int, list[Output]] = {}
        requests: dict[int, tuple[list[int], Sampling]] = {}
        cancelled: set[int] = set()

        def step() -> None:
            for output in answers.step():
                outputs.setdefault(output.id, []).append(output)

        beginnings = [toy_answer([one, one + 1], 30, logits=wavering_logits)[0] for one in (3, 9)]
        for place in range(400):
            if place < 350 and chance.random() < 0.12:
                number = len(requests) + 1
                shared = chance.choice(beginnings)[: chance.choice([0, 5, 12, 30])]
                prompt = shared + [chance.randrange(50) for _ in range(chance.randint(1, 9))]
                wishes = sampling(
                    max_tokens=min(chance.choice([1, 2, 3, 17, 50]), 96 - len(prompt)),
                    temperature=chance.choice([0.0, 0.0, 0.4, 1.0]),
                    top_p=chance.choice([1.0, 0.8]),
                    seed=number,
                    ignore_eos=chance.random() < 0.5,
                    stop_token_ids=chance.choice([[], [11, 12]]),
                    min_tokens=chance.choice([0, 0, 6]),
                    frequency_penalty=chance.choice([0.0, 0.0, 0.2]),
                    repetition_penalty=chance.choice([1.0, 1.0, 1.05]),
                    logit_bias=chance.choice([{}, {7: 1.5}]),
                    logprobs=chance.choice([None, None, 0, 2]),
                    prompt_logprobs=chance.choice([None, None, None, 1]),
                )
                requests[number] = prompt, wishes
                after = chance.choice([None, None, number - 1])
                scheduler.submit(submission(number, prompt, wishes, after=after or None))
            if requests and chance.random() < 0.05:
                one = chance.choice(list(requests))
                if one not in answers.finish:
                    cancelled.add(one)
                    scheduler.cancel(one)
            if scheduler.running:
                step()
        while scheduler.running:
            step()
        assert not answers.errors
        for number, (prompt, wishes) in requests.items():
            expected = plain(alone(prompt, wishes, ends=ends, logits=wavering_logits))
            answer = plain(outputs.get(number, []))
            assert answer == (expected[: len(answer)] if number in cancelled else expected)
        drafted, accepted = counts(scheduler)
        assert drafted > accepted > 30
        assert runner.cache.free == mix.blocks
        assert not runner.length

    def test_fewer_passes(self) -> None:
        """The toy repeats itself after a while, so its guesses are right and save passes."""
        passes: list[int] = []
        for speculation in (None, measured()):
            runner = ToyRunner(max_length=96, logits=forgetful_logits)
            scheduler = Scheduler(runner, (), speculation=speculation, clock=lambda: 0.0)
            answers = Answers(scheduler)
            answers.scheduler.submit(submission(1, [3, 4], sampling(max_tokens=90)))
            answers.drain()
            assert answers.tokens[1] == toy_answer([3, 4], 90, logits=forgetful_logits)[0]
            passes.append(len(runner.steps))
        assert passes[0] == 90
        assert passes[1] < 40

    @pytest.mark.parametrize("penalty", [0.0, 1e-6])
    def test_one_wait_per_pass(self, penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tokens after right guesses are fetched together, unless they depend on one another."""
        waits: list[int] = []
        fetched = sampling_module._to_host

        def counted(parts: Sequence[torch.Tensor]) -> list[list[list[float]]]:
            waits.append(len(parts))
            return fetched(parts)

        monkeypatch.setattr(sampling_module, "_to_host", counted)
        runner = ToyRunner(max_length=96, logits=forgetful_logits)
        answers = Answers(eager(runner))
        wishes = sampling(max_tokens=60, temperature=0.01, seed=1, frequency_penalty=penalty)
        answers.scheduler.submit(submission(1, [3, 4], wishes))
        answers.drain()
        assert len(answers.tokens[1]) == 60
        assert len(runner.steps) < 60
        assert len(waits) == (60 if penalty else len(runner.steps))


def markov(tokens: Sequence[int]) -> torch.Tensor:
    """Returns logits of four tokens, determined by the last token."""
    rows = torch.tensor(
        [[1.0, 0.2, -0.5, 0.0], [0.0, 1.5, 0.3, 0.4], [-1, 0, 0.5, 0.8], [0.7, 0.1, 1.0, -0.3]]
    )
    return rows[tokens[-1]]


class TestDistribution:
    def pairs(self, speculation: Speculation | None) -> Counter[tuple[int, int]]:
        """Counts the last two tokens of 3,000 answers of five tokens, each drawn with other random
        numbers.
        """
        runner = ToyRunner(logits=markov, blocks=400)
        runner.vocabulary = 4
        scheduler = Scheduler(
            runner, (), speculation=speculation, clock=lambda: 0.0, max_running=48
        )
        answers = Answers(scheduler)
        prompt = [0, 1, 2, 3, 1, 1, 3, 2, 0, 0, 1]
        chance = random.Random(0)
        for number in range(3000):
            wishes = sampling(max_tokens=5, temperature=1.0, seed=chance.randrange(1 << 60))
            scheduler.submit(submission(number, prompt, wishes))
            if number % 20 == 19:
                answers.drain()
        return Counter((tokens[3], tokens[4]) for tokens in answers.tokens.values())

    def chi_square(self, found: Counter[tuple[int, int]]) -> float:
        """Returns the chi-square of the 16 pairs: 15 degrees of freedom, 37.7 at 99.9 percent."""
        chances = torch.stack([torch.softmax(markov([token]), -1) for token in range(4)])
        fourth = chances[1] @ chances @ chances @ chances
        expected = 3000 * fourth[:, None] * chances
        return sum(
            (found[token, other] - float(expected[token, other])) ** 2
            / float(expected[token, other])
            for token in range(4)
            for other in range(4)
        )

    def test_is_the_models_own(self) -> None:
        speculation = measured()
        pair_counts = self.pairs(speculation)
        assert speculation.accepted > 300
        assert speculation.drafted > speculation.accepted + 300
        assert self.chi_square(pair_counts) < 37.7

    def test_the_measure_can_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The measure detects a biased draw, as if a guess were used for the drawn token."""
        uniform = Draws.uniform

        def biased(draws: Draws, place: int = 0) -> float:
            return uniform(draws, place) ** 1.3

        monkeypatch.setattr(Draws, "uniform", biased)
        assert self.chi_square(self.pairs(measured())) > 37.7


class TestBounds:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 20, *range(30, 40)])
    def test_nothing_is_computed_that_cannot_be_drawn(self, count: int) -> None:
        runner = ToyRunner(logits=forgetful_logits)
        answers = Answers(eager(runner))
        for number in range(4):
            wishes = sampling(max_tokens=count)
            answers.scheduler.submit(submission(number, [*self.prompt[:-1], 3, 4], wishes))
        answers.drain()
        for number in range(4):
            expected = toy_answer([*self.prompt[:-1], 3, 4], count, logits=forgetful_logits)
            assert (answers.tokens[number], answers.finish[number]) == expected
        for chunk in (chunk for step in runner.steps for chunk in step):
            assert chunk.start + len(chunk.tokens) < len(self.prompt) + 1 + count

    @pytest.mark.parametrize("length", [*range(13, 20), *range(34, 50)])
    def test_up_to_the_models_length(self, length: int) -> None:
        """Guesses do not exceed the model's length. The toy refuses room for more."""
        prompt = [*self.prompt[:-1], 3, 4]
        answers = Answers(eager(ToyRunner(max_length=length, logits=forgetful_logits)))
        answers.scheduler.submit(submission(1, prompt, sampling(max_tokens=60)))
        answers.drain()
        expected = toy_answer(prompt, 60, max_length=length, logits=forgetful_logits)
        assert (answers.tokens[1], answers.finish[1]) == expected

    def test_none_over_a_border(self) -> None:
        """No guess crosses a border beyond which the sequence is computed again, in another way."""
        border, admitted = 40, dict[int, int]()

        class Bordered(ToyRunner):
            def admit(self, identifier: int, tokens: Sequence[int], *args: Any, **more: Any) -> Any:
                admitted[identifier] = len(tokens)
                return super().admit(identifier, tokens, *args, **more)

            def outgrown(self, identifier: int, length: int) -> bool:
                return admitted[identifier] <= border < length

            def forward(self, chunks: Any) -> torch.Tensor:
                for chunk in chunks:
                    if admitted[chunk.id] <= border:
                        assert chunk.start + len(chunk.tokens) <= border
                return super().forward(chunks)

        for length in range(2, 10):
            runner = Bordered(max_length=96, logits=forgetful_logits)
            answers = Answers(scheduler := eager(runner))
            prompt = [7] * length + [3, 4]
            answers.scheduler.submit(submission(1, prompt, sampling(max_tokens=80)))
            answers.drain()
            assert answers.tokens[1] == toy_answer(prompt, 80, logits=forgetful_logits)[0]
            assert counts(scheduler)[1] > 30
            assert admitted[1] == border + 1

    def test_none_beside_a_prompt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Passes with a prompt contain no guesses: they have enough to compute, and their budget
        belongs to the prompt.
        """
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 6)
        runner = ToyRunner(logits=forgetful_logits)
        answers = Answers(eager(runner))
        answers.scheduler.submit(submission(1, [3, 4], sampling(max_tokens=50)))
        while not runner.steps or not runner.steps[-1][0].draft:
            answers.step()
        before = len(runner.steps)
        answers.scheduler.submit(submission(2, list(range(30)), sampling(max_tokens=1)))
        answers.drain()
        beside = [step for step in runner.steps[before:] if any(one.id == 2 for one in step)]
        assert len(beside) == 6
        assert not any(chunk.draft for step in beside for chunk in step)

    def test_nobody_gives_way_to_a_guess(self) -> None:
        """Guesses preempt no sequence of two in a cache with just enough room for both."""
        runner = ToyRunner(16, max_length=64, logits=forgetful_logits)
        scheduler = eager(runner)
        answers = Answers(scheduler)
        for number in (1, 2):
            wishes = sampling(max_tokens=26)
            answers.scheduler.submit(submission(number, [number, 9, 1, 2, 3, 4], wishes))
        answers.drain()
        starts = Counter(chunk.id for step in runner.steps for chunk in step if chunk.start == 0)
        assert starts == {1: 1, 2: 1}
        assert counts(scheduler)[1] > 0

    def test_what_was_right_is_shared(self) -> None:
        """A conversation that continues finds all full blocks of the answer computed."""
        cached: list[int] = []
        for speculation in (None, measured()):
            runner = ToyRunner(max_length=96, logits=forgetful_logits)
            answers = Answers(Scheduler(runner, (), speculation=speculation, clock=lambda: 0.0))
            answers.scheduler.submit(submission(1, [3, 4], sampling(max_tokens=63)))
            answers.drain()
            after = [3, 4, *answers.tokens[1], 1]
            answers.scheduler.submit(submission(2, after, sampling(max_tokens=1)))
            cached.append(answers.drain().cached[2])
        assert cached == [64, 64]

    def test_a_runner_that_cannot_retract(self) -> None:
        runner = ToyRunner(max_length=96, logits=forgetful_logits)
        runner.can_retract = False
        scheduler = eager(runner)
        scheduler.submit(submission(1, [3, 4], sampling(max_tokens=90)))
        tokens = Answers(scheduler).drain().tokens[1]
        assert tokens == toy_answer([3, 4], 90, logits=forgetful_logits)[0]
        assert counts(scheduler) == (0, 0)

    def test_who_has_begun_on_another_runner(self) -> None:
        old, new = (ToyRunner(max_length=96, logits=forgetful_logits) for _ in range(2))
        answers = Answers(eager(old))
        answers.scheduler.submit(submission(1, [3, 4], sampling(max_tokens=90)))
        for _ in range(25):
            answers.step()
        answers.scheduler.adopt(new)
        before = len(old.steps)
        answers.scheduler.submit(submission(2, [3, 4], sampling(max_tokens=90)))
        answers.drain()
        expected = toy_answer([3, 4], 90, logits=forgetful_logits)[0]
        assert answers.tokens == {1: expected, 2: expected}
        assert not any(chunk.draft for step in old.steps[before:] for chunk in step)
        assert any(chunk.draft for step in new.steps for chunk in step)

    def test_a_row_that_cannot_be_drawn_behind_a_guess(self) -> None:
        """A sequence with such a row fails alone, once the row is reached, and leaves nothing
        behind.
        """
        runner = ToyRunner(max_length=96, logits=forgetful_logits)
        rows: Counter[int] = Counter()

        def spoil(one: int, row: torch.Tensor) -> torch.Tensor:
            rows[one] += 1
            return torch.full_like(row, torch.nan) if one == 2 and rows[2] > 70 else row

        runner.spoil = spoil
        answers = Answers(eager(runner))
        for number in (1, 2):
            answers.scheduler.submit(submission(number, [3, 4], sampling(max_tokens=80)))
        answers.drain()
        expected = toy_answer([3, 4], 80, logits=forgetful_logits)[0]
        assert answers.tokens[1] == expected
        assert list(answers.errors) == [2]
        assert 0 < len(answers.tokens[2]) < 80
        assert answers.tokens[2] == expected[: len(answers.tokens[2])]
        assert runner.cache.free == runner.blocks


class Timed(ToyRunner):
    """A toy with passes that take time according to the number of tokens they compute."""

    def __init__(self, seconds: Callable[[int], float], logits: Toy) -> None:
        super().__init__(600, max_length=600, logits=logits)
        self.now = 0.0
        self._seconds = seconds

    def forward(self, chunks: Any) -> torch.Tensor:
        self.now += self._seconds(sum(len(chunk.tokens) for chunk in chunks))
        return super().forward(chunks)

    def answered(self, prompts: Sequence[list[int]], count: int) -> Speculation:
        speculation = Speculation()
        scheduler = Scheduler(self, (), speculation=speculation, clock=lambda: self.now)
        answers = Answers(scheduler)
        for number, prompt in enumerate(prompts):
            scheduler.submit(submission(number, prompt, sampling(max_tokens=count)))
        answers.drain()
        return speculation


def contrary(tokens: Sequence[int]) -> torch.Tensor:
    """Returns logits that never match the guess, of few enough tokens that a guess always
    exists.
    """
    lookup = Lookup(tokens, 1, frozenset())
    lookup.follow()
    guess = lookup.guess(1)
    row = toy_logits(tokens).clone()
    row[6:] = -100
    row[guess] = -100
    return row


def flat(width: int) -> float:
    return 1.0


class TestWhileItPays:
    def test_who_is_never_right_soon_stops(self) -> None:
        runner = Timed(flat, contrary)
        speculation = runner.answered([[1, 2, 3, 1, 2, 3, 1, 2]], 300)
        assert 0 < speculation.drafted < 60
        assert speculation.accepted == 0
        late = [chunk for step in runner.steps[40:] for chunk in step]
        assert not any(chunk.draft for chunk in late)

    def test_who_is_right_beside_who_is_not(self) -> None:
        """The guesses of each sequence are judged separately."""

        def either(tokens: Sequence[int]) -> torch.Tensor:
            return contrary(tokens) if tokens[0] == 1 else forgetful_logits(tokens)

        runner = Timed(flat, either)
        runner.answered([[1, 2, 3, 1, 2, 3, 1, 2], [3, 4]], 200)
        drafted = Counter[int]()
        for step in runner.steps:
            for chunk in step:
                drafted[chunk.id] += chunk.draft
        assert drafted[0] < 60 < drafted[1]

    def test_not_where_each_token_costs_as_much(self) -> None:
        """Even right guesses gain nothing if each token costs as much as a pass."""
        runner = Timed(float, forgetful_logits)
        speculation = runner.answered([[3, 4]], 400)
        most = sum(sum(chunk.draft > 0 for chunk in step) for step in runner.steps)
        assert speculation.drafted > 0, "nobody has tried"
        assert most < 20

    def test_times_are_what_decides(self) -> None:
        """Measured times decide. With 0.05 per token in addition to 1 per pass, guesses make the
        answer over four times faster.
        """
        runner = Timed(lambda width: 1 + 0.05 * width, forgetful_logits)
        runner.answered([[3, 4]], 400)
        slow = Timed(lambda width: 1 + 0.05 * width, forgetful_logits)
        answers = Answers(Scheduler(slow, ()))
        answers.scheduler.submit(submission(0, [3, 4], sampling(max_tokens=400)))
        answers.drain()
        assert runner.now < slow.now / 4

    def test_again_where_the_machine_was_busy(self) -> None:
        speculation = Speculation()
        for _ in range(3):
            speculation.passed(1, 1, 1.0)
            speculation.passed(1, 5, 40.0)
        sure = {1: [0.99**place for place in range(1, 5)]}
        tries = [place for place in range(4 * MOST_PATIENCE) if speculation.chosen(sure, 1, 100)]
        waits = [after - before for before, after in pairwise(tries)]
        assert tries[0] == PATIENCE - 1
        assert waits[:3] == [2 * PATIENCE, 4 * PATIENCE, 8 * PATIENCE]
        assert max(waits) == MOST_PATIENCE
        for _ in range(8):
            speculation.passed(1, 5, 1.1)
        assert speculation.chosen(sure, 1, 100) == {1: 4}


class TestChosen:
    def known(self, times: dict[int, float], sequences: int) -> Speculation:
        speculation = Speculation()
        for width, seconds in times.items():
            for _ in range(2):
                speculation.passed(sequences, width, seconds)
        return speculation

    def test_nothing_before_a_pass_was_measured(self) -> None:
        speculation = Speculation()
        assert not speculation.chosen({1: [0.9]}, 1, 9)
        speculation.passed(1, 1, 1.0)
        assert not speculation.chosen({1: [0.9]}, 1, 9), "the first one is not counted"
        speculation.passed(1, 1, 1.0)
        assert speculation.chosen({1: [0.9]}, 1, 9) == {1: 1}

    def test_the_likeliest_of_all(self) -> None:
        speculation = self.known({2: 1.0, 12: 1.5}, 2)
        draft_lengths = speculation.chosen({1: [0.9, 0.8, 0.7], 2: [0.75, 0.3, 0.15]}, 2, 4)
        assert draft_lengths == {1: 3, 2: 1}

    def test_no_more_than_there_is_room_for(self) -> None:
        speculation = self.known({1: 1.0}, 1)
        sure = [0.99] * 15
        assert speculation.chosen({1: sure}, 1, 6) == {1: 6}
        assert not speculation.chosen({1: sure}, 1, 0)

    def test_as_many_as_are_the_fastest(self) -> None:
        """The fastest number of tokens is chosen. Five tokens cost nothing more, and each one from
        the sixth on costs as much as a pass.
        """
        times = {1: 1.0, 5: 1.0} | {width: width - 4.0 for width in range(6, 12)}
        speculation = self.known(times, 1)
        assert speculation.chosen({1: [0.95**place for place in range(1, 11)]}, 1, 99) == {1: 4}

    def test_with_many_sequences_fewer(self) -> None:
        """On the same machine, more sequences get fewer guesses. Reading the weights takes as long
        as computing twenty tokens.
        """

        def seconds(width: int) -> float:
            return max(1.0, width / 20)

        chances = [0.5, 0.25, 0.125]
        drafts: list[int] = []
        for sequences in (1, 4, 16, 40):
            times = {width: seconds(width) for width in range(sequences, 4 * sequences + 1)}
            speculation = self.known(times, sequences)
            guesses = dict.fromkeys(range(sequences), chances)
            drafts.append(sum(speculation.chosen(guesses, sequences, 256).values()))
        assert drafts == [3, 12, 4, 0]

    def test_of_another_runner_nothing_is_known(self) -> None:
        speculation = self.known({1: 1.0}, 1)
        speculation.forget()
        assert not speculation.chosen({1: [0.9]}, 1, 9)


class TestPace:
    def test_between_and_beyond(self) -> None:
        pace = PassDurations()
        for width, seconds in ((2, 1.0), (6, 3.0)):
            for _ in range(2):
                pace.note(width, seconds)
        assert pace.of(4) == pytest.approx(2.0)
        assert pace.of(1) == pytest.approx(1.0)
        assert 3.0 < pace.of(10) < 3.5

    def test_the_first_of_a_width_is_not_counted(self) -> None:
        """The first pass of a width is not counted, because it may have compiled kernels."""
        pace = PassDurations()
        pace.note(3, 50.0)
        assert not pace.known(3)
        pace.note(3, 1.0)
        assert pace.of(3) == 1.0

    def test_one_that_took_long_counts_little(self) -> None:
        pace = PassDurations()
        for seconds in (1.0, 1.0, 100.0):
            pace.note(3, seconds)
        assert pace.of(3) < 1.25
        for _ in range(4):
            pace.note(3, 1.0)
        assert pace.of(3) == pytest.approx(1.0, abs=0.02)
