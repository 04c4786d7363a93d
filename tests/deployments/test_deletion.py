"""A deleted deployment leaves nothing behind."""

from pathlib import Path
from typing import Any

import pytest

from stoker.runtime.local.processes.log_files import LIMIT_BYTES
from tests.artifacts.support import eventually
from tests.deployments.conftest import Account
from tests.deployments.support import DEPLOYMENTS, call, deploy


def delete(account: Account, deployment: dict[str, Any]) -> None:
    account.client.delete(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status()


def left(folder: Path, *names: str) -> list[str]:
    """Returns the paths below the data folder that contain any of the names."""
    return [str(path) for path in folder.rglob("*") if any(name in str(path) for name in names)]


@pytest.fixture
def made(account: Account) -> dict[str, Any]:
    """Creates a deployment and calls it once."""
    deployment = deploy(account.client, account.artifact_id, "passing")
    assert call(account.client, "passing").status_code == 200
    return deployment


class TestL6:
    @pytest.mark.one_machine
    def test_links_to_its_files_go_with_the_last_of_a_model(
        self, account: Account, made: dict[str, Any]
    ) -> None:
        folder = account.server.data_dir / "models"
        names = {path.name for path in folder.iterdir()}
        second = deploy(account.client, account.artifact_id, "second")
        delete(account, made)
        assert {path.name for path in folder.iterdir()} == names
        assert call(account.client, "second").status_code == 200
        delete(account, second)
        (gone,) = names - {path.name for path in folder.iterdir()}
        assert gone.startswith("upl_")
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        # The artifact can be deployed again.
        third = deploy(account.client, account.artifact_id, "third")
        assert call(account.client, "third").status_code == 200
        delete(account, third)

    @pytest.mark.one_machine
    def test_log_of_a_running_replica_is_bounded_and_goes(
        self, account: Account, made: dict[str, Any]
    ) -> None:
        logs = account.server.data_dir / "logs"
        path, older = logs / f"{made['id']}.log", logs / f"{made['id']}.log.1"
        with path.open("ab") as printing:
            printing.write(b"it prints a lot\n" * (3 * LIMIT_BYTES // 16))
        assert eventually(lambda: path.stat().st_size < LIMIT_BYTES)
        assert older.stat().st_size == LIMIT_BYTES
        # The replica's own output is still found in the same log.
        account.client.post(f"{DEPLOYMENTS}/{made['id']}/stop").raise_for_status()
        account.client.post(f"{DEPLOYMENTS}/{made['id']}/start").raise_for_status()
        assert call(account.client, "passing").status_code == 200
        lines = account.client.get(f"{DEPLOYMENTS}/{made['id']}/logs").json()["data"]
        assert any("starting, pid" in line for line in lines)
        delete(account, made)
        assert left(account.server.data_dir, made["id"]) == []
