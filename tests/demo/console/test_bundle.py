"""The committed bundle is built from the source, and is small."""

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.demo.console.conftest import ROOT
from tools import console_api

FRONTEND = ROOT / "frontend"
STATIC = ROOT / "stoker" / "server" / "console" / "static"
MOST_BYTES = 135_000


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_is_small() -> None:
    packed = {name: len(gzip.compress(content)) for name, content in contents(STATIC).items()}
    assert sum(packed.values()) <= MOST_BYTES, packed


def test_runs_nothing_that_it_makes_up() -> None:
    for name, content in contents(STATIC).items():
        text = content.decode()
        for forbidden in ("eval(", "new Function(", "document.write(", "<style", " style="):
            assert forbidden not in text, (name, forbidden)


def test_sources_set_no_markup() -> None:
    for path in (FRONTEND / "src").rglob("*.ts*"):
        assert "innerhtml" not in path.read_text().lower(), path


def test_types_are_of_this_server() -> None:
    assert console_api.PATH.read_text() == console_api.text(), "make console"


def test_is_what_the_source_builds(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no Node: apt-get install nodejs npm")
    if not (FRONTEND / "node_modules").exists():
        pytest.skip("the frontend's libraries are missing: npm ci, in frontend/")
    for command in (["npm", "run", "--silent", "types"], ["npx", "tsc"]):
        subprocess.run(command, cwd=FRONTEND, check=True, capture_output=True, timeout=240)
    subprocess.run(
        ["npx", "vite", "build", "--outDir", str(tmp_path / "built"), "--emptyOutDir"],
        cwd=FRONTEND, check=True, capture_output=True, timeout=240,
    )  # fmt: skip
    assert contents(tmp_path / "built") == contents(STATIC), "make console"
