"""A backup under load moves to another path and serves there with the next release."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker
from tests.agents.conftest import MODEL
from tests.artifacts.support import ARTIFACTS
from tests.cli.support import Cli
from tests.deployments.support import upload
from tests.servers.load import Balancer, load
from tests.servers.releases import REVISION, VERSION, next_release
from tests.servers.support import until
from tests.support.deploying import deploy, wait_for
from tests.support.server import Server, running

# A fleet has its data in PostgreSQL.
pytestmark = [pytest.mark.release, pytest.mark.one_machine]

NOBODY = Cli("http://127.0.0.1:9")
OWN = stoker.__version__
BACKUPS = 2
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "What is the capital of Italy?"}]}


class Churn:
    """Uploads models and deletes every second one."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self.failures: list[str] = []
        self.kept: list[str] = []
        self.deleted: list[str] = []

    def run(self) -> None:
        try:
            with self._server.account("churn") as client:
                self.key = key_of(client)
                while not self._ended.is_set():
                    self.kept.append(upload(self._server, client))
                    self._delete(client, upload(self._server, client))
        except Exception as error:
            self.failures.append(repr(error))

    def _delete(self, client: httpx.Client, artifact: str) -> None:
        client.delete(f"{ARTIFACTS}/{artifact}").raise_for_status()
        self.deleted.append(artifact)

    def wait_deletion(self) -> None:
        """Waits for one more deletion."""
        before = len(self.deleted)
        until(lambda: len(self.deleted) > before or self.failures, 60)

    @contextmanager
    def going(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


def key_of(client: httpx.Client) -> str:
    return client.headers["authorization"].removeprefix("Bearer ")


def answer(client: httpx.Client) -> str:
    done = client.post("/v1/chat/completions", json=CHAT, headers={"prefer": "wait=120"})
    return done.raise_for_status().json()["choices"][0]["message"]["content"]


def objects(client: httpx.Client, path: str) -> dict[str, Any]:
    found = client.get(path, params={"limit": 100}).raise_for_status().json()["data"]
    return {one["id"]: one for one in found}


def version(server: Server) -> str:
    return httpx.get(f"{server.base_url}/health").raise_for_status().json()["version"]


def test_it_moves_to_the_next_release_and_back(tmp_path: Path) -> None:
    archives = [tmp_path / f"{number}.tar" for number in range(BACKUPS)]
    with running(tmp_path / "source") as server, server.account() as client:
        chat = deploy(client, MODEL, "chat", engine="torch", readiness="warm")
        wait_for(client, chat["id"], "ready")
        key, before = key_of(client), answer(client)
        assert "Rome" in before
        artifacts = objects(client, ARTIFACTS)
        balancer, churn = Balancer(server), Churn(server)
        try:
            # At the end, `load` checks that no call failed.
            with load(balancer, key) as calls, churn.going():
                churn.wait_deletion()
                answers, changes = sum(calls.answers.values()), len(churn.deleted)
                kept = {*churn.kept}
                for archive in archives:
                    made = NOBODY.json("backup", str(archive), "--data-dir", str(server.data_dir))
                    assert (made["release"], made["missing"]) == (OWN, [])
                    churn.wait_deletion()
                assert sum(calls.answers.values()) > answers
        finally:
            balancer.close()
        assert churn.failures == []
        operator_key = server.operator_key

    restored, moved = tmp_path / "restored", tmp_path / "other disk" / "data"
    assert NOBODY.run("restore", str(archives[-1]), "--data-dir", str(restored)).returncode == 0
    moved.parent.mkdir()
    shutil.move(restored, moved)
    shutil.rmtree(tmp_path / "source")

    next_env = next_release(tmp_path / "next")
    with running(moved, **next_env) as server, server.client(key) as client:
        assert version(server) == VERSION
        assert answer(client) == before
        assert server.operator_key == operator_key
        assert objects(client, ARTIFACTS) == artifacts
        with server.client(churn.key) as churned:
            # Each upload that had been confirmed before the backup is there, with all its files.
            found = objects(churned, ARTIFACTS)
            assert kept <= {one["id"] for one in found.values() if one["status"] == "ready"}
            assert not found.keys() & {*churn.deleted[:changes]}
        with server.account("newer") as newer:
            newer_key = key_of(newer)
            newer_artifact = upload(server, newer)
        newest = tmp_path / "newest.tar"
        made = NOBODY.json("backup", str(newest), "--data-dir", str(moved))
        assert made["schema"] == REVISION

    # The release before restores a backup of the next one, and serves the folder again.
    assert NOBODY.run("restore", str(newest), "--data-dir", str(tmp_path / "back")).returncode == 0
    with running(moved) as server, server.client(key) as client:
        assert version(server) == OWN
        assert answer(client) == before
        with server.client(newer_key) as newer:
            assert [*objects(newer, ARTIFACTS)] == [newer_artifact]
        with server.account("older") as older:
            upload(server, older)
