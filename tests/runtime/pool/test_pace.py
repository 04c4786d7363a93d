from stoker.runtime.pool.pace import MAX_AGE_S, MIN_SAMPLES, WINDOW, Pace
from tests.runtime.pool.world import Clock


def ended(*calls: tuple[int, float], is_bounded: bool = True, clock: Clock | None = None) -> Pace:
    pace = Pace(clock or Clock())
    for ahead, seconds in calls:
        pace.answered(ahead, seconds, is_bounded=is_bounded)
    return pace


class TestTakes:
    def test_nothing_known(self):
        assert ended().median_s(30) == 1.0

    def test_each_call_before_it_takes_its_time(self):
        pace = ended((9, 5.0), (19, 10.0))
        assert pace.median_s(39) == 20.0
        assert pace.median_s(0) == 0.5

    def test_those_in_a_like_queue_tell_more(self):
        """Ten calls that share a batch take as long as one."""
        assert ended((0, 1.0), (0, 1.0), (0, 1.0), (9, 1.0)).median_s(9) == 1.0


class TestSurely:
    def test_few_calls_tell_nothing(self):
        assert ended(*[(9, 10.0)] * (MIN_SAMPLES - 1)).p10_s(9) is None
        assert ended(*[(9, 10.0)] * MIN_SAMPLES).p10_s(9) == 10.0

    def test_calls_without_a_queue_tell_nothing_of_one(self):
        pace = ended(*[(9, 10.0)] * WINDOW)
        assert pace.p10_s(18) == 19.0
        assert pace.p10_s(18) < pace.max_p10_s
        assert pace.p10_s(19) is None

    def test_small_calls_pass_large_ones(self):
        """If one call in ten is short, the next one may be short too."""
        large, small = [(9, 100.0)] * 9, [(9, 0.1)]
        assert ended(*(large * 2)).p10_s(9) == 100.0
        assert ended(*(large + small) * 2).p10_s(9) == 100.0
        assert ended(*(large + small * 2) * 2).p10_s(9) == 0.1

    def test_those_given_up_tell_of_about_as_many(self):
        pace = ended()
        for _ in range(MIN_SAMPLES):
            pace.given_up(20, 3.0)
        assert pace.p10_s(41) is None
        assert pace.p10_s(40) == 3.0 * 41 / 21
        assert pace.p10_s(10) == 3.0, "it may take less, and nobody has seen that"
        assert pace.p10_s(9) is None
        for _ in range(2):
            pace.answered(10, 2.0, is_bounded=True)
        assert pace.p10_s(10) == 2.0

    def test_streams_may_take_any_time(self):
        assert ended(*[(9, 1000.0)] * MIN_SAMPLES, is_bounded=False).p10_s(9) is None

    def test_what_was_slow_once_is_not_so_for_ever(self):
        clock = Clock()
        pace = ended(*[(9, 10.0)] * MIN_SAMPLES, clock=clock)
        clock.now += MAX_AGE_S
        assert pace.p10_s(9) == 10.0
        clock.now += 1
        assert pace.p10_s(9) is None

    def test_others_answer_now(self):
        pace = ended(*[(9, 10.0)] * MIN_SAMPLES)
        pace.reset()
        assert pace.p10_s(9) is None
