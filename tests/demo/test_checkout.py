"""`make` in a checkout: the users' environment, the demo and its printed calls."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stoker.demo.examples import SHOWN
from stoker.demo.setup import MODELS
from tests.cli.support import Cli, environment
from tests.support.checkout import linked
from tests.support.doc_blocks import ROOT
from tests.support.doc_runs import block_of
from tests.support.server import ON_NODES, USERS, Server

pytestmark = [
    pytest.mark.one_machine,
    pytest.mark.skipif(ON_NODES, reason="make demo starts a server without nodes"),
]


def test_make_demo(first_state: tuple[Path, dict[str, Any]], demo: Server, state: Any) -> None:
    """All models that `make demo` deployed are there, and one answers correctly."""
    data_dir, first = first_state
    assert {*first["deployments"]} == {folder.name for folder in MODELS.iterdir()}
    assert "Installing" not in (data_dir.parent / "make.log").read_text()
    call = {"model": "tiny-sentiment", "inputs": "The food was not good at all."}
    with demo.client(state["account_key"]) as client:
        answer = client.post("/v1/classifications/text", json=call).raise_for_status().json()
    assert answer[0]["label"] == "negative" and answer[0]["score"] > 0.99


def test_calls_that_make_demo_prints(
    first_state: tuple[Path, dict[str, Any]], demo: Server, state: Any
) -> None:
    """The calls by curl are those of docs/tasks.md, which run in another test. The others run."""
    printed = (first_state[0].parent / "make.log").read_text().replace("\\\n", "")
    page = " ".join((ROOT / "docs" / "tasks.md").read_text().replace("\\\n", "").split())
    curls = [line for line in printed.splitlines() if line.startswith("curl ")]
    assert len(curls) == len(SHOWN)
    assert [curl for curl in curls if " ".join(curl.split()) not in page] == []
    cli = Cli(demo.base_url, state["account_key"])
    chats = [line for line in printed.splitlines() if line.startswith("stoker ")]
    answers = [cli.run(*shlex.split(chat)[1:]).stdout for chat in chats]
    assert answers == ["7 plus 5 is 12.\n", "a red circle left of a blue square\n"]


def test_make_install(demo: Server, state: Any, tmp_path: Path) -> None:
    linked(tmp_path)
    script = block_of("docs/guide/installation.md", "make install").text
    where = subprocess.run(
        ["bash", "-euc", f"{script}command -v stoker"],
        cwd=tmp_path,
        env=environment(STOKER_BASE_URL=demo.base_url, STOKER_API_KEY=state["account_key"]),
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert where.returncode == 0, where.stdout + where.stderr
    assert where.stdout.endswith(f"{Path(USERS).with_name('stoker')}\n")
    assert "wall: files" in where.stdout and "fail " not in where.stdout
    # The commands that add extras are lines of their own.
    lines = where.stdout.partition("\nextras:\n")[2].splitlines()
    assert all("-m pip install" in line for line in lines[:-1])
    assert "\N{REPLACEMENT CHARACTER}" not in where.stdout
