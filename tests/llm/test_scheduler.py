import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.interface import Output
from stoker.models.llm.runner import Chunk
from stoker.models.llm.scheduler import Scheduler
from stoker.wire.generation_request import Sampling
from tests.llm.support import GREEDY, Answers, Mix, ToyRunner, submission, toy_answer, toy_logits


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


def alone(prompt: list[int], wishes: Sampling, *, ends: tuple[int, ...] = ()) -> list[int]:
    """Returns the tokens that a sequence gets if nothing else runs."""
    answers = Answers(Scheduler(ToyRunner(), ends))
    answers.scheduler.submit(submission(0, prompt, wishes))
    return answers.drain().tokens[0]


class Short(ToyRunner):
    """A runner whose memory suffices for passes over a few sequences."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.shortages = 0

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        if len(chunks) > self.most:
            self.shortages += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(chunks)


@pytest.fixture
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scheduling, "STEP_TOKENS", 5)
    yield


MIXES = [
    Mix(blocks=16, budget=256, max_running=256, seed=1),
    Mix(blocks=16, budget=7, max_running=4, seed=2),
    Mix(blocks=20, budget=3, max_running=256, seed=3),
    Mix(blocks=24, budget=32, max_running=256, seed=4),
    Mix(blocks=40, budget=1, max_running=8, seed=5),
    Mix(blocks=300, budget=64, max_running=3, seed=6),
    Mix(blocks=300, budget=256, max_running=256, seed=7),
]


class TestAnyMix:
    @pytest.mark.parametrize("mix", MIXES, ids=str)
    def test_each_gets_what_it_gets_alone(self, mix: Mix, monkeypatch: pytest.MonkeyPatch) -> None:
        """Arrivals, cancels, drawn and greedy sequences, shared prompts, and a cache too small for
        all.
        """
        monkeypatch.setattr(scheduling, "STEP_TOKENS", mix.budget)
        chance = random.Random(mix.seed)
        runner = ToyRunner(mix.blocks, max_length=64)
        ends = (3, 4)
        answers = Answers(Scheduler(runner, ends, max_running=mix.max_running))
        beginnings = [[chance.randrange(50) for _ in range(30)] for _ in range(3)]
        requests: dict[int, tuple[list[int], Sampling]] = {}
        cancelled: set[int] = set()
        for step in range(200):
            if step < 120 and chance.random() < 0.5:
                identifier = len(requests) + 1
                shared = chance.choice(beginnings)[: chance.choice([0, 5, 12, 30])]
                suffix = [chance.randrange(50) for _ in range(chance.randint(1, 15))]
                wishes = sampling(
                    max_tokens=min(chance.choice([1, 2, 5, 19]), 64 - len(shared + suffix)),
                    temperature=chance.choice([0.0, 0.7, 1.3]),
                    seed=identifier,
                    ignore_eos=chance.random() < 0.5,
                    frequency_penalty=chance.choice([0.0, 0.5]),
                )
                requests[identifier] = shared + suffix, wishes
                after = chance.choice([None, None, identifier - 1])
                answers.scheduler.submit(
                    submission(identifier, shared + suffix, wishes, after=after or None)
                )
            if requests and chance.random() < 0.08:
                candidate = chance.choice(list(requests))
                if candidate not in answers.finish:
                    cancelled.add(candidate)
                    answers.scheduler.cancel(candidate)
                    assert candidate not in runner.length
            if answers.scheduler.running:
                answers.step()
        answers.drain()
        assert not answers.errors
        for identifier, (prompt, wishes) in requests.items():
            expected = alone(prompt, wishes, ends=ends)
            answer = answers.tokens.get(identifier, [])
            if identifier in cancelled:
                assert answer == expected[: len(answer)]
                assert identifier not in answers.finish
            else:
                assert answer == expected
                short = len(expected) < (wishes.max_tokens or 0)
                assert answers.finish[identifier] == ("stop" if short else "length")
        assert len(requests) > 40
        assert runner.cache.free == mix.blocks
        assert not runner.length

    def test_the_mixes_do_preempt(self) -> None:
        """Three sequences of 40 tokens in room for 64: one of them has to wait."""
        runner = ToyRunner(16, max_length=64)
        answers = Answers(Scheduler(runner, ()))
        prompts = {identifier: [identifier] * 10 for identifier in (1, 2, 3)}
        for identifier, prompt in prompts.items():
            answers.scheduler.submit(submission(identifier, prompt, sampling(max_tokens=30)))
        answers.drain()
        for identifier, prompt in prompts.items():
            assert answers.tokens[identifier] == toy_answer(prompt, 30)[0]
        computed = sum(len(chunk.tokens) for step in runner.steps for chunk in step)
        assert computed > 3 * 39
        assert answers.order == [1, 2, 3]


class TestPreemption:
    def test_what_was_drawn_is_kept(self) -> None:
        """A preempted sequence keeps its drawn tokens and random numbers. Nothing is drawn
        twice.
        """
        runner = ToyRunner(16, max_length=64)
        answers = Answers(Scheduler(runner, ()))
        wishes = {
            identifier: sampling(max_tokens=40, temperature=1.0, seed=identifier)
            for identifier in (1, 2)
        }
        for identifier in (1, 2):
            answers.scheduler.submit(submission(identifier, [identifier] * 9, wishes[identifier]))
        expected = {
            identifier: alone([identifier] * 9, wishes[identifier]) for identifier in (1, 2)
        }
        waited = False
        while answers.scheduler.running:
            answers.step()
            waited |= 2 not in runner.length and 0 < len(answers.tokens[2]) < 40
        assert waited
        assert answers.tokens == expected
        assert answers.order == [1, 2]
        assert answers.cached == {1: 0, 2: 0}

    def test_the_youngest_gives_way(self) -> None:
        runner = ToyRunner(16, max_length=64)
        answers = Answers(Scheduler(runner, ()))
        for identifier in (1, 2, 3):
            answers.scheduler.submit(
                submission(identifier, [identifier] * 17, sampling(max_tokens=20))
            )
            answers.step()
        running = list(runner.length)
        while 3 in runner.length:
            running = list(runner.length)
            answers.step()
        assert running == [1, 2, 3]
        assert list(runner.length) == [1, 2]
        assert answers.drain().order == [1, 2, 3]

    def test_who_gave_way_comes_back_before_those_who_came_later(self) -> None:
        runner = ToyRunner(16, max_length=64)
        answers = Answers(Scheduler(runner, ()))
        for identifier in (1, 2, 3):
            answers.scheduler.submit(
                submission(identifier, [identifier] * 17, sampling(max_tokens=20))
            )
        answers.step()
        while 3 in runner.length:
            answers.step()
        answers.scheduler.submit(submission(4, [4] * 17, sampling(max_tokens=20)))
        assert answers.drain().order == [1, 2, 3, 4]

    def test_its_own_prompt_does_not_count_as_cached(self) -> None:
        """`cached` counts only tokens that were computed for another sequence before."""
        runner = ToyRunner(8, max_length=32)
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(1, [1] * 15, sampling(max_tokens=10)))
        answers.scheduler.submit(submission(2, [2] * 9, sampling(max_tokens=3)))
        answers.drain()
        assert answers.cached == {1: 0, 2: 0}

    def test_cached_counts_others_after_a_wait(self, few_tokens: None) -> None:
        """A sequence that was preempted within its prompt finds its own blocks again."""
        runner = ToyRunner(8, max_length=32)
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(1, [1] * 9, sampling(max_tokens=20)))
        answers.scheduler.submit(submission(2, list(range(20)), sampling(max_tokens=3)))
        while 1 not in answers.finish:
            answers.step()
        assert 2 not in answers.tokens
        answers.drain()
        assert answers.tokens[2] == toy_answer(range(20), 3)[0]
        assert answers.cached[2] == 0


class TestEnds:
    prompt = [1, 8, 9]

    def test_max_tokens(self) -> None:
        for count in (1, 2, 9):
            answers = Answers(Scheduler(ToyRunner(), ()))
            answers.scheduler.submit(submission(1, self.prompt, sampling(max_tokens=count)))
            answers.drain()
            assert answers.tokens[1] == toy_answer(self.prompt, 9)[0][:count]
            assert answers.finish == {1: "length"}
            assert answers.scheduler.running == 0

    def test_max_length(self) -> None:
        answers = Answers(Scheduler(ToyRunner(max_length=10), ()))
        answers.scheduler.submit(submission(1, self.prompt, sampling(max_tokens=100)))
        answers.drain()
        assert answers.tokens[1] == toy_answer(self.prompt, 7)[0]
        assert answers.finish == {1: "length"}

    def ended(self, wishes: Sampling, ends: tuple[int, ...]) -> tuple[list[int], str]:
        answers = Answers(Scheduler(ToyRunner(), ends))
        answers.scheduler.submit(submission(1, self.prompt, wishes))
        answers.drain()
        return answers.tokens[1], answers.finish[1]

    def at(self, place: int) -> int:
        """Returns a token of the answer that does not occur earlier."""
        tokens = toy_answer(self.prompt, 20)[0]
        assert tokens.index(tokens[place]) == place
        return tokens[place]

    def test_the_models_end_is_not_part_of_the_answer(self) -> None:
        answer = toy_answer(self.prompt, 20)[0]
        ended = self.ended(sampling(max_tokens=20), (self.at(4),))
        assert ended == (answer[:4], "stop")

    def test_its_log_probability_is_told(self) -> None:
        tokens, _ = toy_answer([1, 2, 3], 8, ends=(3, 4))
        row = toy_logits([1, 2, 3, *tokens])
        answers = Answers(Scheduler(ToyRunner(), (3, 4)))
        answers.scheduler.submit(submission(1, [1, 2, 3], sampling(logprobs=1, max_tokens=50)))
        last: list[Output] = []
        while answers.scheduler.running:
            last = answers.step()
        (end,) = [output.end for output in last]
        assert end is not None
        assert end.token == int(row.argmax())
        assert end.value == pytest.approx(float(torch.log_softmax(row, -1).max()), abs=1e-5)

    def test_an_end_at_once(self) -> None:
        assert self.ended(sampling(), (self.at(0),)) == ([], "stop")

    def test_ignore_eos(self) -> None:
        answer = toy_answer(self.prompt, 20)[0]
        ended = self.ended(sampling(max_tokens=20, ignore_eos=True), (self.at(4),))
        assert ended == (answer, "length")

    def test_stop_token_ids(self) -> None:
        answer = toy_answer(self.prompt, 20)[0]
        both = sampling(max_tokens=20, stop_token_ids=[self.at(3), 49])
        assert self.ended(both, (self.at(5),)) == (answer[:3], "stop")
        assert self.ended(both, (self.at(2),)) == (answer[:2], "stop")

    def test_stop_token_ids_hold_where_the_models_end_is_ignored(self) -> None:
        answer = toy_answer(self.prompt, 20)[0]
        wishes = sampling(max_tokens=20, ignore_eos=True, stop_token_ids=[self.at(5)])
        assert self.ended(wishes, (self.at(2),)) == (answer[:5], "stop")

    @pytest.mark.parametrize("least", [1, 3, 6])
    def test_min_tokens(self, least: int) -> None:
        """The end token cannot be drawn before. The likeliest other token is drawn instead."""
        end = self.at(0)
        tokens = list(self.prompt)
        for _ in range(least):
            row = toy_logits(tokens).clone()
            row[end] = -torch.inf
            tokens.append(int(row.argmax()))
        rest = toy_answer(tokens, 12 - least, ends=(end,))[0]
        expected = tokens[len(self.prompt) :] + rest
        answer, _ = self.ended(sampling(max_tokens=12, min_tokens=least), (end,))
        assert answer == expected
        assert len(answer) >= least


class TestAfter:
    """Several answers to one prompt."""

    def test_the_prompt_is_computed_once(self, few_tokens: None) -> None:
        prompt = list(range(21))
        runner = ToyRunner()
        answers = Answers(Scheduler(runner, ()))
        for identifier in range(4):
            wishes = sampling(temperature=1.0, seed=identifier, max_tokens=3)
            answers.scheduler.submit(
                submission(identifier, prompt, wishes, after=0 if identifier else None)
            )
        answers.drain()
        prefill = [chunk for step in runner.steps for chunk in step if chunk.start < len(prompt)]
        assert sum(len(chunk.tokens) for chunk in prefill) == 21 + 3 * 1
        assert answers.cached == {0: 0, 1: 20, 2: 20, 3: 20}
        for identifier in range(4):
            assert answers.tokens[identifier] == alone(
                prompt, sampling(temperature=1.0, seed=identifier, max_tokens=3)
            )

    def test_those_behind_need_not_wait(self, few_tokens: None) -> None:
        runner = ToyRunner()
        answers = Answers(Scheduler(runner, ()))
        prompt = list(range(30))
        answers.scheduler.submit(submission(1, prompt))
        answers.scheduler.submit(submission(2, prompt, after=1))
        answers.scheduler.submit(submission(3, [5]))
        answers.step()
        assert set(runner.length) == {1, 3}

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_goes_on_when_the_first_is_cancelled(self, steps: int, few_tokens: None) -> None:
        prompt = list(range(12))
        answers = Answers(Scheduler(ToyRunner(), ()))
        answers.scheduler.submit(submission(1, prompt))
        answers.scheduler.submit(submission(2, prompt, after=1))
        for _ in range(steps):
            answers.step()
        answers.scheduler.cancel(1)
        answers.drain()
        assert answers.tokens[2] == toy_answer(prompt, 8)[0]

    def test_of_an_unknown_one(self) -> None:
        answers = Answers(Scheduler(ToyRunner(), ()))
        answers.scheduler.submit(submission(2, [1, 2], after=99))
        assert answers.drain().tokens[2] == toy_answer([1, 2], 8)[0]


class TestFairness:
    def test_first_come_first_served(self) -> None:
        answers = Answers(Scheduler(ToyRunner(), (), max_running=2))
        for identifier in range(6):
            answers.scheduler.submit(submission(identifier, [identifier]))
        assert answers.drain().order == [0, 1, 2, 3, 4, 5]

    def test_a_large_one_is_not_overtaken(self) -> None:
        """Small sequences that would fit keep arriving, and the large one still gets its turn."""
        runner = ToyRunner(16, max_length=64)
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(1, [1] * 40, sampling(max_tokens=5)))
        answers.step()
        answers.scheduler.submit(submission(2, [2] * 50, sampling(max_tokens=5)))
        for identifier in range(3, 30):
            answers.scheduler.submit(
                submission(identifier, [identifier] * 3, sampling(max_tokens=2))
            )
            answers.step()
        answers.drain()
        begun = list(dict.fromkeys(chunk.id for step in runner.steps for chunk in step))
        assert begun == list(range(1, 30))
        assert answers.order[0] == 1
        assert answers.order.index(2) < 10

    def test_a_long_prompt_holds_nobody_up(self, few_tokens: None) -> None:
        """Drawing sequences get a token at every step while the prompt is computed next to them."""
        runner = ToyRunner()
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(1, [1, 2], sampling(max_tokens=20)))
        answers.step()
        answers.scheduler.submit(submission(2, list(range(40)), sampling(max_tokens=2)))
        for step in range(1, 10):
            outputs = answers.step()
            assert [output.id for output in outputs] == [1]
            assert runner.length[2] == 4 * step
        assert {output.id for output in answers.step()} == {1, 2}

    def test_prompts_go_on_beside_many_that_draw(self, few_tokens: None) -> None:
        runner = ToyRunner(200)
        answers = Answers(Scheduler(runner, ()))
        for identifier in range(4):
            answers.scheduler.submit(submission(identifier, [identifier], sampling(max_tokens=40)))
        answers.step()
        answers.scheduler.submit(submission(9, list(range(20)), sampling(max_tokens=1)))
        for _ in range(20):
            answers.step()
        assert answers.order == [9]

    def test_prompts_are_computed_in_turn(self, few_tokens: None) -> None:
        answers = Answers(Scheduler(ToyRunner(), ()))
        for identifier in (1, 2, 3):
            answers.scheduler.submit(
                submission(identifier, [identifier] * 12, sampling(max_tokens=1))
            )
        assert answers.drain().order == [1, 2, 3]

    def test_no_more_run_than_may(self) -> None:
        runner = ToyRunner(200)
        answers = Answers(Scheduler(runner, (), max_running=3))
        for identifier in range(10):
            answers.scheduler.submit(submission(identifier, [identifier]))
        while answers.scheduler.running:
            answers.step()
            assert len(runner.steps[-1]) <= 3
        assert answers.order == list(range(10))


class TestCancel:
    def test_frees_at_once(self, few_tokens: None) -> None:
        runner = ToyRunner(16)
        scheduler = Scheduler(runner, ())
        scheduler.submit(submission(1, list(range(30))))
        scheduler.step()
        assert runner.cache.free < 16
        scheduler.cancel(1)
        assert runner.cache.free == 16
        assert scheduler.running == 0
        assert scheduler.step() == []

    def test_one_that_waits(self) -> None:
        runner = ToyRunner(200)
        answers = Answers(Scheduler(runner, (), max_running=1))
        for identifier in (1, 2, 3):
            answers.scheduler.submit(submission(identifier, [identifier]))
        answers.step()
        answers.scheduler.cancel(2)
        assert answers.scheduler.running == 2
        assert answers.drain().order == [1, 3]

    def test_an_unknown_one_is_no_error(self) -> None:
        scheduler = Scheduler(ToyRunner(), ())
        scheduler.cancel(5)
        assert scheduler.running == 0

    def test_the_others_go_on_unchanged(self) -> None:
        answers = Answers(Scheduler(ToyRunner(), ()))
        for identifier in (1, 2, 3):
            answers.scheduler.submit(submission(identifier, [identifier, identifier]))
        answers.step()
        answers.scheduler.cancel(2)
        answers.drain()
        for identifier in (1, 3):
            assert answers.tokens[identifier] == toy_answer([identifier, identifier], 8)[0]
        assert len(answers.tokens[2]) == 1


class TestAbandon:
    def test_tells_those_that_run_and_keeps_those_that_wait(self) -> None:
        runner = ToyRunner(200)
        answers = Answers(Scheduler(runner, (), max_running=2))
        for identifier in (1, 2, 3):
            answers.scheduler.submit(submission(identifier, [identifier]))
        answers.step()
        for output in answers.scheduler.abandon("It broke."):
            answers.note(output)
        assert answers.errors == {1: "It broke.", 2: "It broke."}
        assert not runner.length
        answers.drain()
        assert answers.order == [1, 2, 3]
        assert answers.tokens[3] == toy_answer([3], 8)[0]

    def test_the_device_is_checked(self) -> None:
        runner = ToyRunner(16)
        scheduler = Scheduler(runner, ())
        scheduler.abandon("no")
        assert scheduler.alive
        runner.has_device = False
        scheduler.abandon("no")
        assert not scheduler.alive

    def test_after_a_step_that_raised(self) -> None:
        runner = ToyRunner(16)

        def broken(_: int, __: torch.Tensor) -> torch.Tensor:
            raise RuntimeError

        good, runner.spoil = runner.spoil, broken
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(1, [1, 2, 3]))
        with pytest.raises(RuntimeError):
            answers.scheduler.step()
        assert [output.id for output in answers.scheduler.abandon("no")] == [1]
        assert runner.cache.free == 16
        runner.spoil = good
        answers.scheduler.submit(submission(2, [1, 2, 3, 4, 5, 6]))
        assert answers.drain().tokens[2] == toy_answer([1, 2, 3, 4, 5, 6], 8)[0]


class TestShortOfMemory:
    def test_the_older_half_goes_first(self) -> None:
        """A pass over more than three sequences runs out of memory. All of them are answered."""
        runner = Short(most=3)
        answers = Answers(Scheduler(runner, ()))
        wishes = {
            identifier: sampling(max_tokens=12, temperature=1.0, seed=identifier)
            for identifier in range(1, 9)
        }
        for identifier, wish in wishes.items():
            answers.scheduler.submit(submission(identifier, [identifier] * 5, wish))
        answers.drain()
        assert not answers.errors
        for identifier, wish in wishes.items():
            assert answers.tokens[identifier] == alone([identifier] * 5, wish)
        assert runner.shortages == 2, "with eight and with four sequences"
        assert not runner.length

    def test_a_sequence_that_is_too_large_alone_fails(self) -> None:
        runner = Short(most=0)
        answers = Answers(Scheduler(runner, ()))
        answers.scheduler.submit(submission(1, [1, 2]))
        answers.drain()
        assert "more memory than is free" in answers.errors[1]
        assert not runner.length
        runner.most = 9
        answers.scheduler.submit(submission(2, [1, 2]))
        answers.scheduler.submit(submission(3, [3]))
        answers.drain()
        assert answers.tokens[2] == toy_answer([1, 2], 8)[0]
        assert answers.tokens[3] == toy_answer([3], 8)[0]


class TestFailures:
    def test_a_row_that_cannot_be_drawn_hurts_nobody_else(self) -> None:
        runner = ToyRunner()
        runner.spoil = lambda identifier, row: (
            torch.full_like(row, -torch.inf) if identifier == 2 else row
        )
        answers = Answers(Scheduler(runner, ()))
        for identifier in (1, 2, 3):
            # With log probabilities, rows are processed one by one.
            answers.scheduler.submit(submission(identifier, [identifier], sampling(logprobs=0)))
        answers.drain()
        assert list(answers.errors) == [2]
        for identifier in (1, 3):
            assert answers.tokens[identifier] == toy_answer([identifier], 8)[0]
        assert runner.cache.free == runner.blocks


def scores(prompt: list[int]) -> list[float]:
    """Returns the log probabilities of the toy's prompt, from the second token on."""
    return [
        float(torch.log_softmax(toy_logits(prompt[:place]), -1)[prompt[place]])
        for place in range(1, len(prompt))
    ]


