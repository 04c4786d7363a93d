"""Tests of the running image.

`make image-test` builds the image with Podman or Docker and tests it. Without it, these tests run
the Containerfile's steps on this machine's files: see `ImageOfSteps`.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.packaging.images import BuiltImage, Container, ImageOfSteps, wait_until
from tests.support.deploying import deploy, wait_for
from tests.support.disks import small_disk

pytestmark = pytest.mark.one_machine

IMAGE = os.environ.get("STOKER_TEST_IMAGE")
ENGINE = os.environ.get("STOKER_TEST_ENGINE", "podman")
MODELS = Path(__file__).parents[2] / "stoker" / "demo" / "models"
OPENSHIFT = "1000650000:0"
"""OpenShift chooses a user for each project. The group is always 0."""
ORPHAN = "sh -c 'sleep 1 & echo $!'"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> BuiltImage | ImageOfSteps:
    if IMAGE:
        return BuiltImage(ENGINE, IMAGE)
    return ImageOfSteps(tmp_path_factory.mktemp("image"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Returns a folder with the owner that a new volume takes from the image."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, 10001, 0)
    folder.chmod(0o770)
    return folder


@pytest.fixture
def started(image: BuiltImage | ImageOfSteps) -> Iterator[Any]:
    """Returns a function that starts a container. Its container ends with the test."""
    containers: list[Container] = []

    def start(*arguments: str, **options: Any) -> Container:
        containers.append(image.start(*arguments, **options))
        return containers[-1]

    yield start
    for container in containers:
        container.kill()


@contextlib.contextmanager
def filled_disk(path: Path, free_kib: int) -> Iterator[Path]:
    """Mounts a disk of 1 MiB with little free space."""
    with small_disk(path, 1) as disk:
        (disk / "other").write_bytes(bytes((1024 - free_kib) * 1024))
        os.chown(disk, 10001, 0)
        yield disk


def wait_healthy(image: BuiltImage | ImageOfSteps, container: Container) -> None:
    """Waits until the image's health check succeeds."""

    def is_healthy() -> bool:
        assert container.process.poll() is None, container.ended()
        return container.execute(*image.health_command).returncode == 0

    wait_until(is_healthy)


def check_answers(container: Container, data: Path) -> None:
    """Deploys a demo model and compares its answers with the right ones."""
    key = (data / "account-key").read_text().strip()
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=container.url, headers=headers, timeout=60) as client:
        for path in ("/health", "/ready"):
            wait_until(lambda path=path: client.head(path).status_code == 200)
        made = deploy(client, MODELS / "tiny-sentiment", "sentiment", readiness="hot")
        wait_for(client, made["id"], "ready")
        for text, label in (("What a wonderful day", "positive"), ("terrible food", "negative")):
            call = {"model": "sentiment", "inputs": text}
            answer = client.post("/v1/classifications/text", json=call).raise_for_status().json()
            assert answer[0]["label"].lower() == label


@pytest.mark.parametrize(
    ("user", "has_tmp"),
    [("10001:10001", True), pytest.param(OPENSHIFT, False, marks=pytest.mark.release)],
)
def test_serves(
    user: str, has_tmp: bool, image: BuiltImage | ImageOfSteps, started: Any, data: Path
) -> None:
    """The server answers correctly with a read-only root, as the image's user and as any other
    user of group 0. It ends with code 0 after SIGTERM. Without a writable /tmp, temporary files go
    to the data folder.
    """
    container = started(data=data, user=user, has_tmp=has_tmp)
    wait_healthy(image, container)
    assert container.execute("id", "-u").stdout.strip() == user.partition(":")[0]
    assert container.execute("cat", "/proc/1/comm").stdout.strip() == "tini"
    written = container.execute("touch", "/x", "/opt/stoker/x", "/tmp/x", "/data/x")
    assert written.stderr.count("Read-only file system") == (2 if has_tmp else 3)
    program = "import stoker; print(stoker.__file__)"
    place = container.execute("/opt/stoker/bin/python", "-c", program).stdout
    assert place.startswith("/opt/stoker/lib/")

    check_answers(container, data)

    orphan = container.execute("sh", "-c", ORPHAN).stdout.strip()
    assert orphan.isdecimal()
    wait_until(lambda: not container.execute("ls", f"/proc/{orphan}").stdout, 20)

    code, output = started(data=data, user=user).ended()
    assert (code, "The data folder /data is in use by process" in output) == (1, True)

    code, output = container.stop()
    assert code == 0, output
    assert "Traceback" not in output


def test_arguments_replace_the_command(started: Any, data: Path) -> None:
    code, output = started("--version", data=data).ended()
    assert (code, output.count("\n")) == (0, 1), output


class TestUnusableData:
    """The server prints one sentence with the remedy, and ends with code 1."""

    def refused(self, container: Container) -> str:
        code, output = container.ended()
        assert code == 1, output
        assert "Traceback" not in output
        return " ".join(output.split())

    def test_of_another_owner(self, started: Any, data: Path) -> None:
        os.chown(data, 0, 0)
        data.chmod(0o755)
        message = self.refused(started(data=data, user=OPENSHIFT))
        assert "data folder /data is not writable for user 1000650000 of group 0." in message

    def test_read_only(self, started: Any, data: Path) -> None:
        message = self.refused(started(data=data, is_data_writable=False))
        assert "The data folder /data is read-only. Mount it writable" in message

    def test_full(self, started: Any, tmp_path: Path) -> None:
        with filled_disk(tmp_path / "disk", 0) as disk:
            message = self.refused(started(data=disk))
        assert "The data folder /data is on a full disk. Free disk space" in message

    def test_too_full_for_a_database(self, started: Any, tmp_path: Path) -> None:
        with filled_disk(tmp_path / "disk", 256) as disk:
            code, output = started(data=disk).ended()
        events = [json.loads(line) for line in output.splitlines()]
        (why,) = [event["why"] for event in events if event["event"] == "server failed to start"]
        # uvicorn's exit code.
        assert (code, "Free disk space and start again." in why) == (3, True)
