"""The first start of `stoker serve`: readable on a terminal, with a sign-in link and an account."""

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker
from stoker.demo.setup import MODELS
from stoker.server.bootstrap import ACCOUNT_FILE, DEFAULT_ACCOUNT
from tests.cli.support import Cli, environment
from tests.support.server import NO_HUB, WITHOUT_MODELS, Server, running

# The tests read the data folder, and a fleet has no default account.
pytestmark = pytest.mark.one_machine

READY_S = 60
ESCAPE = "\x1b"
LINK = re.compile(r"http://127\.0\.0\.1:\d+/console/#link=(\S+)")
ENTRY = re.compile(r"\d\d:\d\d:\d\d (info   |warning|error  ) \S.*")
SENTENCE = "The food was not good at all."


class Terminal:
    """A `stoker serve` whose streams are a terminal, and the text on it."""

    def __init__(self, data_dir: Path, **env: str) -> None:
        self.data_dir = data_dir
        self._main, terminal = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker", "serve", "--port", "0", "--data-dir", str(data_dir)],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment(**NO_HUB, **WITHOUT_MODELS) | {"NO_COLOR": ""} | env,
        )
        os.close(terminal)
        self._shown = b""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        # Reading fails once the server has ended.
        with contextlib.suppress(OSError):
            while block := os.read(self._main, 4096):
                self._shown += block

    @property
    def text(self) -> str:
        return self._shown.decode().replace("\r\n", "\n")

    def wait_for(self, text: str) -> str:
        """Returns the text on the terminal once it contains `text`."""
        deadline = time.monotonic() + READY_S
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)
        return self.text

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        self._reading.join(10)
        os.close(self._main)


@contextlib.contextmanager
def on_terminal(data_dir: Path, **env: str) -> Iterator[Terminal]:
    terminal = Terminal(data_dir, **env)
    try:
        yield terminal
    finally:
        terminal.stop()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    with on_terminal(tmp_path_factory.mktemp("terminal") / "data") as shown:
        shown.wait_for("Ctrl-C ends the server.")
        yield shown


def address(terminal: Terminal) -> str:
    return json.loads((terminal.data_dir / "server.json").read_text())["base_url"]


def sign_in(base_url: str, link: str) -> httpx.Response:
    return httpx.post(f"{base_url}/console/session", json={"link": link})


class TestOnATerminal:
    def test_the_banner_says_where_everything_is(self, terminal: Terminal) -> None:
        base_url, folder = address(terminal), str(terminal.data_dir)
        _, _, banner = terminal.text.partition("Stoker ")
        first, *lines = banner.splitlines()
        assert first == f"{stoker.__version__} is ready: {base_url}"
        shown = dict(line.strip().split(maxsplit=1) for line in lines if line.startswith("  "))
        assert shown["API"] == f"{base_url}/docs"
        assert shown["data"] == f"folder  {folder}"
        assert shown["console"].startswith(f"{base_url}/console/#link=")
        assert f"  stoker login --data-dir {folder}" in lines

    def test_the_link_signs_in_once(self, terminal: Terminal) -> None:
        [link] = LINK.findall(terminal.text)
        first = sign_in(address(terminal), link)
        assert (first.status_code, first.json()["scope"]) == (200, "operator")
        again = sign_in(address(terminal), link)
        assert again.status_code == 401
        assert "it was used before, or has expired" in again.json()["error"]["message"]

    def test_the_link_is_in_no_file(self, terminal: Terminal) -> None:
        [link] = LINK.findall(terminal.text)
        files = [path for path in terminal.data_dir.rglob("*") if path.is_file()]
        assert len(files) > 3
        assert [path for path in files if link.encode() in path.read_bytes()] == []

    def test_the_commands_lead_to_an_answer(self, terminal: Terminal) -> None:
        """The commands after `stoker login` work as printed, with the account's key."""
        lines = terminal.text.partition("In a second terminal:")[2].splitlines()
        login, push, call = (line.strip() for line in lines if line.startswith("  stoker "))
        assert login.startswith("stoker login")
        cli = Cli(address(terminal), (terminal.data_dir / ACCOUNT_FILE).read_text().strip())
        folder = str(MODELS / "tiny-sentiment")
        pushed = cli.run(*shlex.split(push.replace("FOLDER", shlex.quote(folder)))[1:])
        assert pushed.returncode == 0, pushed.stderr
        answer = cli.json(*shlex.split(call.replace("Some text.", SENTENCE))[1:])
        assert answer[0]["label"] == "negative"

    def test_the_log_is_text_in_colour(self, terminal: Terminal) -> None:
        log = terminal.text.partition("Stoker ")[0].splitlines()
        [serving] = [line for line in log if " serving" in line]
        assert f"{ESCAPE}[32minfo" in serving
        plain = re.sub(rf"{ESCAPE}\[[0-9;]*m", "", serving)
        assert re.fullmatch(ENTRY, plain), plain
        assert f"base_url={address(terminal)}" in plain
        assert "color_message" not in terminal.text

    def test_no_colour_if_the_user_wants_none(self, tmp_path: Path) -> None:
        with on_terminal(tmp_path / "data", NO_COLOR="1") as plain:
            shown = plain.wait_for("Ctrl-C ends the server.")
            assert ESCAPE not in shown
            log = [line for line in shown.partition("Stoker ")[0].splitlines() if line]
            assert log and all(ENTRY.fullmatch(line) for line in log), log

    def test_json_needs_no_banner(self, tmp_path: Path) -> None:
        with on_terminal(tmp_path / "data", STOKER_LOG_FORMAT="json") as quiet:
            quiet.wait_for('"event": "serving"')
        assert all(json.loads(line) for line in quiet.text.splitlines())
        assert "#link=" not in quiet.text


