"""The tab key, by the protocol that shells use, against a real server."""

import json
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import stoker.demo
from tests.cli.support import Cli, account_cli
from tests.support.server import Server

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
PROGRAM = "import sys; sys.argv[0] = 'stoker'; from stoker.cli.main import main; main()"


def completed(cli: Cli, *words: str) -> list[str]:
    """Returns what bash offers for the last word."""
    environment = {
        **cli.environment,
        "_STOKER_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("stoker", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.fixture(scope="module")
def team(server: Server) -> Cli:
    """Returns the command of an account with an artifact, two deployments, a key and an agent."""
    server.wait_ready()
    cli = account_cli(server, "completion")
    artifact = cli.json("artifacts", "push", str(MODEL), "--name", "feelings-v2")["id"]
    for model in ("feelings", "feelings-old"):
        cli.json("deploy", model, artifact)
    cli.json("artifacts", "push", str(MODEL), "--name", "with a space")
    return cli


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("call", "feel"), {"feelings", "feelings-old"}),
        (("chat", "feelings-"), {"feelings-old"}),
        (("logs", "feelings-o"), {"feelings-old"}),
        (("deployments", "show", "feelings-o"), {"feelings-old"}),
        (("versions", "list", "feelings-o"), {"feelings-old"}),
        (("deploy", "new", "feel"), {"feelings-v2"}),
        (("artifacts", "show", "feel"), {"feelings-v2"}),
        (("keys", "create", "--deployment", "feelings-o"), {"feelings-old"}),
        (("call", "nothing"), set()),
        (("deployments", "list", "--status", "st"), {"starting", "stopping", "stopped"}),
    ],
)
def test_names(team: Cli, words: tuple[str, ...], offered: set[str]) -> None:
    assert set(completed(team, *words)) == offered


def test_ids(team: Cli) -> None:
    """An ID is offered if it was begun, and for objects without a name that fits in a word."""
    artifacts = {
        artifact["display_name"]: artifact["id"] for artifact in team.json("artifacts", "list")
    }
    assert set(completed(team, "artifacts", "show", "art_")) == {*artifacts.values()}
    assert set(completed(team, "artifacts", "show", '""')) == {
        "feelings-v2",
        artifacts["with a space"],
    }
    deployments = {row["id"] for row in team.json("deployments", "list")}
    assert set(completed(team, "deployments", "stop", "dep_")) == deployments
    keys = {key["id"] for key in team.json("keys", "list")}
    assert set(completed(team, "keys", "revoke", "key_")) == keys


def test_accounts(team: Cli, server: Server) -> None:
    operator = Cli(server.base_url, server.operator_key)
    [account] = {key["account_id"] for key in team.json("keys", "list")}
    assert account in completed(operator, "accounts", "show", "acct_")
    assert completed(operator, "--account", account, "call", "feelings-o") == ["feelings-old"]


def test_with_the_profile(team: Cli, tmp_path: Path) -> None:
    settings = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert replace(team, settings=settings).run("login").returncode == 0
    assert completed(Cli("", settings=settings), "call", "feelings-o") == ["feelings-old"]
    profile = tmp_path / "stoker" / "profile.json"
    assert json.loads(profile.read_text())["base_url"] == team.base_url
    profile.write_text("{")
    assert completed(Cli("", settings=settings), "call", "feelings-o") == []


def test_failures_are_silent(team: Cli) -> None:
    for cli in (Cli(team.base_url, "sk-wrong"), Cli("http://127.0.0.1:9", "sk-x"), Cli("nowhere")):
        assert completed(cli, "call", "feel") == []


def test_a_server_that_does_not_answer(team: Cli) -> None:
    """The connection is accepted, but no answer comes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert completed(replace(team, base_url=address), "call", "feel") == []
        assert time.monotonic() - started < 30
