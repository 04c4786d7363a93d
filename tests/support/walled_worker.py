"""Puts up the walls of a prepared worker and runs attempts on files inside them.

Reads a `WorkerSpec` in a line of JSON and prints `ready`. Then reads pairs of an attempt and a
path, each in a line of JSON, and prints `done` or the error's name.
"""

import json
import os
import sys
from pathlib import Path

import msgspec

from stoker.replica import walls
from stoker.wire.protocol import WorkerSpec


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"changed")


def _append_after_chmod(path: Path) -> None:
    path.chmod(0o666)
    _append(path)


ATTEMPTS = {
    "read": Path.read_bytes,
    "list": os.listdir,
    "append": _append,
    "append after chmod": _append_after_chmod,
    "truncate": lambda path: os.truncate(path, 0),
    "remove": Path.unlink,
    "create": Path.touch,
    "rename": lambda path: path.rename("moved"),
    "link and append": lambda path: (os.link(path, "linked"), _append(Path("linked"))),
}


def main() -> None:
    walls.around_worker(msgspec.json.decode(sys.stdin.readline(), type=WorkerSpec))
    print("ready", flush=True)
    for line in sys.stdin:
        attempt, path = json.loads(line)
        try:
            ATTEMPTS[attempt](Path(path))
            print("done", flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)


if __name__ == "__main__":
    main()
