"""Compares forks of `tests.support.template` with processes that Python started."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.base.module_command import module_command
from tests.support.server import running
from tests.support.template import Forked, can_fork
from tests.support.template.facts import STATUS
from tests.support.template.hosts import HOST
from tests.support.template.starting import TEMPLATE

FACTS = "tests.support.template.facts"
ARGUMENTS = ["--port", "0"]


def facts(path: Path, *, is_forked: bool) -> dict[str, Any]:
    env = {**os.environ, "STOKER_PRELOAD": "false", "HERE": "a test"}
    with path.open("wb") as log:
        if is_forked:
            process = Forked(FACTS, ARGUMENTS, log, env)
        else:
            command = [sys.executable, "-m", FACTS, *ARGUMENTS]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
    assert process.wait(60) == STATUS == process.returncode, path.read_text()
    assert not psutil.pid_exists(process.pid)
    return json.loads(path.read_text())


def test_a_fork_is_as_a_started_process(tmp_path: Path) -> None:
    path = tmp_path / "facts"
    started, forked = (facts(path, is_forked=is_forked) for is_forked in (False, True))
    assert forked == started
    assert started["heavy"] == []
    assert (started["parent"], started["folder"]) == (os.getpid(), str(Path.cwd()))


def test_it_has_its_own_command_line_and_dies_of_signals(tmp_path: Path) -> None:
    env = {**os.environ, "STOKER_PRELOAD": "false"}
    with (tmp_path / "log").open("wb") as log:
        process = Forked("http.server", ["0"], log, env)
    shown = psutil.Process(process.pid)
    while "http.server" not in shown.cmdline():
        assert process.poll() is None
    assert shown.cmdline() == [sys.executable, "-m", "http.server", "0"]
    process.terminate()
    assert process.wait(60) == -15


def test_the_first_engine_host_is_a_fork(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_TEST_TEMPLATE", "1")
    with running(tmp_path / "data") as server:
        server.wait_ready()
        assert server.process
        commands = [child.cmdline() for child in psutil.Process(server.process.pid).children()]
    assert module_command(HOST) in commands
    assert not [command for command in commands if TEMPLATE in command]


@pytest.mark.parametrize(
    ("command", "python", "env", "is_forked"),
    [
        (["serve", "--port", "0"], sys.executable, {"STOKER_PRELOAD": "false"}, True),
        (["node", "host"], sys.executable, {}, True),
        (["node", "join"], sys.executable, {}, False),
        (["cluster", "up"], sys.executable, {}, False),
        (["serve"], "/usr/bin/python", {}, False),
        (["serve"], sys.executable, {"PYTHONPATH": "/plugins"}, False),
        (["serve"], sys.executable, {"STOKER_RUNTIME": "mine:Runtime"}, False),
    ],
)
def test_what_is_forked(
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    python: str,
    env: dict[str, str],
    is_forked: bool,
) -> None:
    monkeypatch.setenv("STOKER_TEST_TEMPLATE", "1")
    assert can_fork(command, python, env) is is_forked
    monkeypatch.setenv("STOKER_TEST_TEMPLATE", "0")
    assert not can_fork(command, python, env)
