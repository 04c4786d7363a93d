"""The quickstart and the pages for users of other servers work as written, except for the port.

A JSON block after a shell block is part of that block's output.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.demo.setup import MODELS
from tests.demo.test_demo import ROOT
from tests.support.server import USERS, Server, running

MOVING = ROOT / "docs" / "moving"
_BLOCK = re.compile(r"^```(sh|json|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOLERANCE = 5e-4

Shell = Callable[[str], str]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns languages and texts of a page's blocks. `bash` blocks are calls of other servers."""
    return _BLOCK.findall(page.read_text())


def with_key(server: Server, key: str) -> dict[str, str]:
    return {"STOKER_API_KEY": key, "STOKER_BASE_URL": server.base_url}


def shell(server: Server, variables: dict[str, str]) -> Shell:
    """Returns a function that runs a script next to the server's data folder, as a user does."""
    path = f"{Path(USERS).parent}:{os.environ['PATH']}"

    def run(script: str, *command: str) -> str:
        script = script.replace("http://127.0.0.1:8000", server.base_url)
        done = subprocess.run(
            [*(command or ("bash", "-euc")), script.replace("curl ", "curl -sf ")],
            cwd=server.data_dir.parent,
            env={**os.environ, **variables, "PATH": path},
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def is_shown(shown: Any, answer: Any) -> bool:
    """Returns True if an answer has all fields that a page shows, with numbers about equal."""
    if isinstance(shown, dict):
        return shown.keys() <= answer.keys() and all(is_shown(shown[k], answer[k]) for k in shown)
    if isinstance(shown, list):
        return len(shown) == len(answer) and all(map(is_shown, shown, answer))
    if isinstance(shown, float):
        return abs(shown - answer) < TOLERANCE
    return shown == answer


@pytest.mark.parametrize("page", sorted(MOVING.glob("*.md")), ids=lambda page: page.stem)
def test_calls_of_pages_for_users_of_other_servers(page: Path, demo: Server, state: Any) -> None:
    run = shell(demo, with_key(demo, state["account_key"]))
    output, ran = "", 0
    for language, text in blocks(page):
        if language == "json":
            assert is_shown(json.loads(text), json.loads(output)), output
        elif language == "sh":
            output = run(text)
            assert output
            ran += 1
        else:
            script = text.replace("stoker/demo/", f"{ROOT}/stoker/demo/")
            (labels,) = run_python(run, script)
            output = json.dumps(labels)
            ran += 1
    assert ran


def run_python(run: Shell, script: str) -> list[Any]:
    """Runs a Python block. Returns what it printed, line by line."""
    printed = run(script, sys.executable, "-c")
    lines = [eval(line, {"__builtins__": {}}) for line in printed.splitlines()]
    # pipeline() returns a list of labels for each text, also for one text.
    return [line[0] if isinstance(line[0], list) else line for line in lines]


def test_all_ways_of_the_page_about_pipeline_agree(demo: Server, state: Any) -> None:
    run = shell(demo, with_key(demo, state["account_key"]))
    given = blocks(MOVING / "pipeline.md")
    scripts = [text.replace("stoker/demo/", f"{ROOT}/stoker/demo/") for _, text in given]
    theirs, http = (run_python(run, script)[0] for script in (scripts[0], scripts[2]))
    command = json.loads(run(scripts[1]))
    assert is_shown(theirs, http) and is_shown(theirs, command)


def test_both_embedders_answer_with_vectors(demo: Server, state: Any) -> None:
    run = shell(demo, with_key(demo, state["account_key"]))
    vectors = json.loads(run(blocks(MOVING / "tei.md")[0][1]))
    assert len(vectors) == 2 and {type(number) for number in vectors[0]} == {float}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs a new server in the users' environment, for a first user."""
    with running(tmp_path_factory.mktemp("first") / ".data", "serve", python=USERS) as server:
        yield server


def test_quickstart(served: Server) -> None:
    served.wait_ready()
    # The profile of `stoker login` is saved there.
    run = shell(served, {"XDG_CONFIG_HOME": str(served.data_dir.parent / "config")})
    given = blocks(ROOT / "docs" / "quickstart.md")
    [serve, *commands] = [text for language, text in given if language == "sh"]
    (shown,) = [text for language, text in given if language == "json"]
    assert serve == "stoker serve\n"
    script = "\necho ---\n".join(commands).replace("path/to/model", f"{MODELS}/tiny-sentiment")
    *_, command, http = run(script).split("---\n")
    assert is_shown(json.loads(shown), json.loads(command))
    assert is_shown(json.loads(shown), json.loads(http))
