"""A pass that needs more memory than is free: the batch is halved, and only an input that is too
large alone fails. The limit of the process is real.
"""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from stoker.models.engines.shortage import is_out_of_memory
from stoker.replica.calibration import Calibration
from stoker.replica.engine_thread import TOO_LARGE
from tests.replica.short_of_memory import INPUTS


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("short")
    program = [sys.executable, "-m", "tests.replica.short_of_memory", str(folder)]
    run = subprocess.run(program, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_a_batch_is_halved_until_it_fits(answers: Any) -> None:
    vectors = answers["batch"]["vectors"]
    assert len(vectors) == INPUTS
    assert all(vector == pytest.approx(vectors[0], abs=1e-5) for vector in vectors)
    sizes: list[int] = answers["sizes"]
    assert max(sizes) > 1 and sum(sizes) > INPUTS, "some batches ran out of memory"


def test_later_batches_fit(answers: Any) -> None:
    assert len(answers["again"]["vectors"]) == INPUTS
    assert sum(answers["sizes_again"]) == INPUTS, "no batch had to run again"
    assert max(answers["sizes_again"]) > 1


def test_only_the_too_large_input_fails(answers: Any) -> None:
    assert answers["large"] == {
        "code": "inference_failed",
        "message": TOO_LARGE,
        "param": "inputs[0]",
    }
    assert len(answers["small"]["vectors"]) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("Exception from src/inference: std::bad_alloc"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("a memory of the model is missing"), False),
    ],
)
def test_errors_of_each_device(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_the_limit_outlasts_a_measurement() -> None:
    calibration = Calibration({"torch": 4096, "openvino": 64})
    calibration.begin("torch")
    calibration.limit(512)
    assert calibration.budget == 512
    calibration.begin("openvino")
    assert calibration.budget == 64
    calibration.begin("torch")
    assert calibration.budget == 512
    calibration.limit(1024)
    assert calibration.budget == 512
