"""Runs attempts behind walls, in processes of root and of a plain user."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stoker.sandbox import landlock, seccomp
from tests.support import intruder

ROOT = Path(__file__).parents[2]
PLAINLY = Path(intruder.__path__[0], "plainly.py")
PLAIN_USER = 61_000
OWN_USER = 300_500
no_walls = pytest.mark.skipif(
    landlock.version() < 6 or not seccomp.is_known(), reason="this kernel lacks walls"
)


@dataclass
class Confinement:
    """Runs attempts as root with a separate user, as root without one, or as a plain user."""

    kind: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.own, self.kept_back = self.folder / "own", self.folder / "data"
        for folder in (self.own, self.kept_back):
            folder.mkdir()
        if self.kind == "plain" and os.geteuid() == 0:
            os.chown(self.own, PLAIN_USER, PLAIN_USER)

    def ask(self, attempt: str, argument: object = None, **more: object) -> Any:
        question = {
            "attempt": attempt,
            "argument": argument,
            "folder": str(self.own),
            "kept_back": str(self.kept_back),
            "user": OWN_USER if self.kind == "user" else None,
            "alone": False,
            **more,
        }
        is_switched = self.kind == "plain" and os.geteuid() == 0
        switch = [sys.executable, str(PLAINLY), str(PLAIN_USER)] if is_switched else []
        done = subprocess.run(
            [*switch, sys.executable, "-m", "tests.support.confined"],
            input=json.dumps(question),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **self.environment},
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def openings(self, attempt: str, argument: object = None, **more: object) -> list[list[Any]]:
        diagnosis = self.ask(attempt, argument, **more)
        assert diagnosis["problem"]
        assert not diagnosis["bare_problem"]
        return [[*opening.values()] for opening in diagnosis["openings"]]


KINDS = ("user", "root", "plain")


@pytest.fixture(params=KINDS)
def confinement(request: pytest.FixtureRequest) -> Iterator[Confinement]:
    if os.geteuid() != 0 and request.param != "plain":
        pytest.skip("the tests do not run as root")
    # Pytest's folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="walls-") as folder:
        Path(folder).chmod(0o755)
        yield Confinement(request.param, Path(folder))
