"""Benchmarks divide the processor time of a server among its processes."""

import os
import time
from pathlib import Path

import psutil
import pytest

from bench import processes
from bench.common import Report
from bench.models import tiny_tagger
from bench.processes import HOST, OTHERS, REPLICAS, SERVER, WORKERS, exact_cpu_seconds, parts_of
from bench.server import running
from bench.service import Service
from tests.artifacts.support import eventually

SERVE = ["python", "-m", "stoker", "serve"]
ENGINES = ["python", "-m", processes.ENGINE_HOST]
COMMANDS = {1: SERVE, 2: SERVE, 3: SERVE, 4: ENGINES, 5: ENGINES, 6: ["ffmpeg"]}


@pytest.mark.parametrize(
    ("pid", "parent", "part"),
    [
        (1, 0, SERVER),
        (2, 1, WORKERS),
        (3, 2, WORKERS),
        (4, 1, HOST),
        (5, 4, REPLICAS),
        (6, 5, OTHERS),
        (7, 1, OTHERS),
    ],
)
def test_parts_of_a_server_by_command_and_parent(pid: int, parent: int, part: str) -> None:
    assert processes._part(pid, parent, 1, COMMANDS) == part


def test_parts_of_a_real_server(tmp_path: Path) -> None:
    report = Report("name", "title")
    with running(report, tmp_path, workers=2) as server:
        server.wait_ready()
        service = Service(server, report)
        # Workers start in the background.
        assert eventually(lambda: len(parts_of(server.pid)[WORKERS]) == 3)
        parts = parts_of(server.pid)
        assert parts[SERVER] == [server.pid]
        assert len(parts[HOST]) == 1
        assert parts[REPLICAS] == []
        deployment = service.deploy(
            tiny_tagger(), "tagger", "token-classification", readiness="hot"
        )
        service.wait_status(deployment, "ready")
        (replica,) = parts_of(server.pid)[REPLICAS]
        assert psutil.Process(replica).ppid() == parts[HOST][0]
        assert exact_cpu_seconds(replica) > 0


def test_processor_time_is_exact() -> None:
    # Ticks of 10 ms would miss most of these intervals.
    for _ in range(10):
        before, began = exact_cpu_seconds(os.getpid()), time.process_time()
        spent = 0.0
        while spent < 0.001:
            spent = time.process_time() - began
        assert exact_cpu_seconds(os.getpid()) - before >= spent


def test_an_ended_process_has_no_processor_time() -> None:
    # Linux assigns no greater ids.
    assert exact_cpu_seconds(2**22 + 1) == 0.0
