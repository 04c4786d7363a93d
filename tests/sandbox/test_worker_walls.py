"""A prepared worker, whose walls stand before its model is known, can read that model only."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.runtime.local.processes.linked_models import link_model
from stoker.wire.protocol import Cell, WorkerSpec
from tests.sandbox.support import OWN_USER, PLAIN_USER, PLAINLY, ROOT, Confinement, no_walls

pytestmark = no_walls
WEIGHTS = b"weights"


class Worker:
    def __init__(self, confinement: Confinement) -> None:
        self.root = confinement.kept_back / "prepared"
        self.models, self.neighbour = self.root / "work_1", self.root / "work_2"
        self.model, self.other = (confinement.kept_back / name for name in ("model", "other"))
        for folder in (self.root, self.models, self.neighbour, self.model, self.other):
            folder.mkdir()
        for folder in (self.neighbour, self.model, self.other):
            (folder / "model.safetensors").write_bytes(WEIGHTS)
        is_plain = confinement.kind == "plain" and os.geteuid() == 0
        if is_plain:
            for path in (confinement.kept_back, *confinement.kept_back.rglob("*")):
                os.chown(path, PLAIN_USER, PLAIN_USER)
        else:
            # As the server's data folder.
            confinement.kept_back.chmod(0o700)
        user = OWN_USER if confinement.kind == "user" else None
        cell = Cell(str(confinement.own), user, str(confinement.kept_back))
        spec = WorkerSpec(
            id="work_1", device="cpu", visible_devices="", cell=cell, models=str(self.models)
        )
        switch = [sys.executable, str(PLAINLY), str(PLAIN_USER)] if is_plain else []
        self.process = subprocess.Popen(
            [*switch, sys.executable, "-m", "tests.support.walled_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self._ask(msgspec.json.encode(spec).decode()) == "ready"
        link_model(self.model, self.models)

    def _ask(self, line: str) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def tries(self, attempt: str, path: Path) -> str:
        return self._ask(json.dumps([attempt, str(path)]))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def worker(confinement: Confinement) -> Iterator[Worker]:
    worker = Worker(confinement)
    yield worker
    worker.close()


def test_it_reads_its_model_and_no_other(worker: Worker) -> None:
    assert worker.tries("read", worker.models / "model.safetensors") == "done"
    assert worker.tries("list", worker.models) == "done"
    for folder in (worker.model, worker.other, worker.neighbour):
        assert worker.tries("read", folder / "model.safetensors") == "PermissionError"
        assert worker.tries("list", folder) == "PermissionError"
    assert worker.tries("list", worker.root) == "PermissionError"


def test_it_cannot_change_the_files_of_its_model(worker: Worker) -> None:
    """They are the same files as those of the uploaded model."""
    linked = worker.models / "model.safetensors"
    assert linked.stat().st_ino == (worker.model / linked.name).stat().st_ino
    attempts = ("append", "append after chmod", "truncate", "remove", "rename", "link and append")
    for attempt in attempts:
        assert worker.tries(attempt, linked) in ("PermissionError", "OSError"), attempt
    assert worker.tries("create", worker.models / "new") == "PermissionError"
    assert worker.tries("create", Path("own")) == "done", "in its own folder"
    assert (worker.model / linked.name).read_bytes() == WEIGHTS
    assert [path.name for path in worker.models.iterdir()] == [linked.name]
