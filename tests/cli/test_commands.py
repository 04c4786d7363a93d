import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main

import stoker
from stoker.base.extras import install_command
from stoker.cli import doctor, server_health
from stoker.cli.commands import ENTRIES
from stoker.cli.main import app
from stoker.inspection import packages
from stoker.models.engines import catalogue
from tests.cli.support import Cli, account_cli, environment, until
from tests.support.server import Server

HEAVY = ("torch", "fastapi", "sqlalchemy", "httpx", "rich", "pydantic")
INTERRUPTED = """
import signal, sys, time, weakref
from stoker.cli import doctor, main

class Kept: ...

def check():
    kept = Kept()
    seen = weakref.ref(kept, lambda _: signal.raise_signal(signal.SIGINT))
    del kept
    time.sleep(120)
    print("not interrupted")

# A shell that has put the tests in the background has them ignore it, and what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
doctor.MACHINE = (check,)
sys.argv = ["stoker", "doctor"]
main.main()
"""


class TestStart:
    def test_help_imports_nothing_heavy(self) -> None:
        # Reading a command imports its module.
        code = (
            "import sys, typer.main; from stoker.cli.main import app;"
            "commands = [*typer.main.get_command(app).commands.values()];"
            f"print(len(commands), [m for m in {HEAVY} if m in sys.modules])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        count, _, heavy = done.stdout.strip().partition(" ")
        assert heavy == "[]", done.stderr
        assert int(count) == len(ENTRIES) + len(("serve", "demo"))

    def test_a_command_imports_no_other_command(self) -> None:
        code = (
            "import sys; from stoker.cli.main import app\n"
            "try: app(['keys', 'list'], standalone_mode=False)\n"
            "except Exception as error: print(type(error).__name__)\n"
            "print([m for m in sys.modules if m.startswith('stoker.cli.')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            capture_output=True,
            text=True,
            env=environment(),
        )
        error, _, modules = done.stdout.strip().partition("\n")
        assert error == "WrongUseError", done.stderr
        assert "stoker.cli.keys" in modules
        for other in ("agents", "artifacts", "call", "doctor", "engines"):
            assert f"stoker.cli.{other}" not in modules

    def test_a_call_of_the_server_imports_no_converter_and_no_other_command_line(self) -> None:
        code = (
            "import sys; from stoker.cli.main import app\n"
            "where = ['--base-url', 'http://127.0.0.1:9', '--api-key', 'sk']\n"
            "try: app([*where, 'deployments', 'show', 'dep_1'], standalone_mode=False)\n"
            "except Exception as error: print(type(error).__name__)\n"
            "names = ('httpx', 'httpx._main', 'click', 'pydantic', 'pygments')\n"
            "print([name for name in names if name in sys.modules])\n"
            "import httpx._main"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        )
        assert done.stdout.split("\n")[:2] == ["UnreachableError", "['httpx']"]

    def test_the_list_shows_the_help_of_each_command(self) -> None:
        commands = typer.main.get_group(app).commands
        for entry in ENTRIES:
            paragraph, _, _ = (commands[entry.name].help or "").partition("\n\n")
            assert entry.help == " ".join(paragraph.split())

    def test_version(self) -> None:
        done = Cli("http://127.0.0.1:9").run("--version")
        assert (done.returncode, done.stdout) == (0, f"stoker {stoker.__version__}\n")

    def test_every_command_and_option_is_explained(self) -> None:
        def explained(command: object, path: str) -> None:
            assert getattr(command, "help", None), path
            for parameter in getattr(command, "params", []):
                assert getattr(parameter, "help", None), f"{path} {parameter.name}"
            for name, child in getattr(command, "commands", {}).items():
                explained(child, f"{path} {name}")

        explained(typer.main.get_command(app), "stoker")


class TestErrors:
    def test_without_a_key(self) -> None:
        done = Cli("http://127.0.0.1:9").run("models")
        assert done.returncode == 2
        assert done.stdout == ""
        for word in ("stoker login", "STOKER_API_KEY", "account-key", "operator-key"):
            assert word in done.stderr

    def test_without_a_server(self) -> None:
        done = Cli("http://127.0.0.1:9", "sk-x").run("models", "--json")
        assert done.returncode == 1
        assert done.stdout == ""
        assert "stoker serve" in done.stderr

    def test_with_no_address(self) -> None:
        done = Cli("localhost:8000", "sk-x").run("models")
        assert done.returncode == 2
        assert "not the address of a server" in done.stderr

    def test_with_a_wrong_key(self, server: Server) -> None:
        done = Cli(server.base_url, "sk-wrong").run("models")
        assert done.returncode == 1
        assert "Invalid API key" in done.stderr
        assert "code: invalid_api_key" in done.stderr
        assert "request id: req_" in done.stderr

    def test_names_the_field_at_fault(self, cli: Cli) -> None:
        done = cli.run("deploy", "no spaces allowed", "art_none")
        assert done.returncode == 1
        assert "param: model" in done.stderr

    def test_of_usage(self, cli: Cli, tmp_path: Path) -> None:
        assert cli.run("deploy", "model").returncode == 2
        assert cli.run("call", "model").returncode == 2
        assert cli.run("call", "model", "x", "-p", "top_k").returncode == 2
        assert cli.run("keys", "create", "--expires-in", "soon").returncode == 2
        assert cli.run("artifacts", "push", str(tmp_path / "gone")).returncode == 2

    def test_ctrl_c_is_clean(self, cli: Cli) -> None:
        process = cli.popen("doctor")
        assert process.stderr
        assert "Checking" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        # If the signal arrives while code is executed from a text, as for a dataclass, Python ends
        # itself by the signal after its cleanup. A shell reports 130 for both.
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in err

    def test_ctrl_c_in_a_finalizer(self) -> None:
        """Ctrl-C in a finalizer is not lost, although Python only prints it there."""
        done = subprocess.run(
            [sys.executable, "-c", INTERRUPTED],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout) == (130, "")
        assert "Traceback" not in done.stderr


class TestKeysAndAccounts:
    def test_from_operator_key_to_account(self, server: Server) -> None:
        operator = Cli(server.base_url, server.operator_key)
        account = operator.json("accounts", "create", "a team")
        assert account["id"] in {a["id"] for a in operator.json("accounts", "list")}
        created = operator.run(
            "keys", "create", "--scope", "account", "--account-id", account["id"]
        )
        # The key is alone on stdout, so that a script can read it.
        key = created.stdout.strip()
        assert key.startswith("sk-") and len(created.stdout.splitlines()) == 1
        assert "account" in created.stderr
        assert Cli(server.base_url, key).json("artifacts", "list") == []

    def test_an_account_is_deleted_once_that_is_confirmed(self, server: Server) -> None:
        operator = Cli(server.base_url, server.operator_key)
        account = operator.json("accounts", "create", "short-lived")["id"]
        unconfirmed = operator.run("accounts", "delete", account)
        assert unconfirmed.returncode == 2
        assert "short-lived" in unconfirmed.stderr
        gone = operator.json("accounts", "delete", account, "--yes")
        assert gone == {"id": account, "object": "account.deleted", "deleted": True}
        assert account not in {a["id"] for a in operator.json("accounts", "list")}
        assert "account_not_found" in operator.run("accounts", "delete", account, "--yes").stderr

    def test_life_of_a_key(self, cli: Cli) -> None:
        limits = ("--requests-per-minute", "600", "--tokens-per-minute", "90000")
        options = ("--scope", "account", "--name", "x", "--expires-in", "2d", *limits)
        key = cli.json("keys", "create", *options)
        assert (key["requests_per_minute"], key["tokens_per_minute"]) == (600, 90000)
        assert key["expires_at"]
        second = Cli(cli.base_url, key["key"])
        assert second.json("models") == []
        rotated = second.json("keys", "rotate", key["id"], "--grace-s", "0")
        assert second.run("models").returncode == 1
        third = Cli(cli.base_url, rotated["key"])
        assert key["id"] in {k["id"] for k in third.json("keys", "list")}
        assert "sk-" not in third.run("keys", "list").stdout
        assert cli.json("keys", "revoke", key["id"], "--yes")["deleted"]
        assert third.run("models").returncode == 1


@pytest.fixture
def no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the checks of the machine in `stoker doctor`: importing torch takes seconds."""
    monkeypatch.setattr(doctor, "MACHINE", ())


class TestDoctor:
    def test_all_is_well(self, cli: Cli) -> None:
        report = cli.json("doctor")
        assert report["ok"]
        checks = {check["name"]: check for check in report["checks"]}
        assert checks["torch"]["status"] == "ok"
        assert checks["API key"]["found"] == "valid, scope account"
        assert checks["models"]["found"] == "0"

    def test_torch_is_missing(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = replace(catalogue.ENGINES["torch"], probe="import no_such_library")
        monkeypatch.setattr(catalogue, "ENGINES", {"torch": torch})
        done = Cli(server.base_url, server.operator_key).run("doctor")
        assert done.returncode == 1
        assert "No module named 'no_such_library'" in done.stdout

    def test_extras(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "MACHINE", (doctor._extras,))
        monkeypatch.setattr(packages, "is_installed", lambda name: name != "unidic-lite")
        report = Cli(server.base_url, server.operator_key).json("doctor")
        extras = {check["name"]: check for check in report["checks"]}["extras"]
        assert (extras["status"], extras["found"]) == ("ok", "not installed: japanese")
        assert extras["hint"].endswith(f"that you need:\n{install_command('japanese')}")

    def test_operator(self, server: Server, no_machine: None) -> None:
        report = Cli(server.base_url, server.operator_key).json("doctor")
        checks = {check["name"]: check["found"] for check in report["checks"]}
        assert checks["API key"] == "valid, scope operator"

    def test_doctor_looks_at_the_named_data_folder(self, server: Server, tmp_path: Path) -> None:
        cli = Cli(server.base_url, server.operator_key)
        named = tmp_path / "named"
        report = cli.json("doctor", "--data-dir", str(named))
        checks = {check["name"]: check["found"] for check in report["checks"]}
        assert checks["data folder"].endswith(str(named.resolve()))

    def test_a_server_of_another_release(
        self, server: Server, no_machine: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both versions are shown. Only machines of one fleet need the same release."""
        release, cli = stoker.__version__, Cli(server.base_url, server.operator_key)
        monkeypatch.setattr(stoker, "__version__", "0.0.9")
        expected = f"version {release}, this command is 0.0.9"
        for verdict, shares in (("ok", False), ("warn", True)):
            monkeypatch.setattr(server_health, "shares_database", lambda shares=shares: shares)
            report = cli.json("doctor")
            [check] = [check for check in report["checks"] if check["name"] == "server"]
            assert (check["status"], check["found"]) == (verdict, expected)
            assert report["ok"]

    def test_no_server(self, no_machine: None) -> None:
        done = Cli("http://127.0.0.1:9").run("doctor")
        assert done.returncode == 1
        assert "stoker serve" in done.stdout

    def test_wrong_key(self, server: Server, no_machine: None) -> None:
        done = Cli(server.base_url, "sk-wrong").run("doctor", "--json")
        assert done.returncode == 1
        report = json.loads(done.stdout)
        assert [c["name"] for c in report["checks"] if c["status"] == "fail"] == ["API key"]

    def test_wrong_settings(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "MACHINE", (doctor._disk,))
        key = server.operator_key
        done = Cli(server.base_url, key, {"STOKER_PORT": "many"}).run("doctor", "--json")
        assert done.returncode == 1
        failed = [c for c in json.loads(done.stdout)["checks"] if c["status"] == "fail"]
        assert failed[0]["name"] == "settings"
        assert "STOKER_PORT" in failed[0]["found"]


@pytest.fixture(scope="module")
def deployed(server: Server, tagger: Path) -> Cli:
    """Returns the command with an account's key and a deployed `team/tagger`.

    One command pushes and deploys it.
    """
    server.wait_ready()
    cli = account_cli(server, "deployed")
    pushed = cli.json(
        "artifacts", "push", str(tagger), "--deploy", "team/tagger", "--readiness", "warm"
    )
    assert pushed["status"] == "ready"
    assert pushed["pipeline"] == "token-classification"
    assert pushed["deployment"]["status"] == "ready"
    return cli


class TestFromPushToCall:
    def test_call_one(self, deployed: Cli) -> None:
        result = deployed.json("call", "team/tagger", "my name is clara")
        assert {item["word"] for item in result} <= {"my", "name", "is", "clara"}

    def test_call_several(self, deployed: Cli) -> None:
        assert len(deployed.json("call", "team/tagger", "clara", "berkeley")) == 2

    def test_call_with_parameters(self, deployed: Cli) -> None:
        result = deployed.json(
            "call", "team/tagger", "clara in berkeley", "-p", "aggregation_strategy=simple"
        )
        assert "entity_group" in result[0]

    def test_call_stdin_and_file(self, deployed: Cli, tmp_path: Path) -> None:
        result = deployed.json("call", "team/tagger", "clara")
        assert deployed.json("call", "team/tagger", "-", stdin="clara\n") == result
        (tmp_path / "lines.txt").write_text("clara\n\nberkeley\n")
        both = deployed.json("call", "team/tagger", "--file", str(tmp_path / "lines.txt"))
        assert both[0] == result
        assert len(both) == 2

    def test_call_prints_for_people(self, deployed: Cli) -> None:
        done = deployed.run("call", "team/tagger", "clara")
        assert len(done.stdout.splitlines()) > 5
        assert json.loads(done.stdout)

    def test_call_of_an_unknown_model(self, deployed: Cli) -> None:
        done = deployed.run("call", "nobody", "clara")
        assert done.returncode == 1
        assert "Model not found" in done.stderr

    def test_call_with_an_unknown_parameter(self, deployed: Cli) -> None:
        done = deployed.run("call", "team/tagger", "clara", "-p", "agregation_strategy=simple")
        assert done.returncode == 1
        assert "param: agregation_strategy" in done.stderr

    def test_models(self, deployed: Cli) -> None:
        [model] = deployed.json("models")
        assert (model["id"], model["status"]) == ("team/tagger", "ready")
        assert "team/tagger" in deployed.run("models").stdout

    def test_deployment_key(self, deployed: Cli, no_machine: None) -> None:
        key = deployed.json("keys", "create", "--deployment", "team/tagger")["key"]
        limited = Cli(deployed.base_url, key)
        assert limited.json("call", "team/tagger", "clara")
        assert limited.run("artifacts", "list").returncode == 1
        checks = {check["name"]: check["found"] for check in limited.json("doctor")["checks"]}
        assert checks["API key"] == "valid, scope deployment"
        assert checks["models"] == "1"

    def test_an_operator_acts_for_the_account(self, server: Server, deployed: Cli) -> None:
        """An operator lists and calls the account's models and makes keys for them.

        Without an account, the error explains how to name one here.
        """
        operator = Cli(server.base_url, server.operator_key)
        [key] = deployed.json("keys", "list")[:1]
        acting = ("--account", key["account_id"])
        assert [row["id"] for row in operator.json(*acting, "models")] == ["team/tagger"]
        assert operator.json(*acting, "call", "team/tagger", "clara")
        made = operator.json(*acting, "keys", "create", "--deployment", "team/tagger")
        assert made["account_id"] == key["account_id"]
        assert Cli(server.base_url, made["key"]).json("call", "team/tagger", "clara")
        for command in (("models",), ("call", "team/tagger", "clara"), ("deployments", "list")):
            done = operator.run(*command)
            assert done.returncode == 1
            assert "--account" in done.stderr and "x-stoker-account" not in done.stderr.replace(
                "param: x-stoker-account", ""
            )

    def test_artifact_in_use_is_not_deleted(self, deployed: Cli) -> None:
        [artifact] = deployed.json("artifacts", "list")
        done = deployed.run("artifacts", "delete", artifact["id"], "--yes")
        assert done.returncode == 1
        assert "code: artifact_in_use" in done.stderr

    def test_shows(self, deployed: Cli) -> None:
        [artifact] = deployed.json("artifacts", "list")
        shown = deployed.run("artifacts", "show", artifact["id"]).stdout
        assert "BertForTokenClassification" in shown
        [deployment] = deployed.json("deployments", "list")
        assert deployed.json("deployments", "show", "team/tagger")["id"] == deployment["id"]
        assert "team/tagger" in deployed.run("deployments", "show", deployment["id"]).stdout
        statuses = [e["status"] for e in deployed.json("deployments", "events", "team/tagger")]
        assert "ready" in statuses
        assert isinstance(deployed.json("deployments", "logs", "team/tagger"), list)
        assert deployed.run("deployments", "show", "nobody").returncode == 1

    def test_asks_before_deleting(self, deployed: Cli) -> None:
        done = deployed.run("deployments", "delete", "team/tagger", stdin="y\n")
        assert (done.returncode, done.stdout) == (2, "")
        assert "Delete deployment team/tagger?" in done.stderr and "--yes" in done.stderr
        assert deployed.json("deployments", "list")

    def test_stop_start_delete(self, deployed: Cli, tagger: Path) -> None:
        pushed = deployed.json("artifacts", "push", str(tagger), "--name", "other")
        made = deployed.json("deploy", "other", pushed["id"], "--idle-timeout-s", "60", "--no-wait")
        assert (made["readiness"], made["idle_timeout_s"]) == ("cold", 60)
        assert deployed.json("call", "other", "clara", "--max-wait", "60")
        deployed.json("deployments", "stop", "other")
        until(lambda: deployed.json("deployments", "show", "other")["status"] == "stopped")
        assert deployed.json("deployments", "start", "other")["desired"] == "running"
        assert deployed.json("deployments", "delete", "other", "--yes")["deleted"]
        assert deployed.json("artifacts", "delete", pushed["id"], "--yes")["deleted"]
        assert deployed.run("artifacts", "show", pushed["id"]).returncode == 1
