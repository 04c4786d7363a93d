"""The `stoker` command as a user runs it: a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.server import Server


def environment(**given: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if "STOKER_" not in name}
    return inherited | {"NO_COLOR": "1"} | given


@dataclass(frozen=True)
class Cli:
    """Runs commands against a server with a key."""

    base_url: str
    key: str | None = None

    def popen(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        given = {"STOKER_BASE_URL": self.base_url}
        if self.key:
            given["STOKER_API_KEY"] = self.key
        return subprocess.Popen(
            [sys.executable, "-m", "stoker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**given),
            **options,
        )

    def run(self, *arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        process = self.popen(*arguments)
        out, err = process.communicate(stdin, timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, stdin: str = "") -> Any:
        done = self.run(*arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def account_cli(server: Server, name: str) -> Cli:
    """A CLI with the key of a new account."""
    with server.account(name) as client:
        return Cli(server.base_url, client.headers["authorization"].removeprefix("Bearer "))


def restart(server: Server) -> None:
    """Start a server again on the port and the data folder that it had."""
    port = server.base_url.rsplit(":", 1)[1]
    (server.data_dir / "server.json").unlink()
    arguments = ["serve", "--port", port, "--data-dir", str(server.data_dir)]
    with server.log.open("ab") as log:
        server.process = subprocess.Popen(
            [sys.executable, "-m", "stoker", *arguments], stdout=log, stderr=log
        )
    until((server.data_dir / "server.json").exists)


def until(condition: Callable[[], object], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def held_bytes(cli: Cli, artifact_name: str, server: Server) -> int:
    """What the server holds of an artifact's open upload."""
    with server.client(cli.key) as client:
        for artifact in client.get("/v1/model-artifacts").raise_for_status().json()["data"]:
            if artifact["display_name"] == artifact_name and artifact["upload_id"]:
                path = f"/v1/model-artifacts/{artifact['id']}/uploads/{artifact['upload_id']}"
                files = client.get(path).raise_for_status().json()["files"]
                return sum(part["size"] for file in files for part in file["parts"])
    return 0


def write_safetensors(path: Path, size: int, seed: int = 0) -> None:
    """A well-formed file with one tensor of `size` bytes of noise, or little more."""
    import random

    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    padded = header.encode().ljust(-(-len(header) // 8) * 8)
    noise = random.Random(seed).randbytes(1 << 20)
    with path.open("wb") as file:
        file.write(len(padded).to_bytes(8, "little") + padded)
        for start in range(0, size, len(noise)):
            # No two parts are the same.
            block = start.to_bytes(8, "little") + noise[8:]
            file.write(block[: size - start])
