"""`stoker launch`, with a program that prints its arguments and its environment."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.cli.coding_agents import CODING_AGENTS, LaunchTarget
from tests.cli.support import Cli
from tests.demo.test_pages import is_shown
from tests.launch.support import POSITIONS, deploy_script, long_model, step
from tests.support.deploying import deploy, push
from tests.support.doc_blocks import blocks
from tests.support.doc_runs import block_of
from tests.support.server import Server

MODEL = "team/coder"
STEPS = [step("", "Hello.")]
PROGRAM = """\
#!/usr/bin/env python3
import json, os, sys, time
print(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}), flush=True)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(7)
"""
PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
pytestmark = pytest.mark.one_machine


class Launcher:
    """The command line of an account, with stand-ins for the coding agents in PATH."""

    def __init__(self, folder: Path, base_url: str, account: httpx.Client) -> None:
        self.folder = folder
        self.base_url = base_url
        self.account = account
        self.key = account.headers["authorization"].removeprefix("Bearer ")
        self.cli = Cli(base_url, self.key, settings={"PATH": self.path})

    @property
    def path(self) -> str:
        return f"{self.folder}:{os.environ['PATH']}"

    def install(self, program: str) -> None:
        file = self.folder / program
        file.write_text(PROGRAM)
        file.chmod(0o755)

    def started(self, *arguments: str, **variables: str) -> dict[str, Any]:
        """Returns the arguments and the environment of the program that was started."""
        cli = Cli(self.base_url, self.key, settings={"PATH": self.path, **variables})
        process = cli.popen("launch", *arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 7, err
        return json.loads(out)

    def fails(self, *arguments: str, code: int = 2) -> str:
        # In this process, a command that does not fail would replace the tests.
        process = self.cli.popen("launch", *arguments)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code, err
        return " ".join(err.split())


@pytest.fixture
def launcher(
    tmp_path: Path, scripted_server: Server, scripted_account: httpx.Client
) -> Iterator[Launcher]:
    made = Launcher(tmp_path, scripted_server.base_url, scripted_account)
    for program in ("claude", "codex", "opencode"):
        made.install(program)
    yield made


@pytest.fixture
def model(scripted_account: httpx.Client, artifact: str) -> str:
    deploy_script(scripted_account, artifact, MODEL, STEPS)
    return MODEL


@pytest.mark.usefixtures("model")
class TestStart:
    def test_claude(self, launcher: Launcher) -> None:
        foreign = {"ANTHROPIC_API_KEY": "sk-ant-x", "CLAUDE_CODE_USE_BEDROCK": "1", "KEPT": "yes"}
        started = launcher.started("claude", "--", "-p", "say hi", **foreign)
        assert started["arguments"] == ["-p", "say hi"]
        environment = started["environment"]
        assert environment["ANTHROPIC_BASE_URL"] == launcher.base_url
        assert environment["ANTHROPIC_AUTH_TOKEN"] == launcher.key
        assert environment["ANTHROPIC_MODEL"] == MODEL
        assert environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == MODEL
        assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(POSITIONS)
        assert environment["KEPT"] == "yes"
        assert not {"ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"} & environment.keys()

    def test_key_of_the_profile(self, launcher: Launcher, tmp_path: Path) -> None:
        folder = tmp_path / "config" / "stoker"
        folder.mkdir(parents=True)
        saved = {"base_url": launcher.base_url, "api_key": launcher.key}
        (folder / "profile.json").write_text(json.dumps(saved))
        settings = {"PATH": launcher.path, "XDG_CONFIG_HOME": str(tmp_path / "config")}
        process = Cli("", settings=settings).popen("launch", "opencode")
        out, err = process.communicate(timeout=120)
        assert process.returncode == 7, err
        assert json.loads(out)["environment"]["STOKER_API_KEY"] == launcher.key

    def test_the_program_replaces_the_command(self, launcher: Launcher) -> None:
        process = launcher.cli.popen("launch", "claude", "--", "wait")
        assert process.stdout
        assert json.loads(process.stdout.readline())["arguments"] == ["wait"]
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGTERM
        assert time.monotonic() - began < 10


PAGE = "docs/guide/coding-agents.md"


def shell(launcher: Launcher, script: str) -> list[dict[str, Any]]:
    """Runs a script of the page. Returns what each coding agent was started with."""
    stoker = launcher.folder / "stoker"
    stoker.write_text(f'#!/bin/sh\nexec {sys.executable} -m stoker "$@"\n')
    stoker.chmod(0o755)
    # The stand-ins exit with 7.
    done = subprocess.run(
        ["bash", "-c", script.replace("http://127.0.0.1:8000", launcher.base_url)],
        env=Cli(launcher.base_url, launcher.key, settings={"PATH": launcher.path}).environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("model")
def test_block_of_the_guide(launcher: Launcher) -> None:
    claude, codex, opencode = shell(launcher, block_of(PAGE, "stoker launch claude\n").text)
    assert claude["environment"]["ANTHROPIC_MODEL"] == MODEL

    arguments = codex["arguments"]
    assert f'model="{MODEL}"' in arguments
    assert f'model_providers.stoker.base_url="{launcher.base_url}/v1"' in arguments
    assert f"model_context_window={POSITIONS}" in arguments
    assert launcher.key not in " ".join(arguments)
    assert codex["environment"]["STOKER_API_KEY"] == launcher.key

    config = json.loads(opencode["environment"]["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == f"stoker/{MODEL}"
    models = config["provider"]["stoker"]["models"]
    assert models[MODEL]["limit"] == {"context": POSITIONS, "output": 32_000}
    assert launcher.key not in json.dumps(config)
    assert opencode["arguments"] == ["run", "Explain this folder"]


@pytest.mark.usefixtures("model")
def test_variables_of_the_guide(launcher: Launcher) -> None:
    """The program gets the variables that `stoker launch` prints."""
    block = block_of(PAGE, "export ANTHROPIC_BASE_URL").text
    shown = re.findall(r"^export (\w+)=", block, re.MULTILINE)
    assert len(shown) == 6
    printed = launcher.cli.run("launch", "claude", "--print", "--show-key").stdout
    (by_hand,) = shell(launcher, block.replace("131072", str(POSITIONS)))
    (expected,) = shell(launcher, printed)
    for variable in shown:
        assert by_hand["environment"][variable] == expected["environment"][variable], variable


def test_files_of_the_guide() -> None:
    """The files have the settings that `stoker launch` gives the programs."""
    target = LaunchTarget("http://127.0.0.1:8000", MODEL, 131_072)
    texts = {block.language: block.text for block in blocks(PAGE)}
    options = CODING_AGENTS["codex"].start(target).options
    assert tomllib.loads(texts["toml"]) == tomllib.loads("\n".join(options[1::2]))
    given = json.loads(CODING_AGENTS["opencode"].start(target).variables["OPENCODE_CONFIG_CONTENT"])
    shown = json.loads(texts["json"])
    assert shown.pop("$schema").startswith("https://opencode.ai/")
    assert is_shown(shown, given)


@pytest.mark.usefixtures("model")
class TestPrint:
    def test_hides_the_key(self, launcher: Launcher) -> None:
        printed = launcher.cli.run("launch", "claude", "--print", "--", "-p", "it's")
        assert printed.returncode == 0
        assert launcher.key not in printed.stdout
        assert 'export ANTHROPIC_AUTH_TOKEN="$STOKER_API_KEY"' in printed.stdout.splitlines()
        assert "--show-key" in printed.stderr

    @pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
    def test_shell_starts_the_same(self, launcher: Launcher, name: str) -> None:
        printed = launcher.cli.run("launch", name, "--print", "--show-key", "--", "-p", "it's")
        environment = {"PATH": launcher.path, "ANTHROPIC_API_KEY": "sk-ant-x"}
        done = subprocess.run(
            ["sh", "-c", printed.stdout],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 7, done.stderr
        by_hand, started = json.loads(done.stdout), launcher.started(name, "--", "-p", "it's")
        assert by_hand["arguments"] == started["arguments"]
        set_by_it = set(by_hand["environment"]) - {*environment, "PWD", "SHLVL", "_", "LC_CTYPE"}
        assert set_by_it
        for variable in set_by_it:
            assert by_hand["environment"][variable] == started["environment"][variable]

    def test_works_without_the_program(self, launcher: Launcher) -> None:
        cli = Cli(launcher.base_url, launcher.key, settings={"PATH": "/nonexistent"})
        printed = cli.run("launch", "codex", "--print")
        assert printed.returncode == 0
        assert printed.stdout.startswith("codex -c ")

    def test_show_key_needs_print(self, launcher: Launcher) -> None:
        assert "--show-key needs --print." in launcher.fails("claude", "--show-key")


class TestErrors:
    def test_unknown_agent(self, launcher: Launcher) -> None:
        assert "Did you mean 'claude'? Known are claude, codex" in launcher.fails("clade")

    def test_program_is_missing(self, launcher: Launcher) -> None:
        cli = Cli(launcher.base_url, launcher.key, settings={"PATH": "/nonexistent"})
        done = cli.run("launch", "claude")
        assert done.returncode == 2
        assert "Install it: npm install -g @anthropic-ai/claude-code" in done.stderr

    def test_no_key(self, launcher: Launcher) -> None:
        done = Cli(launcher.base_url, settings={"PATH": launcher.path}).run("launch", "claude")
        assert done.returncode == 2
        assert "No API key." in done.stderr

    def test_no_chat_model(self, launcher: Launcher) -> None:
        assert "The key can call no chat model." in launcher.fails("claude")

    @pytest.mark.usefixtures("model")
    def test_which_model(self, launcher: Launcher, artifact: str) -> None:
        models = Path(stoker.demo.__file__).parent / "models"
        deploy(launcher.account, models / "tiny-encoder", "vectors")
        assert "no model 'team/code'. Did you mean 'team/coder'?" in launcher.fails(
            "claude", "--model", "team/code"
        )
        assert "'vectors' is not a chat model. Chat models: team/coder." in launcher.fails(
            "codex", "--model", "vectors"
        )
        deploy_script(launcher.account, artifact, "other", STEPS)
        told = launcher.fails("opencode")
        assert "several chat models: team/coder, other. Name one: stoker launch opencode" in told
        assert launcher.started("opencode", "--model", "other")["arguments"] == []

    def test_model_without_tools(self, launcher: Launcher, tmp_path: Path) -> None:
        plain = long_model(tmp_path / "plain", template=PLAIN)
        deploy_script(launcher.account, push(launcher.account, plain)["id"], "plain", STEPS)
        told = launcher.fails("claude", code=1)
        assert "'plain' cannot call tools, which coding agents need." in told

    @pytest.mark.parametrize(
        ("positions", "warning"),
        [
            (16_384, "a context of 16,384 tokens, which is too short: the first request of Claude"),
            (40_000, "a context of 40,000 tokens. Longer tasks need 65,536 or more."),
        ],
    )
    def test_short_context(
        self, launcher: Launcher, tmp_path: Path, positions: int, warning: str
    ) -> None:
        short = long_model(tmp_path / "short", positions=positions)
        deploy_script(launcher.account, push(launcher.account, short)["id"], "short", STEPS)
        printed = launcher.cli.run("launch", "claude", "--print")
        assert warning in printed.stderr
        assert f"CLAUDE_CODE_MAX_OUTPUT_TOKENS={positions // 4}" in printed.stdout

    def test_account_of_an_operator(self, launcher: Launcher) -> None:
        done = launcher.cli.run("--account", "acct_x", "launch", "claude")
        assert done.returncode == 2
        assert "Coding agents cannot name an account." in done.stderr
