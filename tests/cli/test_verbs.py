"""Verbs and options that all resources share, with a real server."""

import json
from pathlib import Path

import pytest

import stoker.demo
from tests.cli.support import Cli, account_cli
from tests.cli.terminal import Terminal
from tests.support.server import Server
from tools import cli_reference

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
DESTRUCTIVE = {"delete", "erase", "revoke", "remove", "abandon"}
WITHOUT_TERMINAL = "Add --yes to skip the confirmation."


@pytest.fixture(scope="module")
def owner(server: Server) -> Cli:
    """Returns the command of an account with a deployed `team-4/feelings`."""
    server.wait_ready()
    cli = account_cli(server, "owner")
    artifact = cli.json("artifacts", "push", str(MODEL), "--name", "feelings-v2")["id"]
    cli.json("deploy", "team-4/feelings", artifact)
    return cli


@pytest.fixture(scope="module")
def talker(server: Server) -> Cli:
    """Returns the command of an account with a chat model and an agent."""
    server.wait_ready()
    cli = account_cli(server, "agents")
    artifact = cli.json("artifacts", "push", str(MODEL.with_name("tiny-chat")))["id"]
    cli.json("deploy", "talk", artifact)
    return cli


def test_each_command_that_destroys_has_the_option_yes() -> None:
    found = {
        path: {name for item in command.params for name in item.opts}
        for path, command in cli_reference.commands(cli_reference.root())
        if path and path[-1] in DESTRUCTIVE
    }
    assert ("keys", "revoke") in found and ("agents", "erase") in found
    assert [path for path, options in found.items() if "--yes" not in options] == []


class TestConfirmation:
    def test_names_the_object_and_needs_a_terminal(self, owner: Cli) -> None:
        key = owner.json("keys", "create", "--scope", "account", "--name", "of the night")["id"]
        [artifact] = owner.json("artifacts", "list")
        for command, name in (
            (("keys", "revoke", key), f"Revoke key {key} ('of the night'), scope account?"),
            (("artifacts", "delete", "feelings-v2"), f"{artifact['id']} ('feelings-v2')"),
            (("deployments", "delete", "team-4/feelings"), "deployment team-4/feelings?"),
        ):
            done = owner.run(*command, stdin="y\n")
            assert (done.returncode, done.stdout) == (2, "")
            assert name in done.stderr and WITHOUT_TERMINAL in done.stderr
        assert key in [row["id"] for row in owner.json("keys", "list")]
        assert owner.json("keys", "revoke", key, "-y")["deleted"]

    def test_of_an_agent(self, talker: Cli) -> None:
        agent = talker.json("agents", "create", "helper", "talk")["id"]
        done = talker.run("agents", "delete", "helper", stdin="y\n")
        assert (done.returncode, f"Delete agent {agent} ('helper')" in done.stderr) == (2, True)
        assert talker.json("agents", "delete", "helper", "--yes")["deleted"]

    def test_on_a_terminal(self, owner: Cli) -> None:
        key = owner.json("keys", "create", "--scope", "account", "--name", "short")["id"]
        for reply, code in (("n", 1), ("", 1), ("y", 0)):
            with Terminal(owner, "keys", "revoke", key) as terminal:
                assert "('short')" in terminal.until("[y/N]: ")
                terminal.send(f"{reply}\r")
                shown = terminal.rest()
                assert terminal.code() == code
                assert (f"Revoked {key}." in shown) is (code == 0)
        assert key not in [row["id"] for row in owner.json("keys", "list")]

    def test_of_an_object_that_does_not_exist(self, owner: Cli) -> None:
        for command in (("files", "delete", "file_0"), ("videos", "delete", "video_0")):
            done = owner.run(*command)
            assert (done.returncode, "code: " in done.stderr) == (1, True)


