"""Clean environments, with the shell of a newcomer."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.doc_blocks import Block
from tests.support.server import INSTALLED
from tools.distributions import Distributions

NEEDS_LIBRARIES = pytest.mark.skipif(
    not INSTALLED.exists(), reason="make install-alone makes the environment"
)
_TIMEOUT_S = 180


def site_packages(environment: Path) -> Path:
    (folder,) = (environment / "lib").glob("python*/site-packages")
    return folder


@dataclass(frozen=True)
class CleanEnvironment:
    """A virtual environment, with a home and a working folder that are empty."""

    folder: Path

    @property
    def venv(self) -> Path:
        return self.work / ".venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @classmethod
    def make(cls, folder: Path, *options: str) -> "CleanEnvironment":
        """Creates the environment.

        Args:
            options: options of `python -m venv`.
        """
        made = cls(folder)
        for name in ("home", "work"):
            (folder / name).mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", *options, made.venv], check=True)
        return made

    @classmethod
    def by_page(cls, folder: Path, block: Block, built: Distributions) -> "CleanEnvironment":
        """Creates the environment with Stoker by a page's commands, next to the wheel and the pins.

        A last line `stoker …` is left to the caller.
        """
        made = cls(folder)
        for path in (folder / "home", made.work, made.programs):
            path.mkdir(parents=True)
        (made.programs / "python3").symlink_to(Path(sys.executable).resolve())
        for file in (built.wheel, built.wheel.with_name("constraints.txt")):
            shutil.copy(file, made.work)
        create, *install = block.text.splitlines()
        made.shell(create)
        made.add_libraries()
        if install[-1].startswith("stoker "):
            install.pop()
        # Fails if a library of the wheel's metadata is missing or has another release.
        made.shell("\n".join(install))
        return made

    @property
    def programs(self) -> Path:
        """Folder of the `python3` that a newcomer has."""
        return self.folder / "programs"

    def add_libraries(self) -> None:
        """Adds the libraries of users, but not their Stoker."""
        # A path in a .pth file adds no further .pth files, such as that of an editable Stoker.
        libraries = site_packages(INSTALLED.parents[1])
        (site_packages(self.venv) / "libraries.pth").write_text(f"{libraries}\n")
        # An older one than the libraries want, which Python 3.11 brings along.
        for shadow in site_packages(self.venv).glob("setuptools*"):
            shutil.rmtree(shadow)

    def variables(self, **given: str) -> dict[str, str]:
        path = f"{self.python.parent}:{self.programs}:/usr/local/bin:/usr/bin:/bin"
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
        return {"PATH": path, "HOME": str(self.folder / "home"), **pip, **given}

    def attempt(self, script: str, **given: str) -> "subprocess.CompletedProcess[str]":
        """Runs a script of the shell in the working folder.

        Args:
            given: environment variables.
        """
        return subprocess.run(
            ["bash", "-euc", script],
            cwd=self.work,
            env=self.variables(**given),
            capture_output=True,
            check=False,
            text=True,
            timeout=_TIMEOUT_S,
        )

    def shell(self, script: str, **given: str) -> str:
        """Returns the output of a script of the shell that succeeds."""
        done = self.attempt(script, **given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    @contextlib.contextmanager
    def started(self, command: str) -> Iterator[Path]:
        """Starts `stoker COMMAND` in an empty folder. Yields the data folder, with server.json.
        Checks that the command stops cleanly.
        """
        folder, log = self.folder / command, self.folder / f"{command}.log"
        folder.mkdir()
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["stoker", command, "--port", "0"],
                executable=self.python.with_name("stoker"),
                cwd=folder,
                env=self.variables(),
                stdout=output,
                stderr=output,
            )
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while not (folder / ".data" / "server.json").exists():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield folder / ".data"
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(_TIMEOUT_S)
        assert code == 0, log.read_text()
