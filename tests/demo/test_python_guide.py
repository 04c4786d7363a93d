"""The programs of docs/guide/python.md and of the client's README run as written."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker.demo
from tests.support.doc_blocks import replaced
from tests.support.doc_runs import block_of
from tests.support.pages import DOCS
from tests.support.server import Server
from tools.client_package import write_project

DEMO = Path(stoker.demo.__file__).parent
PAGE = (DOCS / "guide" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OUTPUTS = {
    "deployments.list": "tiny-ner",
    "artifacts.push": "negative",
    "image_classification": "7\n['positive', 'negative']",
    "chat.completions": "The capital of France is Paris.",
    "AsyncStoker": "['positive', 'negative']",
    "runs.events": "The capital of France is Paris.",
}
"""Part of a program -> part of its output."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that contains the package `stoker_client`."""
    folder = tmp_path_factory.mktemp("package")
    write_project(folder)
    return folder


def test_each_program_is_tested() -> None:
    tested = [[name for name in OUTPUTS if name in block] for block in BLOCKS]
    assert sorted(name for (name,) in tested) == sorted(OUTPUTS)


def printed(program: str, demo: Server, package: Path, **env: str) -> str:
    """Returns the output of a program that succeeds."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=DEMO,
        env={**os.environ, "PYTHONPATH": str(package), "STOKER_BASE_URL": demo.base_url, **env},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", OUTPUTS)
def test_program(demo: Server, state: Any, package: Path, name: str) -> None:
    (block,) = (block for block in BLOCKS if name in block)
    assert OUTPUTS[name] in printed(block, demo, package, STOKER_API_KEY=state["account_key"])


def test_readme_of_the_client(demo: Server, package: Path) -> None:
    with demo.account("reader") as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
    program = replaced(
        block_of("stoker/client/README.md", "from stoker_client").text,
        {
            "http://127.0.0.1:8000": demo.base_url,
            "sk-…": key,
            "path/to/model": str(DEMO / "models" / "tiny-sentiment"),
        },
    )
    assert printed(program, demo, package) == "positive\n"
