"""The engine host never initialises CUDA.

The tests of a build of torch for CUDA need its environment (`make install-cuda-build`) and no GPU.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from stoker.replica import cuda_guard

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("STOKER_CUDA_PYTHON", ROOT / ".venv-cuda" / "bin" / "python"))

ATTEMPTS = """
import importlib, json, sys
from stoker.replica import cuda_guard
import torch

count_devices = torch._C._cuda_getDeviceCount
found = {}

def preload_diffusers():
    getattr(importlib.import_module("diffusers"), "StableDiffusionPipeline")
    torch.accelerator.is_available()
    torch.cuda.device_count()

def use_device():
    try:
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        assert "must not initialise CUDA" in str(error)
    else:
        raise AssertionError

guard = cuda_guard.CudaGuard()
if "unguarded" not in sys.argv:
    guard.install()
for name, run in [
    ("nothing", lambda: None),
    ("diffusers", preload_diffusers),
    ("device", use_device),
    ("bypass", count_devices),
    ("exit", lambda: sys.exit(3)),
]:
    found[name] = cuda_guard.problem_of_import(run)
found["host"] = cuda_guard.problem_of_forks()
guard.remove()
assert torch._C._cuda_getDeviceCount is count_devices
print(json.dumps(found))
"""
POISONED = "torch has initialised CUDA in the engine host"

needs_cuda_build = pytest.mark.skipif(
    not PYTHON.exists(), reason="There is no environment with torch for CUDA."
)


def attempts(*arguments: str) -> dict[str, str]:
    """Returns the problem of each attempt to import something with a build for CUDA."""
    result = subprocess.run(
        [PYTHON, "-c", ATTEMPTS, *arguments], capture_output=True, cwd=ROOT, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-4_000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_a_build_without_cuda_has_no_problem() -> None:
    guard = cuda_guard.CudaGuard()
    guard.install()
    assert cuda_guard.problem_of_forks() == ""
    assert cuda_guard.problem_of_import(lambda: pytest.fail("no attempt is needed")) == ""
    guard.remove()


@needs_cuda_build
def test_imports_and_device_queries_leave_the_host_clean() -> None:
    found = attempts()
    assert (found["nothing"], found["diffusers"], found["device"]) == ("", "", "")


@needs_cuda_build
def test_code_that_bypasses_the_guard_is_detected_in_a_fork() -> None:
    found = attempts()
    assert found["bypass"] == POISONED
    assert found["exit"] == "a forked child ended with status 1"
    # The attempts were made in forks, so the host itself is clean.
    assert found["host"] == ""


@needs_cuda_build
def test_without_the_guard_an_import_initialises_cuda() -> None:
    found = attempts("unguarded")
    assert found["diffusers"] == POISONED
