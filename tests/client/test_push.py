import hashlib
import json
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import (
    Cli,
    account_cli,
    held_bytes,
    until,
    write_safetensors,
)
from tests.support.bucket import CUT, Proxy, faulty
from tests.support.server import Server

MIB = 1 << 20
WEIGHTS_MIB = 40
PARTS = 8
"""Number of parts, of one MiB each, that pass before the gate is opened."""
WAIT_S = 120


@pytest.fixture(scope="module")
def large(tagger: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model that takes seconds to push, with files of every relevant size."""
    folder = tmp_path_factory.mktemp("models") / "large"
    shutil.copytree(tagger, folder)
    write_safetensors(folder / "model.safetensors", WEIGHTS_MIB * MIB)
    (folder / "LICENSE").write_bytes(b"x" * MIB)
    (folder / "NOTICE").touch()
    return folder


@pytest.fixture(scope="module")
def own(mortal_gateway: Server) -> Server:
    return mortal_gateway


class Gate:
    """Delays the parts of a push, so that a test sees it begin before it ends.

    Lets the first parts through to the server. Later parts wait until the gate passes or drops
    them. Other requests pass.
    """

    def __init__(self, proxy: Proxy, parts: int = PARTS) -> None:
        self.base_url = proxy.address
        self._left = parts
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._verdict: int | None = None
        proxy.fault = self._fault

    def cli(self, server: Server) -> Cli:
        """Returns the command with the key of a new account. Its requests pass the gate."""
        return replace(account_cli(server, "push"), base_url=self.base_url)

    def open(self) -> None:
        self._opened.set()

    def drop(self) -> None:
        """Drops the waiting parts. Later parts pass."""
        self._verdict = CUT
        self._opened.set()

    def _fault(self, method: str, path: str) -> int | None:
        is_part = (method == "PUT" and "/parts/" in path) or (
            method == "POST" and path.endswith("/parts")
        )
        if not is_part:
            return None
        with self._lock:
            self._left -= 1
            if self._left >= 0 or self._opened.is_set():
                return None
        self._opened.wait(WAIT_S)
        return self._verdict


@pytest.fixture
def gate(own: Server) -> Iterator[Gate]:
    with faulty(own.base_url) as proxy:
        gate = Gate(proxy)
        yield gate
        gate.drop()


def opened_upload(cli: Cli, server: Server) -> tuple[str, str]:
    [artifact] = cli.json("artifacts", "list")
    assert artifact["upload_id"]
    return artifact["id"], artifact["upload_id"]


def received(cli: Cli, server: Server, artifact_id: str, upload_id: str) -> dict[str, Any]:
    """Returns the digests of the parts that the server holds, by file.

    A file that was sent whole has its own digest.
    """
    with server.client(cli.key) as client:
        path = f"/v1/model-artifacts/{artifact_id}/uploads/{upload_id}"
        upload = client.get(path).raise_for_status().json()
    return {
        file["path"]: [part["sha256"] for part in file["parts"]] or [file["sha256"]]
        for file in upload["files"]
    }


def expected(folder: Path) -> dict[str, Any]:
    return {
        path.relative_to(folder).as_posix(): [
            hashlib.sha256(content[start : start + MIB]).hexdigest()
            for content in [path.read_bytes()]
            for start in range(0, max(len(content), 1), MIB)
        ]
        for path in folder.rglob("*")
    }


class TestPush:
    def test_whole_and_identical(self, own: Server, gate: Gate, large: Path) -> None:
        cli = gate.cli(own)
        process = cli.popen("artifacts", "push", str(large), "--json")
        until(lambda: held_bytes(cli, "large", own) > 0)
        ids = opened_upload(cli, own)
        gate.open()
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
        artifact = json.loads(out)
        assert artifact["status"] == "ready"
        assert artifact["push"]["resumed_bytes"] == 0
        assert artifact["push"]["sent_bytes"] == artifact["push"]["bytes"]
        assert received(cli, own, *ids) == expected(large)

    def test_resumes_after_ctrl_c(self, own: Server, gate: Gate, large: Path) -> None:
        cli = gate.cli(own)
        process = cli.popen("artifacts", "push", str(large), "--parallel", "2")
        until(lambda: held_bytes(cli, "large", own) > 4 * MIB)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
        gate.drop()
        assert process.returncode == 130
        assert "same command again" in err
        assert "Traceback" not in err
        ids = opened_upload(cli, own)

        done = cli.run("artifacts", "push", str(large), "--json")
        assert done.returncode == 0, done.stderr
        assert "Resuming" in done.stderr
        artifact = json.loads(done.stdout)
        assert artifact["id"] == ids[0]
        assert artifact["push"]["resumed_bytes"] >= 4 * MIB
        sent = artifact["push"]["bytes"] - artifact["push"]["resumed_bytes"]
        assert artifact["push"]["sent_bytes"] == sent
        assert received(cli, own, *ids) == expected(large)

    @pytest.mark.release
    @pytest.mark.fault("b1")
    def test_survives_the_death_of_the_server(self, own: Server, gate: Gate, large: Path) -> None:
        cli = gate.cli(own)
        process = cli.popen("artifacts", "push", str(large), "--json")
        until(lambda: held_bytes(cli, "large", own) > 4 * MIB)
        own.kill()
        own.restart()
        # The gate never refuses connections. A waiting client must not count the failures of a dead
        # server.
        gate.drop()
        ids = opened_upload(cli, own)
        out, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, err
        assert "Retrying" in err
        assert json.loads(out)["status"] == "ready"
        assert received(cli, own, *ids) == expected(large)

    @pytest.mark.fault("b1")
    def test_resumes_after_both_died(self, own: Server, gate: Gate, large: Path) -> None:
        cli = gate.cli(own)
        process = cli.popen("artifacts", "push", str(large))
        until(lambda: held_bytes(cli, "large", own) > 4 * MIB)
        own.kill()
        process.kill()
        process.communicate()
        gate.drop()
        own.restart()
        ids = opened_upload(cli, own)
        artifact = cli.json("artifacts", "push", str(large), "--artifact", ids[0])
        assert artifact["id"] == ids[0]
        assert artifact["push"]["resumed_bytes"] >= 4 * MIB
        assert received(cli, own, *ids) == expected(large)

    @pytest.mark.release
    def test_starts_anew_when_a_file_has_changed(
        self, own: Server, gate: Gate, large: Path, tmp_path: Path
    ) -> None:
        cli = gate.cli(own)
        folder = tmp_path / "large"
        shutil.copytree(large, folder)
        process = cli.popen("artifacts", "push", str(folder))
        until(lambda: held_bytes(cli, "large", own) > 4 * MIB)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        gate.drop()
        write_safetensors(folder / "model.safetensors", WEIGHTS_MIB * MIB, seed=1)

        artifact = cli.json("artifacts", "push", str(folder))
        assert artifact["status"] == "ready"
        assert artifact["push"]["resumed_bytes"] == 0


class TestRefusals:
    def test_pickles_are_refused_before_anything_is_sent(self, cli: Cli, tagger: Path) -> None:
        folder = tagger.parent / "pickled"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "pytorch_model.bin").write_bytes(b"x")
        done = cli.run("artifacts", "push", str(folder), "--json")
        assert done.returncode == 1
        assert done.stdout == ""
        assert "safetensors" in done.stderr
        assert cli.json("artifacts", "list") == []

    def test_tells_why_the_server_refused(self, cli: Cli, tagger: Path, tmp_path: Path) -> None:
        folder = tmp_path / "broken"
        shutil.copytree(tagger, folder)
        (folder / "config.json").write_text("{")
        done = cli.run("artifacts", "push", str(folder), "--json")
        assert done.returncode == 1
        artifact = json.loads(done.stdout)
        assert artifact["status"] == "failed"
        assert artifact["failure"]["message"] in done.stderr
        assert "push again: only changed files are sent" in done.stderr

    def test_sends_only_what_changed_after_a_refusal(
        self, cli: Cli, tagger: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "corrected"
        shutil.copytree(tagger, folder)
        right = (folder / "config.json").read_bytes()
        (folder / "config.json").write_text("{")
        (folder / "notes.json").write_bytes(b"\x80\x02}q\x00.")
        first = json.loads(cli.run("artifacts", "push", str(folder), "--json").stdout)
        assert first["status"] == "failed"
        (folder / "config.json").write_bytes(right)
        (folder / "notes.json").unlink()
        second = cli.json("artifacts", "push", str(folder))
        assert (second["id"], second["status"]) == (first["id"], "ready")
        assert second["push"]["sent_bytes"] == len(right)

    def test_lists_what_is_left_out(self, cli: Cli, tagger: Path, tmp_path: Path) -> None:
        folder = tmp_path / "more"
        shutil.copytree(tagger, folder)
        (folder / "optimizer.pt").write_bytes(b"x")
        done = cli.run("artifacts", "push", str(folder), "--json")
        assert done.returncode == 0, done.stderr
        assert "optimizer.pt" in done.stderr
        [left_out] = json.loads(done.stdout)["push"]["left_out"]
        assert left_out["path"] == "optimizer.pt"

    def test_replaces_the_files_of_an_artifact(self, cli: Cli, tagger: Path) -> None:
        first = cli.json("artifacts", "push", str(tagger))
        second = cli.json("artifacts", "push", str(tagger), "--artifact", first["id"])
        assert second["id"] == first["id"]
        done = cli.run("artifacts", "push", str(tagger), "--artifact", first["id"], "--name", "x")
        assert done.returncode == 2