class TestPromptLogprobs:
    @pytest.mark.parametrize("budget", [1, 3, 5, 256])
    @pytest.mark.parametrize("count", [0, 4])
    def test_of_every_token(self, budget: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every token gets its log probability, together with others and with a prompt that was
        computed before.
        """
        monkeypatch.setattr(scheduling, "STEP_TOKENS", budget)
        monkeypatch.setattr(scheduling, "SCORED_TOKENS", 4)
        answers = Answers(Scheduler(ToyRunner(), ()))
        prompts = {1: [7] * 9, 2: [7] * 9, 3: [5], 4: [7] * 8 + [1, 2, 3]}
        answers.scheduler.submit(submission(0, prompts[1], sampling()))
        for identifier, prompt in prompts.items():
            wishes = sampling(prompt_logprobs=2, max_tokens=count)
            answers.scheduler.submit(submission(identifier, prompt, wishes))
        answers.drain()
        for identifier, prompt in prompts.items():
            logprobs = answers.prompts.get(identifier, [])
            assert [each.token for each in logprobs] == prompt[1:]
            assert [each.value for each in logprobs] == pytest.approx(scores(prompt), abs=1e-5)
            for place, each in enumerate(logprobs, start=1):
                likeliest = toy_logits(prompt[:place]).topk(2).indices.tolist()
                assert [token for token, _ in each.top] == likeliest
            assert answers.tokens[identifier] == (toy_answer(prompt, count)[0] if count else [])
            assert answers.finish[identifier] == "length"
            assert answers.cached[identifier] == 0

    def test_at_most_so_many_rows_at_once(self) -> None:
        """The limit applies to all prompts together. Prompts without log probabilities continue
        next to them.
        """
        runner = ToyRunner(400, max_length=500)
        answers = Answers(Scheduler(runner, ()))
        prompt = [number % 50 for number in range(300)]
        for number in (1, 2):
            answers.scheduler.submit(submission(number, prompt, sampling(prompt_logprobs=0)))
        answers.scheduler.submit(submission(3, [9] * 300, sampling(max_tokens=1)))
        answers.drain()
        rows = [sum(chunk.rows for chunk in step if chunk.scored) for step in runner.steps]
        assert max(rows) == scheduling.SCORED_TOKENS
        for number in (1, 2):
            logprobs = [each.value for each in answers.prompts[number]]
            assert logprobs == pytest.approx(scores(prompt), abs=1e-5)
        assert answers.order[0] == 3

    def test_none_is_told_twice(self, few_tokens: None) -> None:
        """Log probabilities are reported once, even if a sequence is preempted within its prompt or
        while it draws.
        """
        runner = ToyRunner(10, max_length=40)
        answers = Answers(Scheduler(runner, ()))
        prompts = {1: [1] * 10, 2: [2] * 11, 3: [3] * 12}
        for identifier, prompt in prompts.items():
            wishes = sampling(prompt_logprobs=1, max_tokens=24)
            answers.scheduler.submit(submission(identifier, prompt, wishes))
        answers.drain()
        for identifier, prompt in prompts.items():
            logprobs = [each.value for each in answers.prompts[identifier]]
            assert logprobs == pytest.approx(scores(prompt), abs=1e-5)
            assert answers.tokens[identifier] == toy_answer(prompt, 24)[0]
        computed = sum(len(chunk.tokens) for step in runner.steps for chunk in step)
        assert computed > sum(len(prompt) + 23 for prompt in prompts.values()), "none gave way"


class TestAdopt:
    def test_what_has_begun_ends_where_it_is(self) -> None:
        old, new = ToyRunner(), ToyRunner()
        new.name = "new"
        answers = Answers(Scheduler(old, ()))
        answers.scheduler.submit(submission(1, [1, 2]))
        answers.step()
        answers.scheduler.adopt(new)
        assert answers.scheduler.name == "new"
        answers.scheduler.submit(submission(2, [2, 3]))
        answers.step()
        assert (list(old.length), list(new.length)) == ([1], [2])
        answers.drain()
        assert answers.tokens == {
            1: toy_answer([1, 2], 8)[0],
            2: toy_answer([2, 3], 8)[0],
        }
        assert (old.cache.free, new.cache.free) == (64, 64)

    def test_who_gave_way_goes_on_with_the_new_one(self) -> None:
        old, new = ToyRunner(16), ToyRunner(16)
        answers = Answers(Scheduler(old, ()))
        for identifier in (1, 2):
            answers.scheduler.submit(
                submission(identifier, [identifier] * 17, sampling(max_tokens=30))
            )
        answers.step()
        answers.scheduler.adopt(new)
        answers.drain()
        for identifier in (1, 2):
            assert answers.tokens[identifier] == toy_answer([identifier] * 17, 30)[0]
        assert new.steps
        assert (old.cache.free, new.cache.free) == (16, 16)


def test_greedy_is_the_default_of_these_tests() -> None:
    assert sampling() == GREEDY


class TestKeys:
    def test_one_prompt_does_not_wait_for_fifty_of_another_key(self, few_tokens: None) -> None:
        answers = Answers(Scheduler(ToyRunner(300), ()))
        wishes = sampling(max_tokens=1)
        for number in range(50):
            answers.scheduler.submit(submission(number, [1, 2, 3, 4, 5], wishes, key="flood"))
        answers.step()
        answers.step()
        answers.scheduler.submit(submission(99, [1, 2, 3, 4, 6], wishes, key="one"))
        answers.drain()
        assert answers.order.index(99) <= 4
        assert [identifier for identifier in answers.order if identifier != 99] == [*range(50)]

    def test_nor_where_there_is_no_place_for_it_yet(self, few_tokens: None) -> None:
        answers = Answers(Scheduler(ToyRunner(300), (), max_running=2))
        wishes = sampling(max_tokens=2)
        for number in range(50):
            answers.scheduler.submit(submission(number, [1, 2, 3, 4, 5], wishes, key="flood"))
        answers.step()
        answers.scheduler.submit(submission(99, [1, 2, 3, 4, 6], wishes, key="one"))
        answers.drain()
        assert answers.order.index(99) <= 4
