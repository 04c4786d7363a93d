"""`auto` on a GPU chooses half precision if a model's answers agree with float32. The choice does
not depend on the device, so real tiny models are compared here on the CPU.
"""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.engines import half_precision
from stoker.models.engines.half_precision import choose, compared
from stoker.models.engines.precision import half_precisions
from stoker.models.engines.torch import TorchEngine
from stoker.models.tasks.registry import STAGES
from tests.support.models import tiny_bert

CANDIDATES = half_precisions(None)
HALF = (torch.float16, torch.bfloat16)


def tagger(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Saves a tagger with clearly leading labels.

    Args:
        changes: functions that change the model before it is saved.
    """
    tiny_bert(folder)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder)
    with torch.no_grad():
        # One label leads for all tokens, and by far.
        model.classifier.bias[1] += 9
        for change in changes.values():
            change(model)
    model.to(dtype).save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: str = "auto", pipeline: str = "token-classification") -> Any:
    stages = STAGES[pipeline](folder)
    engine = TorchEngine("cpu", dtype, 1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    return engine


def dtypes(engine: TorchEngine) -> set[torch.dtype]:
    return {parameter.dtype for parameter in engine.model.parameters()}


def copies(engine: TorchEngine) -> int:
    """Returns how many models with weights of this class are in memory."""
    gc.collect()
    kind = type(engine.model)
    models = [item for item in gc.get_objects() if type(item) is kind]
    return sum(model.device.type != "meta" for model in models)


def test_a_model_that_agrees(tmp_path: Path) -> None:
    engine = loaded(tagger(tmp_path))
    before = copies(engine)
    choice = compared(engine, CANDIDATES)
    assert choice and choice.dtype == "float16"
    assert dtypes(engine) == {torch.float16}
    assert copies(engine) == before, "the weights in float32 are no longer in memory"
    assert "8 examples compared with float32: lowest cosine 0.9999" in choice.message
    assert "top labels equal" in choice.message
    (answer,) = engine.forward([engine.stages.probe(8)])
    assert answer["logits"].dtype is torch.float32


def test_vectors_have_no_labels(tmp_path: Path) -> None:
    engine = loaded(tiny_bert(tmp_path, "Model"), pipeline="feature-extraction")
    choice = compared(engine, CANDIDATES)
    assert choice and choice.dtype == "float16"
    assert "labels" not in choice.message


def test_weights_that_overflow_float16(tmp_path: Path) -> None:
    def overflow(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.intermediate.dense.weight *= 1e7
            layer.intermediate.dense.bias *= 1e7
            layer.output.dense.weight /= 1e7

    engine = loaded(tagger(tmp_path, overflow=overflow))
    choice = compared(engine, CANDIDATES)
    assert choice and choice.dtype == "bfloat16"
    assert dtypes(engine) == {torch.bfloat16}
    # Without another candidate, the message says why.
    choice = compared(loaded(tmp_path), [torch.float16])
    assert choice and choice.dtype == "float32"
    assert "in float16, the model returns NaN, infinity or other shapes" in choice.message


def test_labels_that_are_nearly_tied(tmp_path: Path) -> None:
    def tie(model: Any) -> None:
        head = model.classifier
        head.bias[:] = head.bias[1]
        head.weight[:] = head.weight[0] + 1e-6 * head.weight

    engine = loaded(tagger(tmp_path, tie=tie))
    choice = compared(engine, CANDIDATES)
    assert choice and choice.dtype == "float32"
    assert dtypes(engine) == {torch.float32}
    assert "in float16, lowest cosine" in choice.message
    assert "in bfloat16, lowest cosine" in choice.message
    assert "must keep all top labels" in choice.message


def test_nan_in_half_precision(tmp_path: Path) -> None:
    def saturate(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight *= 4e5

    engine = loaded(tagger(tmp_path, saturate=saturate))
    choice = compared(engine, [torch.float16])
    assert choice and choice.dtype == "float32"
    assert "NaN" in choice.message
    (answer,) = engine.forward([engine.stages.probe(8)])
    assert answer["logits"].isfinite().all()


@pytest.mark.parametrize("dtype", HALF)
def test_stored_in_half_precision(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert half_precisions(dtype) == (dtype,)
    engine = loaded(tagger(tmp_path, dtype))
    engine.switch(dtype)
    choice = compared(engine, half_precisions(dtype))
    assert choice and choice.dtype == str(dtype).removeprefix("torch.")
    assert "compared with float32" in choice.message
    assert dtypes(engine) == {dtype}
    # A copy in float32 of a large model could exceed the memory that was claimed.
    monkeypatch.setattr(half_precision, "MOST_BYTES", 0)
    choice = compared(engine, half_precisions(dtype))
    assert choice and "too large to compare" in choice.message
    assert dtypes(engine) == {dtype}


def test_an_operation_that_half_precision_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear = torch.nn.functional.linear

    def only_single(value: torch.Tensor, *rest: Any) -> torch.Tensor:
        if value.dtype is not torch.float32:
            raise RuntimeError("not implemented for 'Half'")
        return linear(value, *rest)

    monkeypatch.setattr(torch.nn.functional, "linear", only_single)
    choice = compared(loaded(tagger(tmp_path)), CANDIDATES)
    assert choice and choice.dtype == "float32"
    assert "in float16, the model fails with RuntimeError" in choice.message


class Short(TorchEngine):
    """A torch engine whose memory does not suffice for weights in float32."""

    def read(self) -> Any:
        if self.dtype is torch.float32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().read()


def test_too_little_memory_to_compare(tmp_path: Path) -> None:
    folder = tagger(tmp_path, torch.bfloat16)
    stages = STAGES["token-classification"](folder)
    engine = Short("cpu", "bfloat16", 1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    assert compared(engine, [torch.bfloat16]) is None, "a later replica tries again"
    assert dtypes(engine) == {torch.bfloat16}
    engine.forward([stages.probe(8)])  # type: ignore[list-item]


def test_nothing_is_compared_on_a_cpu_or_for_a_fixed_dtype(tmp_path: Path) -> None:
    folder = tagger(tmp_path)
    for dtype in ("auto", "float32"):
        engine = loaded(folder, dtype)
        choose(engine, lambda *_: pytest.fail("it began"))
        assert engine.precision is None
        assert dtypes(engine) == {torch.float32}


def test_the_limits() -> None:
    assert half_precision.LEAST_COSINE == 0.9995
    assert CANDIDATES == HALF
