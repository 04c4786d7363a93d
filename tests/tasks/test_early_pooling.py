"""Pooling during a pass, as on a GPU, gives the vectors of pooling after it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.models.engines.buckets import PaddedBuckets
from stoker.models.engines.graph_demand import LEAST_USES
from stoker.models.engines.graphs import GraphCache
from stoker.models.engines.recorders import HostRecorder
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample
from stoker.models.stages.sentence_modules import POOLING_FLAGS
from stoker.models.tasks import feature_extraction
from stoker.models.tasks.feature_extraction import POOLED, FeatureExtractionStages
from stoker.wire.protocol import Sharing
from tests.support.models import tiny_bert

TEXTS = [
    "clara",
    "the tower in berlin is 34 metres tall",
    "who built this " + "tower in paris " * 4,
]
WIDTH = 32


class Model:
    """A loaded BERT with this pooling."""

    def __init__(self, folder: Path, pooling: dict[str, Any], **about: Any) -> None:
        tiny_bert(folder, "Model")
        kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
        modules = [
            {"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds
        ]
        (folder / "1_Pooling").mkdir()
        contents = {
            "modules.json": modules,
            "1_Pooling/config.json": pooling,
            "config_sentence_transformers.json": about,
        }
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content))
        self.stages = FeatureExtractionStages(folder)
        self.engine = TorchEngine("cpu", "float32", 1)
        self.stages.attach(self.engine.load(folder, self.stages, lambda *_: None))

    def samples(self, **parameters: Any) -> list[Sample]:
        return [self.stages.preprocess(text, parameters)[0] for text in TEXTS]

    def alone(self, sample: Sample, **parameters: Any) -> torch.Tensor:
        return self.stages.vector(self.engine.forward([sample])[0], parameters)


@pytest.fixture
def pools_early(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns a function that makes the model pool as if the CPU were a GPU."""
    return lambda: monkeypatch.setattr(feature_extraction, "HOST", "none")


@pytest.mark.parametrize("mode", POOLING_FLAGS)
def test_padded_and_packed_rows(tmp_path: Path, pools_early: Any, mode: str) -> None:
    model = Model(tmp_path, {"pooling_mode": mode})
    samples = model.samples()
    options: list[dict[str, Any]] = [{}, {"normalize": False}]
    expected = [[model.alone(sample, **option) for option in options] for sample in samples]
    pools_early()
    for sharing in (Sharing.PADDED, Sharing.PACKED):
        model.stages.sharing = sharing
        for output, vectors in zip(model.engine.forward(samples), expected, strict=True):
            assert output[POOLED].shape == (1, WIDTH)
            assert "last_hidden_state" not in output
            for option, vector in zip(options, vectors, strict=True):
                torch.testing.assert_close(model.stages.vector(output, option), vector)


@pytest.mark.parametrize("mode", POOLING_FLAGS)
def test_rows_that_are_padded_on_the_left(tmp_path: Path, mode: str) -> None:
    """A weighted mean counts positions from the start of a row, so padding would change it."""
    head = Model(tmp_path, {"pooling_mode": mode}).stages._head
    tokens = torch.randn(1, 5, WIDTH)
    padded = torch.cat([torch.zeros(1, 3, WIDTH), tokens], dim=1)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    expected = head.pool(tokens, mask[:, 3:])
    assert head.pools_padded_rows("left") is (mode != "weightedmean")
    assert torch.allclose(head.pool(padded, mask), expected) is head.pools_padded_rows("left")


def test_recorded_passes(tmp_path: Path, pools_early: Any) -> None:
    model = Model(tmp_path, {"pooling_mode": ["mean", "max"]})
    samples = model.samples()
    expected = [model.alone(sample) for sample in samples]
    pools_early()
    model.engine.graphs = GraphCache(model.engine.run, PaddedBuckets(model.stages), HostRecorder())
    for _ in range(LEAST_USES):
        model.engine.launch(model.engine.stage(samples))
    while model.engine.graphs.is_wanting:
        model.engine.graphs.record()
    assert model.engine.graphs.state.count == 1
    outputs = model.engine.launch(model.engine.stage(samples)).outputs()
    assert [output[POOLED].shape for output in outputs] == [(1, 2 * WIDTH)] * len(samples)
    for output, vector in zip(outputs, expected, strict=True):
        torch.testing.assert_close(model.stages.vector(output, {}), vector)


def test_padding_may_be_nan(
    tmp_path: Path, pools_early: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(tmp_path, {"pooling_mode": ["mean", "mean_sqrt_len_tokens"]})
    samples = model.samples()
    expected = [model.alone(sample) for sample in samples]
    pools_early()
    forward = model.engine.model.forward

    def with_nan(**inputs: torch.Tensor) -> Any:
        outputs = forward(**inputs)
        outputs.last_hidden_state[inputs["attention_mask"] == 0] = float("nan")
        return outputs

    monkeypatch.setattr(model.engine.model, "forward", with_nan)
    for output, vector in zip(model.engine.forward(samples), expected, strict=True):
        torch.testing.assert_close(model.stages.vector(output, {}), vector)


def test_prompts_that_are_not_pooled(tmp_path: Path, pools_early: Any) -> None:
    """The tokens of the prompt are known only after the pass, so vectors are pooled later."""
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    model = Model(tmp_path, pooling, prompts={"query": "who lives in paris"})
    samples = model.samples(prompt_name="query")
    expected = [model.alone(sample) for sample in samples]
    pools_early()
    for output, vector in zip(model.engine.forward(samples), expected, strict=True):
        assert POOLED not in output
        torch.testing.assert_close(model.stages.vector(output, {}), vector)
