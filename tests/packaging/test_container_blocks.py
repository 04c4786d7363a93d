"""The pages' blocks about the image, run with Podman: five minutes and 10 GB of disk.

Podman's store is a folder of the test, so the machine's own images, containers and volumes stay
unchanged. Podman takes Docker's commands too, and then builds images in Docker's format.
STOKER_TEST_BUILD adds arguments to the build, such as `--build-arg PIP_INDEX_URL=…`.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.packaging.conftest import ROOT
from tests.packaging.test_image import MODELS
from tests.support.deploying import deploy, wait_for
from tests.support.doc_runs import block_of
from tests.support.recording import run_script

PROGRAMS = ("podman", "mmdebstrap")
MISSING = [name for name in PROGRAMS if not shutil.which(name)]
PAGES = [
    ("docs/containers.md", "podman build"),
    ("docs/guide/installation.md", "docker build"),
]
URL = "http://127.0.0.1:8000"
TIMEOUT_S = 2400
ENGINE = """#!/bin/sh
command=$1
shift
[ "$command" != build ] || set -- --format docker $STOKER_TEST_BUILD "$@"
exec "$PODMAN" --root "$STORE/images" --runroot "$STORE/run" "$command" "$@"
"""

pytestmark = [
    pytest.mark.release,
    pytest.mark.one_machine,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mmdebstrap needs root here"),
]


@dataclass
class Engine:
    """Podman with a store of its own."""

    folder: Path

    def run(self, script: str, within: Path) -> str:
        """Runs a block that must succeed. Returns its output."""
        return run_script(
            within,
            script,
            self.folder / "bin",
            timeout_s=TIMEOUT_S,
            STOKER_TEST_BUILD=os.environ.get("STOKER_TEST_BUILD", ""),
            PODMAN=str(shutil.which("podman")),
            STORE=str(self.folder),
        )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("store")
    (folder / "bin").mkdir()
    for name in ("podman", "docker"):
        (folder / "bin" / name).write_text(ENGINE)
        (folder / "bin" / name).chmod(0o755)
    engine = Engine(folder)
    try:
        # Makes the base image.
        engine.run(block_of("CONTRIBUTING.md", "mmdebstrap").text, folder)
        yield engine
    finally:
        engine.run("podman rm --all --force; podman rmi --all --force", folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(("page", "beginning"), PAGES)
def test_image(engine: Engine, page: str, beginning: str) -> None:
    """The image is built, and its container answers with the key that the block shows."""
    try:
        key = engine.run(f"{block_of(page, beginning).text}\n", ROOT).split()[-1]
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=URL, headers=headers, timeout=60) as client:
            made = deploy(client, MODELS / "tiny-sentiment", "sentiment", readiness="hot")
            wait_for(client, made["id"], "ready")
            for text, label in (("What a wonderful day", "positive"), ("bad food", "negative")):
                call = {"model": "sentiment", "inputs": text}
                answer = client.post("/v1/classifications/text", json=call).raise_for_status()
                assert answer.json()[0]["label"].lower() == label
        engine.run("podman healthcheck run stoker", engine.folder)
    finally:
        engine.run("podman rm --force stoker; podman volume rm --force stoker", engine.folder)
