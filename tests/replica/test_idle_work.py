from stoker.replica.idle_work import PATIENCE_S, REST, IdleWork


class Improving:
    """Engine that takes time for each of its steps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wants_idle_time = False
        self.steps = 0

    def use_idle_time(self) -> None:
        self.steps += 1
        self.now += 0.04


def test_nothing_is_due_if_nothing_is_wanted() -> None:
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    assert not work.is_due(is_idle=True)


def test_a_step_waits_for_an_empty_queue() -> None:
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    engine.wants_idle_time = True
    assert not work.is_due(is_idle=False)
    assert work.is_due(is_idle=True)


def test_under_constant_load_a_step_is_due_after_some_time() -> None:
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    engine.wants_idle_time = True
    work.is_due(is_idle=False)
    engine.now += PATIENCE_S
    assert work.is_due(is_idle=False)
    work.step()
    assert engine.steps == 1
    engine.now += PATIENCE_S * 0.9
    assert not work.is_due(is_idle=False)


def test_steps_take_a_small_share_of_the_time() -> None:
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    engine.wants_idle_time = True
    assert work.is_due(is_idle=True)
    work.step()
    assert not work.is_due(is_idle=True)
    engine.now += REST * 0.041
    assert work.is_due(is_idle=True)
