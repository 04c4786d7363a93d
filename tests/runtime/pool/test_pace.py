from stoker.runtime.pool.pace import RATED, RECENT_S, SOUND, Pace
from tests.runtime.pool.test_pool import Clock


def ended(*calls: tuple[int, float], is_bounded: bool = True, clock: Clock | None = None) -> Pace:
    pace = Pace(clock or Clock())
    for ahead, seconds in calls:
        pace.answered(ahead, seconds, is_bounded=is_bounded)
    return pace


class TestTakes:
    def test_nothing_known(self):
        assert ended().takes_s(30) == 1.0

    def test_each_call_before_it_takes_its_time(self):
        pace = ended((9, 5.0), (19, 10.0))
        assert pace.takes_s(39) == 20.0
        assert pace.takes_s(0) == 0.5

    def test_those_in_a_like_queue_tell_more(self):
        """Ten calls that share a batch take as long as one."""
        assert ended((0, 1.0), (0, 1.0), (0, 1.0), (9, 1.0)).takes_s(9) == 1.0


class TestSurely:
    def test_few_calls_tell_nothing(self):
        assert ended(*[(9, 10.0)] * (SOUND - 1)).surely_s(9) is None
        assert ended(*[(9, 10.0)] * SOUND).surely_s(9) == 10.0

    def test_calls_without_a_queue_tell_nothing_of_one(self):
        pace = ended(*[(9, 10.0)] * RATED)
        assert pace.surely_s(18) == 19.0
        assert pace.surely_s(18) < pace.most_s
        assert pace.surely_s(19) is None

    def test_small_calls_pass_large_ones(self):
        """Where one call in ten is soon through, the next one may be such a one."""
        large, small = [(9, 100.0)] * 9, [(9, 0.1)]
        assert ended(*(large * 2)).surely_s(9) == 100.0
        assert ended(*(large + small) * 2).surely_s(9) == 100.0
        assert ended(*(large + small * 2) * 2).surely_s(9) == 0.1

    def test_those_given_up_tell_of_about_as_many(self):
        pace = ended()
        for _ in range(SOUND):
            pace.given_up(20, 3.0)
        assert pace.surely_s(41) is None
        assert pace.surely_s(40) == 3.0 * 41 / 21
        assert pace.surely_s(10) == 3.0, "it may take less, and nobody has seen that"
        assert pace.surely_s(9) is None
        for _ in range(2):
            pace.answered(10, 2.0, is_bounded=True)
        assert pace.surely_s(10) == 2.0

    def test_streams_may_take_any_time(self):
        assert ended(*[(9, 1000.0)] * SOUND, is_bounded=False).surely_s(9) is None

    def test_what_was_slow_once_is_not_so_for_ever(self):
        clock = Clock()
        pace = ended(*[(9, 10.0)] * SOUND, clock=clock)
        clock.now += RECENT_S
        assert pace.surely_s(9) == 10.0
        clock.now += 1
        assert pace.surely_s(9) is None

    def test_others_answer_now(self):
        pace = ended(*[(9, 10.0)] * SOUND)
        pace.forget()
        assert pace.surely_s(9) is None
