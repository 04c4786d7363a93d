"""Order of sequences of different service tiers in the scheduler."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch

from stoker.base.fairness import MOST_OVERTAKING, Tier
from stoker.models.llm.background import LIVE_S, BackgroundShare
from stoker.models.llm.runner import Chunk
from stoker.models.llm.scheduler import Scheduler
from tests.llm.support import GREEDY, Answers, ToyRunner, submission


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TimedRunner(ToyRunner):
    """A runner whose steps take one second and a time for each token."""

    def __init__(self, clock: Clock, token_s: float, **options: Any) -> None:
        super().__init__(**options)
        self.clock = clock
        self.token_s = token_s

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        self.clock.now += 1 + self.token_s * sum(len(chunk.tokens) for chunk in chunks)
        return super().forward(chunks)


def flex(identifier: int, prompt: list[int], **more: Any) -> Any:
    return submission(identifier, prompt, tier=Tier.FLEX, key=f"flex {identifier}", **more)


def live(identifier: int, prompt: list[int], **more: Any) -> Any:
    return submission(identifier, prompt, **more)


LONG = msgspec.structs.replace(GREEDY, max_tokens=40)


def alone(prompt: list[int]) -> list[int]:
    """Returns the tokens that a sequence gets if nothing else runs."""
    answers = Answers(Scheduler(ToyRunner(), ()))
    answers.scheduler.submit(submission(0, prompt))
    return answers.drain().tokens[0]


def sizes(runner: ToyRunner, step: int = -1) -> dict[int, int]:
    """Returns the number of tokens that a step computed, by sequence."""
    return {chunk.id: len(chunk.tokens) for chunk in runner.steps[step]}


class TestFlex:
    def test_live_sequences_are_admitted_first(self) -> None:
        scheduler = Scheduler(ToyRunner(), (), max_running=1)
        answers = Answers(scheduler)
        for number in range(3):
            scheduler.submit(flex(number, [1, 2, 3 + number]))
        scheduler.submit(live(9, [4, 5, 6]))
        answers.drain()
        assert answers.order == [9, 0, 1, 2]

    def test_a_live_sequence_takes_the_place_of_a_running_one(self) -> None:
        runner = ToyRunner()
        scheduler = Scheduler(runner, (), max_running=2)
        answers = Answers(scheduler)
        for number in range(2):
            scheduler.submit(flex(number, [1, 2, 3 + number]))
        answers.step()
        scheduler.submit(live(9, [4, 5, 6]))
        answers.step()
        assert 9 in sizes(runner)
        assert 1 not in sizes(runner)
        answers.drain()
        # Preempted sequences lose no token.
        for number in range(2):
            assert answers.tokens[number] == alone([1, 2, 3 + number])

    def test_gives_the_cache_to_a_live_sequence(self) -> None:
        runner = ToyRunner(blocks=6)
        scheduler = Scheduler(runner, ())
        answers = Answers(scheduler)
        for number in range(2):
            scheduler.submit(flex(number, [1 + number] * 8))
        answers.step()
        scheduler.submit(live(9, [7] * 12))
        answers.step()
        assert 9 in sizes(runner)
        answers.drain()
        assert answers.order[0] == 9
        assert answers.tokens[9] == alone([7] * 12)

    def test_hardly_joins_while_each_token_prolongs_a_step(self) -> None:
        clock = Clock()
        runner = TimedRunner(clock, token_s=0.5)
        scheduler = Scheduler(runner, (), clock=clock)
        answers = Answers(scheduler)
        scheduler.submit(live(9, [4, 5, 6], sampling=LONG))
        scheduler.submit(flex(1, [1, 2, 3]))
        answers.step()
        joined = 0
        while 9 not in answers.finish:
            answers.step()
            joined += 1 in sizes(runner)
        # The time of a token was measured.
        assert joined <= 4
        answers.drain()
        assert answers.tokens[1] == alone([1, 2, 3])

    def test_joins_if_a_step_takes_hardly_longer(self) -> None:
        clock = Clock()
        runner = TimedRunner(clock, token_s=0.001)
        scheduler = Scheduler(runner, (), clock=clock)
        answers = Answers(scheduler)
        scheduler.submit(live(9, [4, 5, 6], sampling=LONG))
        for number in range(4):
            scheduler.submit(flex(number, [1, 2, number]))
        while 9 not in answers.finish:
            answers.step()
        assert {0, 1, 2, 3} <= answers.finish.keys()

    def test_the_oldest_are_computed_first_if_not_all_fit(self) -> None:
        clock = Clock()
        # A step of one token takes 1.04 s, so two more tokens fit into a tenth of it.
        runner = TimedRunner(clock, token_s=0.04)
        scheduler = Scheduler(runner, (), clock=clock)
        answers = Answers(scheduler)
        scheduler.submit(live(9, [4, 5, 6], sampling=LONG))
        for number in range(8):
            scheduler.submit(flex(number, [1, number + 2]))
        while 9 not in answers.finish:
            answers.step()
        assert {0, 1} <= answers.finish.keys() < {9, *range(8)}
        assert {0, 1} == set(answers.order[:2])

    def test_waits_for_the_next_live_sequence_only_while_none_is_there(self) -> None:
        clock = Clock()
        scheduler = Scheduler(TimedRunner(clock, 0.1), (), clock=clock)
        answers = Answers(scheduler)
        scheduler.submit(flex(99, [9, 9], sampling=LONG))
        for number in range(6):
            scheduler.submit(live(number, [1, number]))
            assert scheduler.pause_s == 0
            while number not in answers.finish:
                answers.step()
                if number not in answers.finish:
                    assert scheduler.pause_s == 0
            clock.now += 0.5
        clock.now -= 0.5
        assert 0 < scheduler.pause_s < 5


class TestBackgroundShare:
    def test_nothing_joins_before_a_measurement(self) -> None:
        assert BackgroundShare(Clock()).room(1, 100) == 0

    def test_all_room_without_live_sequences(self) -> None:
        assert BackgroundShare(Clock()).room(0, 100) == 100

    def test_steps_are_short_while_live_sequences_keep_coming(self) -> None:
        clock = Clock()
        share = BackgroundShare(clock)
        for width in (1, 2, 4, 8, 16):
            share.passed(width, 1, 1 + 0.1 * width)
        # Twice a step of one token, 2.2 s.
        assert share.room(0, 100) in (11, 12)
        clock.now += LIVE_S
        assert share.room(0, 100) == 100

    @pytest.mark.parametrize(
        ("gap_s", "paused_s"),
        [(0.1, 0), (0.5, 1), (1.5, 3), (3, 4), (4.5, 0), (60, 0)],
    )
    def test_pauses_for_a_client_that_calls_at_once(self, gap_s: float, paused_s: float) -> None:
        """The pause takes twice the usual gap, but at most four steps."""
        clock = Clock()
        share = BackgroundShare(clock)
        for _ in range(8):
            # An answer of four tokens.
            for _ in range(4):
                clock.now += 1
                share.passed(1, 1, 1.0)
            assert share.pause_s in (0, paused_s)
            clock.now += gap_s
        clock.now -= gap_s
        assert share.pause_s == pytest.approx(paused_s)
        clock.now += paused_s
        assert share.pause_s == pytest.approx(0)

    def test_pauses_no_longer_once_the_client_takes_its_time(self) -> None:
        clock = Clock()
        share = BackgroundShare(clock)
        for gap_s in (*[1.0] * 8, *[60.0] * 5):
            clock.now += gap_s + 1
            share.passed(1, 1, 1.0)
        assert share.pause_s == 0

    def test_room_grows_step_by_step(self) -> None:
        share = BackgroundShare(Clock())
        for _ in range(10):
            share.passed(1, 1, 1.0)
        rooms: list[int] = []
        for _ in range(4):
            rooms.append(share.room(1, 100))
            share.passed(1 + rooms[-1], 1, 1.0)
        assert rooms == [1, 3, 7, 15]


class TestPriority:
    def test_is_admitted_first(self) -> None:
        scheduler = Scheduler(ToyRunner(), (), max_running=1)
        answers = Answers(scheduler)
        for number in range(3):
            scheduler.submit(live(number, [1, 2, 3 + number], key="a"))
        scheduler.submit(submission(9, [4, 5, 6], key="b", tier=Tier.PRIORITY))
        answers.drain()
        assert answers.order[0] == 9

    def test_does_not_starve_default(self) -> None:
        scheduler = Scheduler(ToyRunner(), (), max_running=1)
        answers = Answers(scheduler)
        scheduler.submit(live(0, [1, 2, 3], key="a"))
        for number in range(1, 20):
            scheduler.submit(submission(number, [4, number], key="b", tier=Tier.PRIORITY))
        answers.drain()
        assert answers.order.index(0) <= MOST_OVERTAKING + 1
