"""`stoker cluster up --ray`: Ray in addition to the other processes."""

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.agents.support import PARIS
from tests.cluster.support import Cluster, left
from tests.cluster.test_up import NAMES, Used, ask, sdks
from tests.servers.support import until
from tests.support import postgres

pytestmark = pytest.mark.release

pytest.importorskip("ray", reason="Ray is not installed: make install-dev")


def lines(processes: list[psutil.Process]) -> list[str]:
    """Returns the command lines of the processes that are still running."""
    commands: list[str] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            commands.append(" ".join(process.cmdline()))
    return commands


def folders() -> set[Path]:
    return {*Path(tempfile.gettempdir()).glob("stoker-ray-*")}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    cluster = Cluster(tmp_path_factory.mktemp("ray") / "data", "--ray", "--nodes", "1")
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def test_a_killed_head_is_back_and_all_of_it_ends(fleet: Cluster) -> None:
    logs = {entry.stem for entry in (fleet.data_dir / "logs").iterdir()}
    assert logs == NAMES - {"node-2"} | {"ray-head", "ray-node-1", "placer"}
    account = Used(fleet)
    assert {ask(entry) for entry in sdks(fleet, account.key)} == {PARIS}
    head = fleet.said()["head"]
    os.kill(head["pid"], signal.SIGKILL)
    assert {ask(entry) for entry in sdks(fleet, account.key)} == {PARIS}
    until(lambda: fleet.said()["head"]["pid"] != head["pid"], 60)
    assert fleet.said()["head"]["address"] == head["address"]
    assert {ask(entry) for entry in sdks(fleet, account.key)} == {PARIS}

    nodes = json.loads((fleet.data_dir / "node-1" / "node.json").read_text())
    assert [entry["id"] for entry in fleet.said()["nodes"]] == [nodes["id"]]
    until(lambda: {"gcs_server", "raylet"} <= {entry.name() for entry in fleet.processes()}, 60)
    processes = fleet.processes()
    used = {entry for entry in folders() if any(str(entry) in line for line in lines(processes))}
    assert len(used) == 2
    fleet.stop()
    assert left(processes, 20) == []
    assert not (used & folders())
