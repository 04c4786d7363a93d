from stoker.replica.idle_work import PATIENCE_S, QUIET_S, REST, IdleWork


class Improving:
    """Engine that takes time for each of its steps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wants_idle_time = False
        self.idle_work_pays = True
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


def test_between_batches_a_step_must_pay() -> None:
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    engine.wants_idle_time, engine.idle_work_pays = True, False
    work.worked()
    assert not work.is_due(is_idle=True)
    engine.idle_work_pays = True
    assert work.is_due(is_idle=True), "no request waits at the moment"
    assert not work.is_due(is_idle=False)
    engine.idle_work_pays = False
    engine.now += PATIENCE_S
    work.worked()
    assert not work.is_due(is_idle=False)
    assert not work.is_due(is_idle=True)
    engine.now += QUIET_S
    assert work.is_due(is_idle=True), "no request is expected"


def test_under_constant_load_steps_take_a_small_share() -> None:
    """Ten seconds in which requests always wait: the first step is late, and later ones rest."""
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    engine.wants_idle_time = True
    started: list[float] = []
    while engine.now < 10:
        if work.is_due(is_idle=False):
            started.append(engine.now)
            work.step(is_idle=False)
        engine.now += 0.01
        work.worked()
    assert started[0] >= PATIENCE_S
    assert 9 <= len(started) <= 10 / (REST * 0.04)


def test_an_empty_queue_is_awaited_again_after_it_was_found() -> None:
    engine = Improving()
    work = IdleWork(engine, lambda: engine.now)  # type: ignore[arg-type]
    engine.wants_idle_time = True
    work.is_due(is_idle=False)
    engine.now += PATIENCE_S
    assert work.is_due(is_idle=True)
    work.step(is_idle=True)
    engine.now += REST * 0.04
    assert not work.is_due(is_idle=False)
    engine.now += PATIENCE_S + 0.01
    assert work.is_due(is_idle=False)