class TestNames:
    def test_an_artifact_by_its_name(self, owner: Cli) -> None:
        [artifact] = owner.json("artifacts", "list")
        made = owner.json("deploy", "named", "feelings-v2")
        assert made["artifact_id"] == artifact["id"]
        assert owner.json("artifacts", "show", "feelings-v2")["id"] == artifact["id"]
        added = owner.json("versions", "add", "named", "feelings-v2", "--dtype", "bfloat16")
        assert (added["artifact_id"], added["status"]) == (artifact["id"], "live")
        owner.json("deployments", "delete", "named", "--yes")

    def test_a_name_of_two(self, owner: Cli) -> None:
        twins = [owner.json("artifacts", "push", str(MODEL), "--name", "twin")["id"] for _ in "ab"]
        done = owner.run("deploy", "which", "twin")
        assert done.returncode == 1
        assert "Several artifacts are named 'twin'" in done.stderr
        assert all(twin in done.stderr for twin in twins)
        for twin in twins:
            owner.json("artifacts", "delete", twin, "--yes")

    def test_similar_names(self, owner: Cli) -> None:
        for command, name in (
            (("deploy", "x", "feeling-v2"), "feelings-v2"),
            (("deployments", "show", "team-4/feeling"), "team-4/feelings"),
            (("call", "team-4/feelinks", "Good."), "team-4/feelings"),
            (("chat", "team4/feelings", "Good."), "team-4/feelings"),
        ):
            done = owner.run(*command)
            assert done.returncode == 1
            assert f"Did you mean '{name}'?" in done.stderr
        done = owner.run("call", "nobody", "Good.")
        assert "'stoker models' lists them." in done.stderr and "GET /v1" not in done.stderr
        assert "Did you mean" not in done.stderr

    def test_of_a_model(self, owner: Cli) -> None:
        done = owner.run("deploy", "two words", "feelings-v2")
        assert done.returncode == 1
        assert "'model' is not a model id: it may have letters, digits" in done.stderr
        assert "^" not in done.stderr

    @pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:two words", "hf:a/b@", "hf:/a"])
    def test_of_a_hub_are_checked_first(self, name: str) -> None:
        done = Cli("http://127.0.0.1:9", "sk-x").run("deploy", name, "--as", "x")
        assert (done.returncode, f"'{name}' is not a hub reference" in done.stderr) == (2, True)


def test_deployments_by_status_and_text(owner: Cli) -> None:
    artifact = owner.json("artifacts", "list")[0]["id"]
    owner.json("deploy", "other", artifact)
    owner.json("deployments", "stop", "other")

    def listed(*options: str) -> list[str]:
        return [row["model"] for row in owner.json("deployments", "list", *options)]

    assert listed() == ["other", "team-4/feelings"]
    assert listed("--search", "team-4") == ["team-4/feelings"]
    assert listed("--status", "stopped") == ["other"]
    assert listed("--status", "stopped", "--search", "team-4") == []
    done = owner.run("deployments", "list", "--status", "failed")
    assert "No deployments match." in done.stderr
    assert owner.run("deployments", "list", "--status", "busy").returncode == 2
    owner.json("deployments", "delete", "other", "--yes")


def test_options_of_an_engine_in_a_version(owner: Cli) -> None:
    artifact = owner.json("artifacts", "list")[0]["id"]
    owner.json("deploy", "light", artifact, "--engine", "openvino")
    added = owner.json("versions", "add", "light", "--weight-format", "int8")
    assert (added["config"]["weight_format"], added["status"]) == ("int8", "live")
    back = owner.json("versions", "add", "light", "--config", "weight_format=null", "--no-wait")
    assert back["config"].get("weight_format") is None
    done = owner.run("versions", "add", "light")
    assert (done.returncode, "Nothing to change" in done.stderr) == (2, True)
    owner.json("deployments", "delete", "light", "--yes")


def test_former_names_still_work(owner: Cli) -> None:
    changed = owner.json("deployments", "set", "team-4/feelings", "--idle-timeout", "77")
    assert changed["idle_timeout_s"] == 77
    program = cli_reference.root().commands
    for group, name, former in (
        ("videos", "show", "get"),
        ("agents", "show", "status"),
        ("agents", "update", "set"),
        ("deployments", "update", "set"),
        ("artifacts", "upgrade", "update"),
    ):
        commands = program[group].commands
        assert commands[former].callback.__name__ == commands[name].callback.__name__
        assert commands[former].hidden and not commands[name].hidden


def test_an_agent_that_waits_says_how_to_go_on(talker: Cli, tmp_path: Path) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Returns the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    talker.json("agents", "create", "weather", "talk", "--tools", str(tmp_path / "tools.json"))
    done = talker.run("agents", "run", "weather", "What is the weather in Paris?")
    assert done.returncode == 1
    [run] = talker.json("agents", "runs", "weather")
    assert f"stoker agents follow weather {run['id']}" in done.stderr
    assert talker.json("agents", "show", "weather", run["id"])["status"] == "requires_action"
    done = talker.run("agents", "follow", "weather", run["id"], stdin="21 degrees and sunny\n")
    assert (done.returncode, done.stderr.count("get_weather")) == (0, 1)


def test_flags_show_no_type(owner: Cli) -> None:
    for command in ((), ("serve",), ("keys", "list"), ("login",)):
        assert "<bool>" not in owner.run(*command, "--help").stdout
