"""The driver's library by ctypes, with a stand-in that has the same functions."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.replica.driver import context_problem
from stoker.sandbox import gpu_places
from tests.support import driver

ROOT = Path(__file__).parents[2]
PROGRAM = """\
import json, os
from stoker.replica.driver import Driver, DriverError, ProcessState, context_problem
own, pid = Driver(), os.getpid()
seen = {"version": own.version(), "problem": context_problem(), "missing": context_problem(1)}
own.start()
seen |= {"count": own.count(), "name": own.name(0), "capability": own.capability(0)}
seen |= {"has_checkpoints": own.has_checkpoints, "states": [own.state(pid).name]}
try:
    own.checkpoint(pid, timeout_s=0.0001)
    seen["states"].append(own.state(pid).name)
    own.restore(pid)
except DriverError as error:
    seen["error"] = str(error)
seen["states"].append(own.state(pid).name)
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
    def seen(self, folder: Path, **environment: str) -> Any:
        done = run(driver.compiled(folder), **environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def test_devices_and_checkpoints(self, tmp_path: Path) -> None:
        assert self.seen(tmp_path) == {
            "version": [13, 0],
            "problem": "",
            "missing": "cuDeviceGet: error 101 (an error)",
            "count": 1,
            "name": "Stand-in",
            "capability": [9, 0],
            "has_checkpoints": True,
            "states": ["RUNNING", "CHECKPOINTED", "RUNNING"],
        }

    def test_a_failed_checkpoint_leaves_the_process_running(self, tmp_path: Path) -> None:
        seen = self.seen(tmp_path, CUDA_STANDIN_REFUSES="1")
        assert seen["error"] == "cuCheckpointProcessCheckpoint: error 801 (an error)"
        assert seen["states"] == ["RUNNING", "RUNNING"]


@pytest.mark.skipif(bool(gpu_places.gpus()), reason="this machine has a GPU")
def test_without_the_library() -> None:
    assert "libcuda.so.1" in context_problem()
