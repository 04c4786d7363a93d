"""The fenced blocks of the documentation, and a shell that runs them as a reader does."""

import os
import re
import subprocess
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.ray.support import free_port
from tests.support.server import NO_HUB, ONE_THREAD, USERS

ROOT = Path(__file__).parents[2]
SHELL, PYTHON = {"sh", "bash"}, {"python", "py"}
RUNNABLE = SHELL | PYTHON | {"js"}
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_TIMEOUT_S = 240
_STOP_S = 90
_SHIM = """#!/bin/bash
# Starts servers in the background, and continues once they run. Runs all other commands.
case "$1 $2" in
  serve*) state=server.json; extra="--port $SERVER_PORT" ;;
  "cluster up") state=cluster.json ;;
  "node host"|"node join") state=node.json ;;
  "node head") state=head.json ;;
  *) exec "$PROGRAM" "$@" ;;
esac
data=.data before=
for word in "$@"; do
  [ "$before" = --data-dir ] && data=$word
  before=$word
done
rm -f "$data/$state"
"$PROGRAM" "$@" $extra >&2 &
echo $! >> "$STARTED"
for try in $(seq 1200); do
  [ -e "$data/$state" ] && exit 0
  kill -0 $! || exit 1
  sleep 0.1
done
exit 1
"""
_NEWEST = """#!/bin/bash
# Prints the id of the newest object of a kind.
stoker "$1" list --json | grep -o '"id": *"[^"]*"' | head -n 1 | cut -d'"' -f4
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """The block's first line."""
        return self.text.partition("\n")[0]


def pages() -> list[str]:
    """Returns the documentation's pages, as paths in the repository."""
    others = ["README.md", "CONTRIBUTING.md", "COMPATIBILITY.md", "CHANGELOG.md", "SECURITY.md"]
    others += ["deploy/package.md", "stoker/client/README.md", "bench/README.md"]
    found = [ROOT / name for name in others]
    found += sorted((ROOT / "docs").rglob("*.md"))
    return [str(page.relative_to(ROOT)) for page in found if page.exists()]


def blocks(page: str) -> list[Block]:
    """Returns a page's blocks, in their order."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found[2],
            textwrap.dedent(found[3]),
        )
        for found in _BLOCK.finditer(text)
    ]


@dataclass
class Reader:
    """A reader's shell in a folder of its own."""

    folder: Path
    port: int = 0
    """Port of `http://127.0.0.1:8000`. 0: any free one."""
    python: str = USERS
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        programs = self.folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name, program in (("stoker", _SHIM), ("newest", _NEWEST)):
            (programs / name).write_text(program)
            (programs / name).chmod(0o755)
        (programs / "activate").touch()
        (self.folder / "stoker").symlink_to(ROOT / "stoker")
        self._started = self.folder / "started"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the commands."""
        inherited = {name: value for name, value in os.environ.items() if "STOKER_" not in name}
        real = Path(self.python).parent
        return {
            **inherited,
            **ONE_THREAD,
            **NO_HUB,
            "HOME": str(self.folder),
            "NO_COLOR": "1",
            "PATH": f"{self.folder}/.venv/bin:{real}:{os.environ['PATH']}",
            "PROGRAM": f"{real}/stoker",
            "SERVER_PORT": str(self.port),
            "STARTED": str(self._started),
            "STOKER_BASE_URL": f"http://127.0.0.1:{self.port}",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            **self.env,
        }

    def run(self, script: str, stdin: str = "") -> str:
        """Runs a script that must succeed. Returns its output."""
        output, errors = self.folder / "output", self.folder / "errors"
        script = script.replace("http://127.0.0.1:8000", f"http://127.0.0.1:{self.port}")
        # Files instead of pipes, which servers in the background would keep open.
        with output.open("w") as out, errors.open("w") as err:
            done = subprocess.run(
                ["bash", "-euc", re.sub(r"\bcurl ", "curl -sSf ", script)],
                cwd=self.folder,
                env=self.variables,
                check=False,
                input=stdin,
                stdout=out,
                stderr=err,
                text=True,
                timeout=_TIMEOUT_S,
            )
        assert done.returncode == 0, f"{script}\n{output.read_text()}\n{errors.read_text()[-3000:]}"
        return output.read_text()

    def stop(self) -> None:
        """Stops the servers that scripts started."""
        if not self._started.exists():
            return
        servers: list[psutil.Process] = []
        for pid in reversed(self._started.read_text().split()):
            try:
                server = psutil.Process(int(pid))
                server.terminate()
            except psutil.NoSuchProcess:
                continue
            servers.append(server)
        deadline = time.monotonic() + _STOP_S
        while any(map(_is_running, servers)):
            assert time.monotonic() < deadline, servers
            time.sleep(0.1)


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def replaced(text: str, replacements: Mapping[str, str]) -> str:
    """Replaces a page's placeholders. Raises `ValueError` if the text has none of them."""
    for old, new in replacements.items():
        if old not in text:
            raise ValueError(f"{old!r} is not in the page")
        text = text.replace(old, new)
    return text


def in_order(parts: Sequence[str], text: str) -> bool:
    """Returns True if a text contains all parts, in their order."""
    for part in parts:
        _, found, text = text.partition(part)
        if not found:
            return False
    return True
