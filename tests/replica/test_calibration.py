"""The batch budget that calibration finds on devices with known curves of time by tokens."""

from collections.abc import Callable

import pytest

from stoker.models.stages.base import Stages
from stoker.models.tasks.registry import STAGES
from stoker.replica import calibration
from stoker.replica.calibration import MOST_DEVICE_TOKENS, PROBE_TOKENS, SIZES, Calibration
from stoker.wire.passes import RecordedPasses
from tests.support.models import tiny_bert


class Curve:
    """Engine whose passes take a known time."""

    name = "torch"
    convertible = False
    adapters = None

    def __init__(self, seconds: Callable[[int], float], *, is_asynchronous: bool) -> None:
        self.seconds = seconds
        self.is_asynchronous = is_asynchronous
        self.wants_idle_time = False
        self.idle_work_pays = False
        self.recorded = RecordedPasses()
        self.now = 0.0
        self.sizes: list[int] = []

    def forward(self, samples: list[object], watch: object) -> list[object]:
        self.sizes.append(len(samples))
        self.now += self.seconds(len(samples) * PROBE_TOKENS)
        return []

    def perf_counter(self) -> float:
        return self.now

    load = enter_thread = prepare = stage = launch = use_idle_time = is_usable = drop_recorded = (
        forward
    )


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return STAGES["token-classification"](tiny_bert(tmp_path_factory.mktemp("models") / "bert"))


def budget(engine: Curve, stages: Stages, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(calibration.time, "perf_counter", engine.perf_counter)
    measured = Calibration({})
    measured.begin("torch")
    while not measured.step(engine, stages):  # type: ignore[arg-type]
        pass
    return measured.budget


@pytest.mark.parametrize(
    ("start_s", "token_s", "least", "most"),
    [
        # bfloat16 in a CUDA graph, bfloat16 and float32 without, on an H100.
        (0.74e-3, 0.55e-6, 2048, 8192),
        (8e-3, 0.55e-6, 16_384, 32_768),
        (4.4e-3, 5.3e-6, 1024, 4096),
    ],
)
def test_on_a_gpu_a_pass_of_many_tokens_is_found(
    stages: Stages,
    monkeypatch: pytest.MonkeyPatch,
    start_s: float,
    token_s: float,
    least: int,
    most: int,
) -> None:
    engine = Curve(lambda tokens: max(start_s, tokens * token_s), is_asynchronous=True)
    found = budget(engine, stages, monkeypatch)
    assert least <= found <= most
    best = 1 / token_s
    assert found / engine.seconds(found) >= 0.9 * best


def test_on_a_gpu_the_budget_is_bounded(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Curve(lambda tokens: 1e-3, is_asynchronous=True)
    assert budget(engine, stages, monkeypatch) == MOST_DEVICE_TOKENS


def test_a_slow_gpu_is_measured_no_longer_than_others(
    stages: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Curve(lambda tokens: tokens * 2e-3, is_asynchronous=True)
    budget(engine, stages, monkeypatch)
    assert engine.now < 2 * calibration.LIMIT_S


def test_on_a_cpu_the_sizes_stay_small(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Curve(lambda tokens: 1e-3, is_asynchronous=False)
    assert budget(engine, stages, monkeypatch) == SIZES[-1] * PROBE_TOKENS
