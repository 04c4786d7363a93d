"""Preparation processes inherit the walls of their replica."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.sandbox.support import OWN_USER, ROOT, no_walls


@no_walls
def test_a_preparation_process_reaches_nothing_outside() -> None:
    # Pytest's folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="walls-") as name, socket.socket() as listener:
        folder = Path(name)
        folder.chmod(0o755)
        for own in ("own", "data"):
            (folder / own).mkdir()
        secret = folder / "data" / "secret"
        secret.write_text("kept back")
        secret.chmod(0o644)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        question = {
            "folder": str(folder / "own"),
            "kept_back": str(folder / "data"),
            "user": OWN_USER if os.geteuid() == 0 else None,
            "attempts": [
                ("read", str(secret)),
                ("write", str(secret)),
                ("connect", listener.getsockname()[1]),
                ("signal", os.getpid()),
                ("succeed", None),
            ],
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.preparing"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["before"] == [""] * 5
    assert all(outcome["process"][:4]), outcome
    assert outcome["process"] == outcome["replica"]
    assert outcome["process"][4] == ""
