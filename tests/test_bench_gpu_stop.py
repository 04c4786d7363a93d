"""An interrupted GPU benchmark leaves its results and no processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.gpu.results import JSON_NAME

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[1]
BEGUN = "--- bert"
"""Line at the start of the first group, when the server runs."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_results_and_no_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--without-gpu", "--rows", "bert"]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith(BEGUN):
                break
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(60) != 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    rows = json.loads((tmp_path / JSON_NAME).read_text())["rows"]
    assert {row["reason"] for row in rows} == {"not reached"}
