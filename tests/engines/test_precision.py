"""`auto` computes a model in the dtype of its stored weights if the processor supports it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.engines import precision
from stoker.models.engines.precision import dtype_of, emulated, stored_dtype
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import INVALID
from stoker.models.tasks.registry import STAGES
from tests.support.models import tiny_bert

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WITH, WITHOUT = frozenset({"avx2", "avx512_bf16"}), frozenset({"avx2"})
STORED = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that simulates a processor with the passed flags."""
    return lambda flags: monkeypatch.setattr(precision, "_flags", lambda: flags)


def saved(path: Path, dtype: torch.dtype) -> Path:
    """Saves a tiny model in a dtype, as its authors would."""
    folder = tiny_bert(path)
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, dtype=dtype)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", STORED)
def test_what_weights_are_stored_in(tmp_path: Path, dtype: torch.dtype) -> None:
    assert stored_dtype(saved(tmp_path, dtype)) is dtype


def test_nothing_says_what_they_are_stored_in(tmp_path: Path) -> None:
    assert stored_dtype(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"\1\2\3")
    assert stored_dtype(tmp_path) is None


@pytest.mark.parametrize(
    ("stored", "flags", "device", "expected"),
    [
        (torch.float32, WITH, CPU, torch.float32),
        (torch.bfloat16, WITH, CPU, torch.bfloat16),
        (torch.float16, WITH, CPU, torch.bfloat16),
        (torch.bfloat16, WITHOUT, CPU, torch.float32),
        (torch.float16, WITHOUT, CPU, torch.float32),
        (None, WITH, CPU, torch.float32),
        (torch.float32, WITHOUT, GPU, torch.float32),
        (torch.bfloat16, WITHOUT, GPU, torch.bfloat16),
        (torch.float16, WITHOUT, GPU, torch.float16),
        (None, WITHOUT, GPU, torch.float16),
    ],
)
def test_auto(
    tmp_path: Path, processor: Any, stored: Any, flags: Any, device: Any, expected: torch.dtype
) -> None:
    processor(flags)
    folder = saved(tmp_path, stored) if stored else tmp_path
    assert dtype_of("auto", device, folder) is expected
    # An explicit dtype is used as requested.
    assert dtype_of("float16", device, folder) is torch.float16
    assert dtype_of("int8", device, folder) is torch.float32


def loaded(folder: Path, dtype: str = "auto") -> TorchEngine:
    stages = STAGES["token-classification"](folder)
    engine = TorchEngine("cpu", dtype, 1)
    stages.attach(engine.load(folder, stages, lambda *_: None))
    return engine


def test_a_model_stored_in_half_precision_is_run_in_it(tmp_path: Path, processor: Any) -> None:
    processor(WITH)
    engine = loaded(saved(tmp_path, torch.float16))
    assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.bfloat16}
    engine.widen()
    assert engine.dtype is torch.bfloat16
    processor(WITHOUT)
    engine = loaded(tmp_path)
    assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("how", ["raises", "no numbers"])
def test_what_cannot_be_computed_in_half_precision_is_in_single(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    processor(WITH)
    linear = torch.nn.functional.linear

    def only_single(given: torch.Tensor, *rest: Any) -> torch.Tensor:
        if given.dtype is torch.bfloat16:
            if how == "raises":
                raise RuntimeError("not implemented for 'BFloat16'")
            return linear(given, *rest) * torch.nan
        return linear(given, *rest)

    monkeypatch.setattr(torch.nn.functional, "linear", only_single)
    engine = loaded(saved(tmp_path, torch.bfloat16))
    engine.widen()
    assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.float32}
    (outputs,) = engine.forward([engine.stages.probe(8)])  # type: ignore[list-item]
    assert torch.isfinite(outputs["logits"]).all()
    # An explicitly requested dtype is kept, including its errors.
    engine = loaded(tmp_path, "bfloat16")
    engine.widen()
    assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.bfloat16}


def test_tokens_that_are_chosen_from_no_numbers(
    tmp_path: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(WITH)
    engine = loaded(saved(tmp_path, torch.bfloat16))
    run = engine.stages.run

    def in_half(model: Any, call: Any, batch: Any) -> dict[str, Any]:
        is_half = model.dtype is torch.bfloat16
        return {**run(model, call, batch), INVALID: torch.tensor([is_half])}

    monkeypatch.setattr(engine.stages, "run", in_half)
    engine.widen()
    assert engine.dtype is torch.float32


@pytest.mark.parametrize(
    ("wanted", "flags", "device", "is_told"),
    [
        ("bfloat16", WITH, CPU, False),
        ("bfloat16", WITHOUT, CPU, True),
        ("float16", WITH, CPU, True),
        ("float32", WITHOUT, CPU, False),
        ("auto", WITHOUT, CPU, False),
        ("float16", WITHOUT, GPU, False),
    ],
)
def test_emulation_is_told(
    processor: Any, wanted: str, flags: Any, device: torch.device, is_told: bool
) -> None:
    processor(flags)
    assert bool(emulated(wanted, device)) is is_told