def test_without_a_terminal_the_log_is_json(tmp_path: Path) -> None:
    with running(tmp_path / "data", **WITHOUT_MODELS) as server:
        pass
    entries = [json.loads(line) for line in server.log.read_text().splitlines()]
    [serving] = [entry for entry in entries if entry["event"] == "serving"]
    assert serving == {
        "time": serving["time"],
        "level": "info",
        "logger": "stoker.server.bootstrap",
        "event": "serving",
        "base_url": server.base_url,
        "operator_key_file": str(tmp_path / "data" / "operator-key"),
    }
    assert "#link=" not in server.log.read_text()
    assert not any("color_message" in entry for entry in entries)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path / "data", **WITHOUT_MODELS) as server:
        yield server


def account_key(server: Server) -> str:
    return (server.data_dir / ACCOUNT_FILE).read_text().strip()


def as_operator(server: Server, request: Callable[[httpx.Client], httpx.Response]) -> Any:
    with server.client(server.operator_key) as operator:
        return request(operator).raise_for_status().json()


def accounts(server: Server) -> list[dict[str, Any]]:
    return as_operator(server, lambda operator: operator.get("/v1/accounts"))["data"]


class TestDefaultAccount:
    def test_its_key_works(self, started: Server) -> None:
        [account] = accounts(started)
        assert account["name"] == DEFAULT_ACCOUNT
        path = started.data_dir / ACCOUNT_FILE
        assert path.stat().st_mode & 0o777 == 0o600
        with started.client(account_key(started)) as client, started.account() as other:
            made = client.post("/v1/model-artifacts", json={"display_name": "mine"})
            assert made.status_code == 201
            assert client.get("/v1/api-keys").json()["data"][0]["account_id"] == account["id"]
            assert client.get("/v1/accounts").status_code == 401
            balances = [each.get("/v1/credits").json()["balance"] for each in (client, other)]
            assert balances[0] == balances[1]

    def test_a_second_start_makes_no_other(self, started: Server) -> None:
        before, key = accounts(started), account_key(started)
        started.stop()
        started.start()
        assert accounts(started) == before
        assert account_key(started) == key
        with started.client(key) as client:
            assert client.get("/v1/models").status_code == 200

    def test_a_deleted_one_is_not_made_again(self, started: Server) -> None:
        [account] = accounts(started)
        place = f"/v1/accounts/{account['id']}"
        assert as_operator(started, lambda operator: operator.delete(place))["deleted"]
        started.stop()
        started.start()
        assert accounts(started) == []
        with started.client(account_key(started)) as client:
            assert client.get("/v1/models").status_code == 401

    def test_an_error_names_it_to_operators(self, started: Server) -> None:
        [account] = accounts(started)
        with started.client(started.operator_key) as operator:
            for path in ("/v1/deployments", "/v1/models"):
                message = operator.get(path).json()["error"]["message"]
                assert "in the header x-stoker-account" in message
                assert message.endswith(f"The only account is {account['id']} ('default').")
            started.account().close()
            message = operator.get("/v1/deployments").json()["error"]["message"]
            assert "x-stoker-account" in message and "only account" not in message
        told = Cli(started.base_url, started.operator_key).run("models")
        assert told.returncode == 1 and "with --account" in told.stderr
