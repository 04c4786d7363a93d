"""The driver's library by ctypes, with a stand-in that has the same functions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.replica.driver import context_problem
from stoker.sandbox import gpu_places
from tests.support import driver

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import json
from stoker.replica.driver import Cuda, context_problem
cuda = Cuda()
seen = {"version": cuda.version(), "problem": context_problem(), "missing": context_problem(1)}
cuda.start()
seen |= {"count": cuda.count(), "capability": cuda.capability(0)}
print(json.dumps(seen))
"""


def run(library: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(library), **environment},
    )


@pytest.mark.skipif(not driver.COMPILER, reason="no compiler for the stand-in is installed")
class TestWithAStandIn:
    def test_devices_and_contexts(self, tmp_path: Path) -> None:
        done = run(driver.compiled(tmp_path))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "version": [13, 0],
            "problem": "",
            "missing": "cuDeviceGet: error 101 (an error)",
            "count": 1,
            "capability": [9, 0],
        }

    def test_errors_are_named(self, tmp_path: Path) -> None:
        done = run(driver.compiled(tmp_path), CUDA_STANDIN_READS="/nonexistent")
        assert "cuInit: error 304 (OS call failed" in done.stderr


@pytest.mark.skipif(bool(gpu_places.gpus()), reason="this machine has a GPU")
def test_without_the_library() -> None:
    assert "libcuda.so.1" in context_problem()
