"""Runs the `stoker` command in this process, or in a separate one for tests that need it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from stoker.cli.main import main
from tests.support.server import Server


def environment(**given: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if "STOKER_" not in name}
    # A developer's own profile must not sign the tests in.
    return inherited | {"NO_COLOR": "1", "XDG_CONFIG_HOME": "/nonexistent"} | given


@dataclass(frozen=True)
class Cli:
    """Runs commands against a server with a key."""

    base_url: str
    """Value of STOKER_BASE_URL. Empty: the variable is not set."""
    key: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        values = {**self.settings}
        if self.base_url:
            values["STOKER_BASE_URL"] = self.base_url
        if self.key:
            values["STOKER_API_KEY"] = self.key
        return environment(**values)

    def popen(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        """Starts the command in a separate process, as a user does.

        The start alone takes a second of a core.
        """
        return subprocess.Popen(
            [sys.executable, "-m", "stoker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            # A shell without job control starts background processes that ignore Ctrl-C. Child
            # processes inherit this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            **options,
        )

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        """Runs the command's own entry point in this process, with its streams and environment."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment, clear=True),
            mock.patch.object(sys, "argv", ["stoker", *arguments]),
            mock.patch.object(sys, "stdin", io.StringIO(stdin)),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def json(self, *arguments: str, stdin: str = "") -> Any:
        done = self.run(*arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def account_cli(server: Server, name: str) -> Cli:
    """Returns a CLI with the key of a new account."""
    with server.account(name) as client:
        return Cli(server.base_url, client.headers["authorization"].removeprefix("Bearer "))


def until(condition: Callable[[], object], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def held_bytes(cli: Cli, artifact_name: str, server: Server) -> int:
    """Returns the number of bytes that the server holds of an artifact's open upload."""
    with server.client(cli.key) as client:
        for artifact in client.get("/v1/model-artifacts").raise_for_status().json()["data"]:
            if artifact["display_name"] == artifact_name and artifact["upload_id"]:
                path = f"/v1/model-artifacts/{artifact['id']}/uploads/{artifact['upload_id']}"
                files = client.get(path).raise_for_status().json()["files"]
                return sum(part["size"] for file in files for part in file["parts"])
    return 0


def write_safetensors(path: Path, size: int, seed: int = 0) -> None:
    """Writes a well-formed file with one tensor of `size` bytes of noise, or slightly more."""
    import random

    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    padded = header.encode().ljust(-(-len(header) // 8) * 8)
    noise = random.Random(seed).randbytes(1 << 20)
    with path.open("wb") as file:
        file.write(len(padded).to_bytes(8, "little") + padded)
        for start in range(0, size, len(noise)):
            # Every block is different.
            block = start.to_bytes(8, "little") + noise[8:]
            file.write(block[: size - start])
