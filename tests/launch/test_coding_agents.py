"""Real coding agents against a real server: they read a file, edit it and run it.

`make install-agents` installs the programs. The model's answers follow a script, everything else is
real. A proxy refuses all requests to other machines.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from tests.cli.support import Cli
from tests.launch.support import (
    RefusingProxy,
    Step,
    aside,
    call,
    deploy_script,
    refusing_proxy,
    step,
)
from tests.support.server import Server

FOLDER = os.environ.get("STOKER_TEST_CODING_AGENTS") or "~/.cache/stoker/coding-agents"
PROGRAMS = Path(FOLDER).expanduser()
BINARIES = PROGRAMS / "node_modules" / ".bin"
MODEL = "team/coder"
TASK = "Make total.py print the sum."
FINAL = "Fixed: the total is 6."
BROKEN = """\
def total(numbers):
    result = 0
    for number in numbers:
        result -= number
    return result


print("total", total([1, 2, 3]))
"""
OLD, NEW = "result -= number", "result += number"
FIXED = BROKEN.replace(OLD, NEW)
PATCH = f"""\
apply_patch <<'END'
*** Begin Patch
*** Update File: total.py
@@
-        {OLD}
+        {NEW}
*** End Patch
END
"""
TIMEOUT_S = 180
pytestmark = [
    pytest.mark.one_machine,
    pytest.mark.skipif(
        not (PROGRAMS / ".installed").exists(),
        reason="the coding agents are not installed: make install-agents",
    ),
]


@pytest.fixture
def proxy() -> Iterator[RefusingProxy]:
    with refusing_proxy() as running:
        yield running


class Workplace:
    """A folder with a wrong program, a home folder, and the command line of an account."""

    def __init__(self, path: Path, cli: Cli, proxy: RefusingProxy) -> None:
        self.folder, self.home, self.proxy = path / "work", path / "home", proxy
        self.folder.mkdir()
        self.home.mkdir()
        self.file = self.folder / "total.py"
        self.file.write_text(BROKEN)
        self.cli = cli

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{BINARIES}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "PWD": str(self.folder),
            "TERM": "dumb",
            "HTTPS_PROXY": self.proxy.url,
            "HTTP_PROXY": self.proxy.url,
            "NO_PROXY": "127.0.0.1,localhost",
            # These would be downloaded.
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
        }

    def launch(self, agent: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Runs `stoker launch` in the folder."""
        cli = Cli(self.cli.base_url, self.cli.key, settings=self.environment)
        process = cli.popen("launch", agent, "--", *arguments, cwd=self.folder)
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def run(
        self, command: Sequence[str], variables: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a program by hand in the folder."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def check(self, done: "subprocess.CompletedProcess[str]") -> None:
        """Fails unless the file is correct and the agent has said the script's last text."""
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert self.file.read_text() == FIXED
        assert done.stdout.rstrip().endswith(FINAL)


@pytest.fixture
def workplace(
    tmp_path: Path, scripted_server: Server, scripted_account: httpx.Client, proxy: RefusingProxy
) -> Workplace:
    key = scripted_account.headers["authorization"].removeprefix("Bearer ")
    return Workplace(tmp_path, Cli(scripted_server.base_url, key), proxy)


def _script(read: str, edit: str, run: str, *, edited: str) -> list[Step]:
    """Returns steps that each need the result of the one before."""
    return [
        step(TASK, "I read the file first.", read),
        step(OLD, "", edit),
        step(edited, "Now I run it.", run),
        step(r"total (\d+)", r"Fixed: the total is \1."),
    ]


def test_claude_code(
    workplace: Workplace, scripted_account: httpx.Client, artifact: str, proxy: RefusingProxy
) -> None:
    path = str(workplace.file)
    script = _script(
        call("Read", file_path=path),
        call("Edit", file_path=path, old_string=OLD, new_string=NEW),
        call("Bash", command="python3 total.py", description="Run the program"),
        edited="total.py has been updated",
    )
    deploy_script(scripted_account, artifact, MODEL, script)
    allowed = ("--permission-mode", "acceptEdits", "--allowedTools", "Bash(python3:*)")
    workplace.check(workplace.launch("claude", "-p", TASK, *allowed))
    assert proxy.requests == []


def test_claude_code_loads_tools(
    workplace: Workplace, scripted_account: httpx.Client, artifact: str
) -> None:
    """Claude Code hides most of its tools until the model searches for them."""
    (workplace.folder / "a.ipynb").write_text('{"cells": [], "nbformat": 4, "nbformat_minor": 5}')
    script = [
        step("Add a cell", "", call("ToolSearch", query="select:NotebookEdit")),
        step("The tool NotebookEdit is available now", "Loaded."),
    ]
    deploy_script(scripted_account, artifact, MODEL, script)
    done = workplace.launch("claude", "-p", "Add a cell.", "--output-format", "json")
    assert '"result":"Loaded."' in done.stdout
    assert '"num_turns":2' in done.stdout


def test_codex(workplace: Workplace, scripted_account: httpx.Client, artifact: str) -> None:
    script = _script(
        call("exec_command", cmd="cat total.py"),
        call("exec_command", cmd=PATCH),
        call("exec_command", cmd="python3 total.py"),
        edited="Success. Updated the following files",
    )
    deploy_script(scripted_account, artifact, MODEL, script)
    # Its own sandbox needs rights that containers lack.
    options = ("--skip-git-repo-check", "--sandbox", "danger-full-access")
    workplace.check(workplace.launch("codex", "exec", *options, TASK))


def _opencode_script(path: Path) -> list[Step]:
    return [
        aside("You are a title generator", "Sum"),
        *_script(
            call("read", filePath=str(path)),
            call("edit", filePath=str(path), oldString=OLD, newString=NEW),
            call("bash", command="python3 total.py", description="Run the program"),
            edited="Edit applied successfully",
        ),
    ]


def test_opencode(workplace: Workplace, scripted_account: httpx.Client, artifact: str) -> None:
    deploy_script(scripted_account, artifact, MODEL, _opencode_script(workplace.file))
    workplace.check(workplace.launch("opencode", "run", TASK))


@pytest.mark.parametrize("package", ["@ai-sdk/anthropic", "@ai-sdk/openai"])
def test_opencode_with_other_apis(
    workplace: Workplace, scripted_account: httpx.Client, artifact: str, package: str
) -> None:
    """opencode with Messages and with responses."""
    deploy_script(scripted_account, artifact, MODEL, _opencode_script(workplace.file))
    printed = workplace.cli.run("launch", "opencode", "--print")
    name, _, value = printed.stdout.splitlines()[0].removeprefix("export ").partition("=")
    assert name == "OPENCODE_CONFIG_CONTENT"
    config = value.strip("'").replace("@ai-sdk/openai-compatible", package)
    variables = {name: config, "STOKER_API_KEY": str(workplace.cli.key)}
    workplace.check(workplace.run(["opencode", "run", TASK], variables))
