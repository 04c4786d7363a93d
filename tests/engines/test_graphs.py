"""Recorded passes over buckets, with real tiny models and the stand-in recorder for a CPU."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.models.engines.buckets import LENGTHS, ROWS, PaddedBuckets
from stoker.models.engines.graph_demand import LEAST_USES, MOST_EXAMPLES, RECORDING_PASSES
from stoker.models.engines.graphs import TIMINGS, WARM_UPS, GraphCache, graphs_of
from stoker.models.engines.recorders import HostRecorder, Recording
from stoker.models.engines.recording_guard import DeviceLostError, RecordingGuard
from stoker.models.engines.torch import TorchEngine
from stoker.models.engines.transfers import Outputs
from stoker.models.stages.base import Sample
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.registry import STAGES
from stoker.wire.passes import RecordedPasses
from stoker.wire.protocol import Sharing
from tests.support.models import tiny_bert, tiny_vit


class Model:
    """A loaded model whose passes are recorded, and counts of its passes as usual."""

    def __init__(self, pipeline: str, folder: Path, recorder: HostRecorder | None = None) -> None:
        self.stages = STAGES[pipeline](folder)
        self.engine = TorchEngine("cpu", "float32", 1)
        self.stages.attach(self.engine.load(folder, self.stages, lambda *_: None))
        self.passes = 0
        self.recorder = recorder or HostRecorder()
        self.notes: list[str] = []
        self.guarded()

    def guarded(self, *lost: str, step_s: float = 60) -> None:
        """Starts without recordings, after earlier replicas that ended while they recorded."""
        self.graphs = GraphCache(
            self.run,
            PaddedBuckets(self.stages),
            self.recorder,
            guard=RecordingGuard(self.notes.append, lost),
            step_s=step_s,
        )
        self.engine.graphs = self.graphs

    def run(self, call: Any, batch: Mapping[str, torch.Tensor]) -> Outputs:
        self.passes += 1
        return self.engine.run(call, batch)

    def samples(self, *lengths: int) -> list[Sample]:
        samples = [self.stages.probe(length, number) for number, length in enumerate(lengths)]
        assert all(samples)
        return samples  # type: ignore[return-value]

    def use(self, batch: Sequence[Sample], times: int = LEAST_USES) -> None:
        for _ in range(times):
            self.replay(batch)

    def record(self, *batches: Sequence[Sample]) -> None:
        """Sends each batch often enough, and records all that is wanted."""
        for batch in batches:
            self.use(batch)
        while self.graphs.is_wanting:
            self.graphs.record()

    def launched(self, samples: Sequence[Sample]) -> list[Mapping[str, Any]]:
        return self.engine.launch(self.engine.stage(samples)).outputs()

    @torch.inference_mode()
    def replay(self, samples: Sequence[Sample]) -> Outputs | None:
        return self.graphs.replay(samples[0].call, self.engine.batch(samples))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vit(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture
def model(bert: Path) -> Model:
    return Model("token-classification", bert)


def same(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> bool:
    return all(
        torch.allclose(one["logits"], other["logits"], atol=1e-5)
        for one, other in zip(ours, theirs, strict=True)
    )


class TestBuckets:
    def test_few_buckets_hold_all_batches_without_much_padding(self) -> None:
        for steps in (ROWS, LENGTHS):
            assert all(after <= 2 * before for before, after in pairwise(steps))

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_outputs_are_cut_as_the_batch_was_padded(self, model: Model, side: str) -> None:
        model.stages.padding_side = side
        buckets = PaddedBuckets(model.stages)
        batch = {
            "input_ids": torch.arange(1, 61).view(3, 20),
            "attention_mask": torch.ones(3, 20, dtype=torch.long),
        }
        bucket = buckets.bucket((), batch)
        assert [tuple(shape) for _, shape, _ in bucket.shapes] == [(4, 32), (4, 32)]
        inputs = buckets.inputs(bucket, batch)
        assert inputs["attention_mask"].sum(1).tolist() == [20, 20, 20, 20]
        logits = inputs["input_ids"].unsqueeze(-1).repeat(1, 1, 2)
        cut = buckets.cut(
            {"logits": logits, "other": torch.ones(4, 5), "none": None}, inputs, batch
        )
        assert torch.equal(cut["logits"][..., 0], batch["input_ids"])
        assert cut["other"].shape == (3, 5)
        assert cut["none"] is None

    def test_a_shorter_batch_leaves_nothing_of_a_longer_one(self, model: Model) -> None:
        buckets = PaddedBuckets(model.stages)
        long, short = (
            {"input_ids": torch.full((2, n), 7), "attention_mask": torch.ones(2, n)}
            for n in (32, 20)
        )
        bucket = buckets.bucket((), long)
        assert bucket == buckets.bucket((), short)
        inputs = buckets.inputs(bucket, long)
        buckets.write(inputs, short)
        assert inputs["attention_mask"].sum(1).tolist() == [20, 20]

    @pytest.mark.parametrize(
        ("sharing", "shape"),
        [
            (Sharing.PADDED, (4, 32)),
            (Sharing.SAME_LENGTH, (4, 20)),
            (Sharing.ALONE, (3, 20)),
        ],
    )
    def test_a_batch_is_padded_only_as_its_samples_may_share(
        self, model: Model, sharing: Sharing, shape: tuple[int, int]
    ) -> None:
        model.stages.sharing = sharing
        bucket = PaddedBuckets(model.stages).bucket((), {"input_ids": torch.ones(3, 20)})
        assert tuple(bucket.shapes[0][1]) == shape

    def test_other_shapes_calls_and_types_are_other_buckets(self, model: Model) -> None:
        buckets = PaddedBuckets(model.stages)
        batches = [
            ((), {"pixels": torch.ones(1, 3, 8, 8)}),
            ((), {"pixels": torch.ones(1, 3, 8, 16)}),
            ((), {"pixels": torch.ones(1, 3, 8, 8, dtype=torch.bfloat16)}),
            ("fast", {"pixels": torch.ones(1, 3, 8, 8)}),
        ]
        assert len({buckets.bucket(call, batch) for call, batch in batches}) == len(batches)

    def test_inputs_without_a_row_per_sample_keep_their_shapes(self, model: Model) -> None:
        buckets = PaddedBuckets(model.stages)
        batch = {"input_ids": torch.ones(3, 20), "bounds": torch.arange(5), "scale": torch.ones(())}
        bucket = buckets.bucket((), batch)
        assert [shape for _, shape, _ in bucket.shapes] == [value.shape for value in batch.values()]
        inputs = buckets.inputs(bucket, batch)
        buckets.write(inputs, {name: value + 1 for name, value in batch.items()})
        assert inputs["bounds"].tolist() == [1, 2, 3, 4, 5]
        outputs = {"logits": torch.ones(3, 20)}
        assert buckets.cut(outputs, inputs, batch) is outputs


class TestGraphCache:
    @pytest.mark.parametrize(
        "lengths", [[5], [16], [3, 12, 9], [60], [40, 33, 50, 41, 38], [8] * 16, [100, 5]]
    )
    def test_replayed_outputs_equal_usual_ones(self, model: Model, lengths: list[int]) -> None:
        samples = model.samples(*lengths)
        usual = model.engine.forward(samples)
        model.record(samples)
        passes = model.passes
        outputs = model.launched(samples)
        assert model.passes == passes + 1, "the recorder's replay"
        assert model.replay(samples) is not None
        assert same(outputs, usual)
        assert [one["logits"].shape for one in outputs] == [one["logits"].shape for one in usual]

    def test_smaller_batches_use_the_same_recording(self, model: Model) -> None:
        model.record(model.samples(60, 50, 40, 33))
        for lengths in ([49, 50, 51], [50, 64, 55]):
            samples = model.samples(*lengths)
            assert same(model.launched(samples), model.engine.forward(samples))
            assert model.replay(samples) is not None
        assert model.graphs.state.count == 1

    def test_images(self, vit: Path) -> None:
        model = Model("image-classification", vit)
        samples = [*model.samples(1, 1, 1)]
        model.record(samples)
        assert same(
            model.engine.launch(model.engine.stage(samples)).outputs(),
            model.engine.forward(samples),
        )
        assert model.replay(samples) is not None

    def test_a_bucket_is_recorded_only_after_some_uses(self, model: Model) -> None:
        samples = model.samples(5)
        for _ in range(LEAST_USES - 1):
            assert model.replay(samples) is None
        assert not model.graphs.is_wanting
        assert model.replay(samples) is None
        assert model.graphs.is_wanting
        assert model.passes == 0, "nothing is recorded while a request waits"

    def test_the_most_used_bucket_is_first(self, model: Model) -> None:
        often, seldom = model.samples(5), model.samples(100)
        for batch in (seldom, often):
            for _ in range(LEAST_USES + (batch is often)):
                model.replay(batch)
        model.graphs.record()
        assert model.replay(often) is not None
        assert model.replay(seldom) is None

    def test_the_least_recently_used_recording_is_dropped(self, model: Model) -> None:
        model.graphs.most = 2
        first, second, third = (model.samples(length) for length in (5, 30, 60))
        model.record(first, second)
        model.replay(first)
        model.record(third)
        assert model.replay(first) is not None
        assert model.replay(second) is None
        assert model.replay(third) is not None
        assert model.graphs.state.count == 2

    def test_few_examples_are_kept(self, model: Model) -> None:
        for rows in range(1, 2 * MOST_EXAMPLES):
            for _ in range(LEAST_USES):
                model.replay(model.samples(*[5] * ROWS[rows % len(ROWS)]))
        assert len(model.graphs._demand._examples) == MOST_EXAMPLES

    def test_recording_ends_when_memory_is_scarce(self, bert: Path) -> None:
        model = Model("token-classification", bert, HostRecorder(most=1))
        model.record(model.samples(5), model.samples(30))
        model.record(model.samples(60))
        report = model.graphs.state
        assert report.count == 1, "the recorded pass stays"
        assert "memory" in report.problem
        assert model.replay(model.samples(30)) is None

    def test_memory_can_be_returned(self, model: Model) -> None:
        model.record(model.samples(5))
        model.graphs.clear()
        assert model.graphs.state.count == 0
        assert model.replay(model.samples(5)) is None

    def test_a_model_that_cannot_be_recorded_runs_as_usual(self, bert: Path) -> None:
        model = Model("token-classification", bert, UnableRecorder())
        samples = model.samples(5)
        model.record(samples)
        assert model.graphs.state.problem.endswith("not permitted when stream is capturing")
        model.record(samples)
        assert not model.graphs.is_wanting, "it is not tried again"
        assert same(
            model.engine.launch(model.engine.stage(samples)).outputs(),
            model.engine.forward(samples),
        )

    def test_other_forms_are_recorded_after_one_form_failed(self, model: Model) -> None:
        fast = model.samples(5)
        fast[0].call = "fast"
        run = model.graphs.run

        def unable(call: Any, batch: Any) -> Outputs:
            if call == "fast":
                raise RuntimeError
            return run(call, batch)

        model.graphs.run = unable
        model.record(fast, model.samples(5))
        assert model.replay(fast) is None
        assert model.replay(model.samples(5)) is not None
        assert model.graphs.state.problem.endswith("RuntimeError")

    def test_a_recording_with_fixed_values_is_refused(self, bert: Path) -> None:
        model = Model("token-classification", bert, ForgetfulRecorder())
        model.record(model.samples(5, 9))
        assert "other outputs" in model.graphs.state.problem

    @pytest.mark.parametrize(
        ("spoiled", "reason"),
        [
            (lambda outputs: {**outputs, "hidden": ()}, "no tensor"),
            (lambda outputs: {"logits": outputs["logits"].mean(0)}, "other"),
            (lambda outputs: {**outputs, "table": torch.ones(4, 2)}, "rows"),
            (lambda outputs: {"logits": outputs["logits"] - outputs["logits"].mean(0)}, "other"),
        ],
    )
    def test_outputs_that_do_not_belong_to_rows_are_refused(
        self, model: Model, spoiled: Callable[[Any], Any], reason: str
    ) -> None:
        run = model.graphs.run
        model.graphs.run = lambda call, batch: spoiled(run(call, batch))
        model.record(model.samples(5, 9, 7))
        assert reason in model.graphs.state.problem

    def test_a_recording_that_is_slower_is_not_kept(self, bert: Path) -> None:
        model = Model("token-classification", bert, SlowRecorder())
        samples = model.samples(17, 18, 19)
        model.record(samples)
        assert model.graphs.state.count == 0
        model.record(samples)
        assert model.graphs.state.problem == "", "other buckets may gain"

    def test_adapted_batches_run_as_usual(self, model: Model) -> None:
        samples = model.samples(5)
        model.record(samples)
        samples[0].adapter = object()  # type: ignore[assignment]
        assert model.engine._replayed(model.engine.stage(samples)) is None

    def test_a_cpu_records_nothing(self, model: Model) -> None:
        assert graphs_of(model.engine, ModelKind.PASSES, RecordingGuard()) is None


class TestSteps:
    def test_a_recording_pauses_after_each_pass(self, model: Model) -> None:
        model.guarded(step_s=0)
        samples = model.samples(5)
        model.use(samples)
        steps = 0
        while model.graphs.is_wanting:
            before = model.passes
            model.graphs.record()
            assert model.passes - before <= 2, "the comparison has two passes"
            assert model.launched(samples), "batches are computed between the steps"
            steps += 1
        assert steps == WARM_UPS + 2 + 2 * TIMINGS + 1
        assert model.graphs.state.count == 1
        assert model.replay(samples) is not None

    def test_memory_is_returned_between_two_steps(self, model: Model) -> None:
        model.guarded(step_s=0)
        model.use(model.samples(5))
        model.graphs.record()
        model.graphs.clear()
        assert not model.graphs.is_wanting
        assert model.replay(model.samples(5)) is None

    def test_requests_wait_only_for_a_recording_that_pays(self, model: Model) -> None:
        samples = model.samples(5)
        model.use(samples, RECORDING_PASSES - 1)
        assert model.graphs.is_wanting and not model.graphs.pays
        model.use(samples, 1)
        assert model.graphs.pays

    def test_the_gain_of_a_similar_bucket_is_expected(self, bert: Path) -> None:
        """A recorded pass takes three quarters of the time."""
        model = Model("token-classification", bert, TimedRecorder(0.75))
        model.record(model.samples(5))
        samples = model.samples(30)
        model.use(samples, 4 * RECORDING_PASSES - 1)
        assert not model.graphs.pays
        model.use(samples, 1)
        assert model.graphs.pays

    def test_no_gain_pays_never(self, bert: Path) -> None:
        model = Model("token-classification", bert, TimedRecorder(1.0))
        model.record(model.samples(5))
        model.use(model.samples(30), 10 * RECORDING_PASSES)
        assert model.graphs.is_wanting, "idle time costs nothing"
        assert not model.graphs.pays


class TestLostRecordings:
    def test_the_recording_is_noted(self, model: Model) -> None:
        model.record(model.samples(5))
        name, *_ = model.notes
        assert name == "input_ids 1x16, attention_mask 1x16"
        assert set(model.notes) == {name, ""}
        assert model.notes[-1] == ""

    def test_the_bucket_that_ended_a_replica_is_skipped(
        self, model: Model, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("WARNING")
        model.guarded("input_ids 1x16, attention_mask 1x16")
        short, long = model.samples(5), model.samples(30)
        model.record(short, long, short)
        assert model.replay(short) is None
        assert model.replay(long) is not None
        assert model.graphs.state.problem == ""
        (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
        assert "ended a replica" in warning.getMessage()

    def test_after_two_ends_nothing_is_recorded(self, model: Model) -> None:
        model.guarded("one", "two")
        assert "ended" in model.graphs.state.problem
        model.record(model.samples(5))
        assert model.graphs.state.count == 0
        assert model.notes == []

    def test_a_lost_device_is_noted_until_the_end(self, bert: Path) -> None:
        model = Model("token-classification", bert, LosingRecorder())
        model.use(model.samples(5))
        with pytest.raises(DeviceLostError, match="illegal memory access"):
            model.graphs.record()
        assert model.notes == ["input_ids 1x16, attention_mask 1x16"]

    def test_a_failure_is_logged_once(self, bert: Path, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("WARNING")
        model = Model("token-classification", bert, UnableRecorder())
        model.record(model.samples(5), model.samples(30), model.samples(5))
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert model.notes[-1] == ""

    def test_a_lack_of_memory_ends_all_recordings(self, bert: Path) -> None:
        model = Model("token-classification", bert, ShortRecorder())
        model.record(model.samples(5), model.samples(30))
        assert model.graphs.state == RecordedPasses(0, "The device has too little free memory.")


class TimedRecorder(HostRecorder):
    """Reports this share of a usual pass's time for a recorded pass, which is measured first."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._durations = cycle([share] * TIMINGS + [1.0] * TIMINGS)

    def seconds(self, compute: Callable[[], Outputs]) -> float:
        return next(self._durations)


class LosingRecorder(HostRecorder):
    def record(self, compute: Callable[[], Outputs]) -> Recording:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nAdvice.")

    def is_usable(self) -> bool:
        return False


class ShortRecorder(HostRecorder):
    def record(self, compute: Callable[[], Outputs]) -> Recording:
        raise torch.OutOfMemoryError("CUDA out of memory.")


class UnableRecorder(HostRecorder):
    def record(self, compute: Callable[[], Outputs]) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing")


class ForgetfulRecorder(HostRecorder):
    """Replays the recorded outputs, whatever the inputs are."""

    def record(self, compute: Callable[[], Outputs]) -> Recording:
        outputs = compute()
        return super().record(lambda: outputs)


class SlowRecorder(HostRecorder):
    """Measures each pass as slower than the one that was measured after it."""

    def __init__(self) -> None:
        super().__init__()
        self._seconds = 100.0

    def seconds(self, compute: Callable[[], Outputs]) -> float:
        self._seconds -= 1
        return self._seconds
