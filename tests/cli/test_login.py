"""`stoker login` and `stoker logout` with a real server, and the profile that they share."""

import json
import os
import pty
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cli.profile import Profile
from tests.cli.support import Cli, account_cli
from tests.support.server import Server

pytestmark = pytest.mark.one_machine

WITHOUT_SERVER = "http://127.0.0.1:9"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "config" / "stoker" / "profile.json"


@pytest.fixture
def shell(tmp_path: Path) -> Cli:
    """Returns the command of a user without variables and without a profile."""
    return Cli("", settings={"XDG_CONFIG_HOME": str(tmp_path / "config")})


@pytest.fixture
def data_dir(server: Server, tmp_path: Path) -> Path:
    """Returns a copy of the server's data folder with its address and its keys."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("server.json", "operator-key"):
        shutil.copy(server.data_dir / name, folder)
    (folder / "account-key").write_text(f"{account_cli(server, 'first').key}\n")
    return folder


def login(shell: Cli, address: str, key: str | None) -> "subprocess.CompletedProcess[str]":
    """Signs in with a key from standard input."""
    return shell.run("login", "--base-url", address, "--key-stdin", stdin=f"{key}\n")


def account_of(cli: Cli) -> str:
    [key, *_] = cli.json("keys", "list")
    return key["account_id"]


class TestOnTheServersMachine:
    def test_with_the_key_of_the_first_account(
        self, shell: Cli, data_dir: Path, server: Server, profile: Path
    ) -> None:
        done = shell.run("login", "--data-dir", str(data_dir))
        assert done.returncode == 0, done.stderr
        key = (data_dir / "account-key").read_text().strip()
        saved = {"base_url": server.base_url, "api_key": key}
        assert json.loads(profile.read_text()) == saved
        assert f"Signed in to {server.base_url}: scope account, account acct_" in done.stderr
        assert str(data_dir / "account-key") in done.stderr and str(profile) in done.stderr
        assert key not in done.stdout + done.stderr
        assert account_of(shell) in done.stderr
        assert shell.json("models") == []

    def test_profile_is_private(self, shell: Cli, data_dir: Path, profile: Path) -> None:
        profile.parent.mkdir(parents=True, mode=0o755)
        shell.run("login", "--data-dir", str(data_dir))
        assert stat.S_IMODE(profile.stat().st_mode) == 0o600
        assert stat.S_IMODE(profile.parent.stat().st_mode) == 0o700
        assert [*profile.parent.iterdir()] == [profile]

    def test_with_the_folder_of_the_setting(self, shell: Cli, data_dir: Path) -> None:
        shell = replace(shell, settings={**shell.settings, "STOKER_DATA_DIR": str(data_dir)})
        report = shell.json("login")
        assert (report["scope"], report["account_id"]) == ("account", account_of(shell))

    def test_with_the_operator_key_alone(self, shell: Cli, data_dir: Path) -> None:
        (data_dir / "account-key").unlink()
        done = shell.run("login", "--data-dir", str(data_dir))
        assert done.returncode == 0
        assert "scope operator" in done.stderr
        assert "This is an operator key" in done.stderr and "stoker accounts create" in done.stderr
        assert shell.json("accounts", "list")

    def test_with_the_key_of_the_running_demo(
        self, shell: Cli, data_dir: Path, server: Server
    ) -> None:
        key = account_cli(server, "demo").key
        demo = {"base_url": server.base_url, "account_key": key}
        (data_dir / "demo.json").write_text(json.dumps(demo))
        shell.run("login", "--data-dir", str(data_dir))
        assert account_of(shell) == account_of(Cli(server.base_url, key))
        # The demo ran earlier, at another address.
        (data_dir / "demo.json").write_text(json.dumps(demo | {"base_url": WITHOUT_SERVER}))
        shell.run("login", "--data-dir", str(data_dir))
        assert account_of(shell) != account_of(Cli(server.base_url, key))

    def test_no_server(self, shell: Cli, tmp_path: Path, profile: Path) -> None:
        done = shell.run("login", "--data-dir", str(tmp_path / "none"))
        assert done.returncode == 2
        assert f"No server uses the data folder {tmp_path / 'none'}" in done.stderr
        assert "--base-url" in done.stderr and not profile.exists()

    def test_no_key(self, shell: Cli, data_dir: Path, server: Server) -> None:
        for name in ("account-key", "operator-key"):
            (data_dir / name).unlink()
        done = shell.run("login", "--data-dir", str(data_dir))
        assert done.returncode == 2
        assert f"stoker login --base-url {server.base_url}" in done.stderr

    def test_broken_server_json(self, shell: Cli, data_dir: Path) -> None:
        (data_dir / "server.json").write_text("{")
        done = shell.run("login", "--data-dir", str(data_dir))
        assert (done.returncode, "has no address of a server" in done.stderr) == (2, True)


class TestElsewhere:
    def test_key_from_standard_input(self, shell: Cli, cli: Cli, profile: Path) -> None:
        done = login(shell, f"{cli.base_url}/", cli.key)
        assert done.returncode == 0, done.stderr
        saved = {"base_url": cli.base_url, "api_key": cli.key}
        assert json.loads(profile.read_text()) == saved
        assert account_of(shell) == account_of(cli)

    def test_key_from_standard_input_for_a_folder(
        self, shell: Cli, cli: Cli, data_dir: Path
    ) -> None:
        shell.run("login", "--data-dir", str(data_dir), "--key-stdin", stdin=cli.key)
        assert account_of(shell) == account_of(cli)

    def test_an_open_pipe_is_not_read(self, shell: Cli, cli: Cli, data_dir: Path) -> None:
        """Without --key-stdin, the command ends although nobody closes its standard input."""
        for place, code in ((("--base-url", cli.base_url), 2), (("--data-dir", str(data_dir)), 0)):
            process = shell.popen("login", *place)
            assert process.wait(timeout=60) == code
            process.kill()
            process.communicate()

    def test_an_address_with_the_version_of_the_api(
        self, shell: Cli, cli: Cli, profile: Path
    ) -> None:
        assert login(shell, f"{cli.base_url}/v1/", cli.key).returncode == 0
        assert json.loads(profile.read_text())["base_url"] == cli.base_url
        for same in (f"{cli.base_url}/v1", f"{cli.base_url}/v1/"):
            assert account_of(replace(shell, base_url=same)) == account_of(cli)

    def test_key_from_a_terminal_is_not_echoed(self, shell: Cli, cli: Cli, profile: Path) -> None:
        command = ["-m", "stoker", "login", "--base-url", cli.base_url]
        process, terminal = pty.fork()
        if process == 0:
            os.execve(sys.executable, [sys.executable, *command], shell.environment)
        shown = b""
        while b"API key for" not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, f"{cli.key}\n".encode())
        try:
            while piece := os.read(terminal, 1024):
                shown += piece
        except OSError:
            # Linux reports the end of a terminal as an error.
            pass
        os.close(terminal)
        assert os.waitpid(process, 0)[1] == 0, shown
        assert str(cli.key).encode() not in shown
        assert json.loads(profile.read_text())["api_key"] == cli.key

    def test_variables_are_saved(self, shell: Cli, cli: Cli) -> None:
        done = replace(cli, settings=shell.settings).run("login")
        assert done.returncode == 0
        assert "unset STOKER_API_KEY" in done.stderr and "unset STOKER_BASE_URL" in done.stderr
        assert account_of(shell) == account_of(cli)

    def test_a_variables_key_is_not_sent_to_another_address(self, shell: Cli, cli: Cli) -> None:
        local = replace(shell, key="sk-local-secret")
        done = local.run("login", "--base-url", cli.base_url)
        assert (done.returncode, "no terminal to ask for the API key" in done.stderr) == (2, True)
        assert "--key-stdin" in done.stderr
        assert login(local, cli.base_url, cli.key).returncode == 0
        assert account_of(shell) == account_of(cli)

    def test_scopes(self, shell: Cli, cli: Cli, server: Server, tagger: Path) -> None:
        artifact = cli.json("artifacts", "push", str(tagger), "--name", "scopes")
        cli.json("deploy", "scopes", artifact["id"], "--no-wait")
        made = cli.json("keys", "create", "--deployment", "scopes")
        done = login(shell, server.base_url, made["key"])
        assert "scope deployment." in done.stderr
        assert [model["id"] for model in shell.json("models")] == ["scopes"]
        done = login(shell, server.base_url, server.operator_key)
        assert "scope operator." in done.stderr

    @pytest.mark.parametrize(
        ("key", "code", "message"),
        [
            ("sk-wrong-key", 1, "rejects the key from standard input"),
            ("no key", 2, "This is not an API key"),
            ("sk-ä", 2, "This is not an API key"),
            ("", 2, "Standard input has no API key"),
        ],
    )
    def test_a_wrong_key_is_not_saved(
        self, shell: Cli, cli: Cli, profile: Path, key: str, code: int, message: str
    ) -> None:
        done = login(shell, cli.base_url, key)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert not profile.exists()

    def test_a_failed_login_keeps_the_profile(self, shell: Cli, cli: Cli, profile: Path) -> None:
        login(shell, cli.base_url, cli.key)
        before = profile.read_bytes()
        assert login(shell, cli.base_url, "sk-wrong-x").returncode == 1
        assert login(shell, WITHOUT_SERVER, "sk-x-x").returncode == 1
        assert profile.read_bytes() == before

    def test_address_and_folder(self, shell: Cli, data_dir: Path) -> None:
        both = ("--base-url", WITHOUT_SERVER, "--data-dir", str(data_dir))
        assert shell.run("login", *both).returncode == 2


class TestOrder:
    @pytest.fixture
    def signed_in(self, shell: Cli, cli: Cli) -> Cli:
        assert login(shell, cli.base_url, cli.key).returncode == 0
        return shell

    def test_option_then_variable_then_profile(
        self, signed_in: Cli, cli: Cli, server: Server
    ) -> None:
        variable, option = account_cli(server, "variable"), account_cli(server, "option")
        by_variable = replace(variable, settings=signed_in.settings)
        assert account_of(signed_in) == account_of(cli)
        assert account_of(by_variable) == account_of(variable)
        listed = by_variable.json("--api-key", str(option.key), "keys", "list")
        assert listed[0]["account_id"] == account_of(option)

    def test_a_key_without_an_address_does_not_go_to_the_profiles(self, signed_in: Cli) -> None:
        done = replace(signed_in, key="sk-local-secret").run("models")
        assert done.returncode == 1
        assert "http://127.0.0.1:8000" in done.stderr

    def test_the_profiles_key_goes_to_no_other_address(
        self, signed_in: Cli, cli: Cli, server: Server
    ) -> None:
        prefixed = f"{cli.base_url}/prefix"
        for other in (prefixed, cli.base_url.replace("127.0.0.1", "localhost"), WITHOUT_SERVER):
            done = replace(signed_in, base_url=other).run("models")
            assert done.returncode == 2
            assert f"No API key for {other}: you are signed in to {cli.base_url}" in done.stderr
            assert "stoker login --base-url" in done.stderr
            assert signed_in.run("--base-url", other, "models").returncode == 2

    def test_the_profiles_address_is_recognized(self, signed_in: Cli, cli: Cli) -> None:
        for same in (f"{cli.base_url}/", cli.base_url.replace("http:", "HTTP:")):
            assert account_of(replace(signed_in, base_url=same)) == account_of(cli)

    def test_doctor(
        self, signed_in: Cli, shell: Cli, profile: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stoker.cli.doctor.MACHINE", ())
        checks = {check["name"]: check for check in signed_in.json("doctor")["checks"]}
        assert checks["API key"]["found"] == "valid, scope account"
        profile.write_text("{")
        done = shell.run("doctor", "--json")
        [check] = json.loads(done.stdout)["checks"]
        assert (done.returncode, check["status"]) == (1, "fail")
        assert "is not JSON" in check["found"] and "stoker login" in check["hint"]

    def test_logout(self, signed_in: Cli, profile: Path) -> None:
        assert "Signed out" in signed_in.run("logout").stderr
        assert not profile.exists()
        done = signed_in.run("models")
        assert (done.returncode, "stoker login" in done.stderr) == (2, True)
        again = signed_in.run("logout")
        assert (again.returncode, "were not signed in" in again.stderr) == (0, True)


class TestFile:
    @pytest.fixture
    def signed_in(self, shell: Cli, cli: Cli) -> Cli:
        assert login(shell, cli.base_url, cli.key).returncode == 0
        return shell

    def test_readable_by_others(self, signed_in: Cli, profile: Path) -> None:
        profile.chmod(0o644)
        done = signed_in.run("models")
        assert done.returncode == 0
        assert f"Warning: Other users could read {profile}" in done.stderr
        assert stat.S_IMODE(profile.stat().st_mode) == 0o600
        assert "Warning" not in signed_in.run("models").stderr

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "is not JSON"),
            ("[]", "has no 'base_url' or no 'api_key'"),
            ('{"base_url": "http://127.0.0.1:8000"}', "has no 'base_url' or no 'api_key'"),
            ('{"base_url": 1, "api_key": "sk"}', "has no 'base_url' or no 'api_key'"),
        ],
    )
    def test_damaged(
        self, signed_in: Cli, cli: Cli, profile: Path, content: str, message: str
    ) -> None:
        profile.write_text(content)
        done = signed_in.run("models")
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        for fix in ("stoker login", "stoker logout"):
            assert fix in done.stderr
        # The variables need no profile, and a new login replaces it.
        assert replace(cli, settings=signed_in.settings).run("models").returncode == 0
        assert login(signed_in, cli.base_url, cli.key).returncode == 0
        assert signed_in.run("models").returncode == 0

    def test_below_the_home_folder(self, cli: Cli, tmp_path: Path) -> None:
        home = Cli("", settings={"HOME": str(tmp_path), "XDG_CONFIG_HOME": ""})
        login(home, cli.base_url, cli.key)
        assert (tmp_path / ".config" / "stoker" / "profile.json").exists()
        assert account_of(home) == account_of(cli)

    def test_no_folder_for_it(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "config").write_text("")
        blocked = Cli("", settings={"XDG_CONFIG_HOME": str(tmp_path / "config")})
        assert blocked.run("models").returncode == 2
        done = login(blocked, cli.base_url, cli.key)
        assert done.returncode == 1
        assert str(tmp_path / "config") in done.stderr


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ("https://models.example/stoker", True),
        ("https://models.example/stoker/", True),
        ("HTTPS://Models.Example:443/stoker", True),
        ("https://models.example", False),
        ("https://models.example/Stoker", False),
        ("https://models.example/stoker/v1", False),
        ("https://models.example/stoker?x=1", False),
        ("https://models.example/stoker#x", False),
        ("http://models.example/stoker", False),
        ("https://models.example:8443/stoker", False),
        ("https://models.example.evil.example/stoker", False),
        ("https://models.example@evil.example/stoker", False),
        ("https://user:secret@models.example/stoker", False),
        ("https://models.example:port/stoker", False),
        ("https://[::1/stoker", False),
        ("models.example/stoker", False),
        ("", False),
    ],
)
def test_addresses(other: str, is_same: bool) -> None:
    assert Profile("https://models.example/stoker", "sk-x-x").is_for(other) is is_same
