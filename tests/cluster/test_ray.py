"""`stoker cluster up --ray`: Ray beside what there is without it."""

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

pytest.importorskip("ray", reason="Ray is not installed: pip install 'stoker[ray]'")


def lines(processes: list[psutil.Process]) -> list[str]:
    """Their command lines, of those that are still there."""
    found: list[str] = []
    for one in processes:
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(one.cmdline()))
    return found


def folders() -> set[Path]:
    return {*Path(tempfile.gettempdir()).glob("stoker-ray-*")}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not postgres.is_installed():
        pytest.skip(postgres.MISSING)
    found = Cluster(tmp_path_factory.mktemp("ray") / "data", "--ray", "--nodes", "1")
    try:
        yield found.start()
    finally:
        found.stop()


def test_a_killed_head_is_back_and_all_of_it_ends(fleet: Cluster) -> None:
    logs = {one.stem for one in (fleet.data_dir / "logs").iterdir()}
    assert logs == NAMES - {"node-2"} | {"ray-head", "ray-node-1", "placer"}
    account = Used(fleet)
    assert {ask(one) for one in sdks(fleet, account.key)} == {PARIS}
    head = fleet.said()["head"]
    os.kill(head["pid"], signal.SIGKILL)
    assert {ask(one) for one in sdks(fleet, account.key)} == {PARIS}
    until(lambda: fleet.said()["head"]["pid"] != head["pid"], 60)
    assert fleet.said()["head"]["address"] == head["address"]
    assert {ask(one) for one in sdks(fleet, account.key)} == {PARIS}

    nodes = json.loads((fleet.data_dir / "node-1" / "node.json").read_text())
    assert [one["id"] for one in fleet.said()["nodes"]] == [nodes["id"]]
    until(lambda: {"gcs_server", "raylet"} <= {one.name() for one in fleet.processes()}, 60)
    processes = fleet.processes()
    used = {one for one in folders() if any(str(one) in line for line in lines(processes))}
    assert len(used) == 2
    fleet.stop()
    assert left(processes, 20) == []
    assert not (used & folders())
