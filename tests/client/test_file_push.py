"""An interrupted `stoker files push` continues with the parts that the server has."""

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stoker.client.file_upload import PART_BYTES
from tests.cli.support import Cli, until
from tests.client.test_push import WAIT_S, Gate
from tests.support.bucket import faulty
from tests.support.server import Server

PASSED = 3
"""Number of parts that reach the server before the push is interrupted."""
PARTS = 5
_PART = re.compile(r'"POST", "path": "/v1/uploads/(\w+)/parts", "status": 200')
RESUMED = re.compile(r"Continuing the upload (upload_\w+)\.")


@pytest.fixture(scope="module")
def own(mortal_gateway: Server) -> Server:
    return mortal_gateway


@pytest.fixture
def gate(own: Server) -> Iterator[Gate]:
    with faulty(own.base_url) as proxy:
        gate = Gate(proxy, PASSED)
        yield gate
        gate.drop()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large.bin"
    path.write_bytes(os.urandom((PARTS - 1) * PART_BYTES + 1000))
    return path


def uploaded(cli: Cli, own: Server) -> int:
    """Returns the number of bytes that the account's uploads and files have."""
    with own.client(cli.key) as client:
        return client.get("/v1/quotas").json()["quotas"]["storage_bytes"]["used"]


def sent_parts(own: Server) -> int:
    """Returns the number of parts that the server has received."""
    return len(_PART.findall(own.log.read_text()))


def interrupted(cli: Cli, own: Server, large: Path, how: signal.Signals) -> tuple[int, str]:
    """Interrupts a push after some parts. Returns its exit code and its messages."""
    before = sent_parts(own)
    process = cli.popen("files", "push", str(large))
    until(lambda: sent_parts(own) >= before + PASSED)
    process.send_signal(how)
    _, err = process.communicate(timeout=WAIT_S)
    return process.returncode, err


def check_content(cli: Cli, own: Server, large: Path, file_id: str) -> None:
    with own.client(cli.key) as client:
        content = client.get(f"/v1/files/{file_id}/content").raise_for_status().content
    assert hashlib.sha256(content).digest() == hashlib.sha256(large.read_bytes()).digest()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_continues(own: Server, gate: Gate, large: Path, how: signal.Signals) -> None:
    cli = gate.cli(own)
    code, err = interrupted(cli, own, large, how)
    if how is signal.SIGINT:
        assert code == 130
        assert "again within an hour" in err
        assert "Traceback" not in err
    gate.drop()
    before = sent_parts(own)
    done = cli.run("files", "push", str(large), "--json")
    assert done.returncode == 0, done.stderr
    assert RESUMED.search(done.stderr), done.stderr
    file = json.loads(done.stdout)
    assert file["bytes"] == large.stat().st_size
    check_content(cli, own, large, file["id"])
    assert sent_parts(own) - before == PARTS - PASSED
    assert uploaded(cli, own) == large.stat().st_size
    # The file is complete, so that a further push starts from the beginning.
    again = cli.run("files", "push", str(large), "--json")
    assert again.returncode == 0, again.stderr
    assert not RESUMED.search(again.stderr)
    assert json.loads(again.stdout)["id"] != file["id"]
    assert sent_parts(own) - before == PARTS - PASSED + PARTS


def test_changed_file(own: Server, gate: Gate, large: Path) -> None:
    """A change that keeps the size and the time is found by the digest of the whole file."""
    cli = gate.cli(own)
    interrupted(cli, own, large, signal.SIGKILL)
    gate.drop()
    status = large.stat()
    with large.open("r+b") as opened:
        opened.write(b"another beginning")
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    done = cli.run("files", "push", str(large), "--json")
    assert done.returncode == 0, done.stderr
    assert "Starting again" in done.stderr
    check_content(cli, own, large, json.loads(done.stdout)["id"])


def test_cancelled_upload(own: Server, gate: Gate, large: Path) -> None:
    """An upload that has ended, and one of another key, are not continued."""
    cli = gate.cli(own)
    interrupted(cli, own, large, signal.SIGKILL)
    gate.drop()
    stranger = gate.cli(own)
    done = stranger.run("files", "push", str(large), "--json")
    assert done.returncode == 0, done.stderr
    assert not RESUMED.search(done.stderr)
    check_content(stranger, own, large, json.loads(done.stdout)["id"])
    with own.client(cli.key) as client:
        for name in {*_PART.findall(own.log.read_text())}:
            answer = client.post(f"/v1/uploads/{name}/cancel")
            assert answer.status_code in (httpx.codes.OK, 404, 409)
    done = cli.run("files", "push", str(large), "--json")
    assert done.returncode == 0, done.stderr
    assert not RESUMED.search(done.stderr)
    check_content(cli, own, large, json.loads(done.stdout)["id"])
