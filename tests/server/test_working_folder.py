"""A server that is started in a folder with a user's Python files."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from stoker.base.module_command import module_command
from stoker.demo.setup import MODELS
from tests.support.deploying import deploy
from tests.support.server import NO_HUB, WITHOUT_MODELS

# The test reads the data folder.
pytestmark = pytest.mark.one_machine

NAMES = ("profile", "queue", "random", "signal", "token")
"""Modules of the standard library that the server's processes import."""
READY_S = 90


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text("raise SystemExit('the file of the user')\n")
    return folder


def test_a_model_is_inspected_and_answers(folder: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [Path(sys.executable).with_name("stoker"), "serve", "--port", "0"],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, **NO_HUB, **WITHOUT_MODELS, "STOKER_DATA_DIR": str(data_dir)},
        )
    try:
        deadline = time.monotonic() + READY_S
        while not (data_dir / "account-key").exists() or not (data_dir / "server.json").exists():
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        address = json.loads((data_dir / "server.json").read_text())
        key = (data_dir / "account-key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=address["base_url"], headers=headers, timeout=120) as client:
            deploy(client, MODELS / "tiny-sentiment", "mine")
            body = {"model": "mine", "inputs": "The food was not good at all."}
            answer = client.post("/v1/classifications/text", json=body).raise_for_status().json()
        assert answer[0]["label"] == "negative"
    finally:
        server.terminate()
        server.wait(60)


def test_modules_of_the_folder_are_ignored(folder: Path) -> None:
    done = subprocess.run(module_command("random"), cwd=folder, check=False, capture_output=True)
    assert b"the file of the user" not in done.stderr
