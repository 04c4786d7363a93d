"""Python environments of engines that cannot live in ours: made below the data folder.

An environment is whole when its marker is there, which is written last.
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.base.config import Settings
from stoker.models.engines import catalogue
from stoker.models.engines.record import OwnPython
from stoker.wire.protocol import OwnEnvironment

NAMES = tuple(record.name for record in catalogue.ENGINES.values() if record.environment)
"""The engines that have one."""
INSTALL_S = 3600
_MARKER = "installed.json"

Say = Callable[[str], None]


class Make(Protocol):
    """Makes an engine's environment in a folder; the package and its version.

    Raises `InstallError`.
    """

    def __call__(
        self, folder: Path, say: Say, *, cpu: bool, cache: Path | None = None
    ) -> tuple[str, str]:
        """
        Args:
            cache: what the replicas will be given as theirs, where that is known.
        """
        ...


class InstallError(Exception):
    """An environment could not be made; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One that is there."""

    name: str
    python: Path
    package: str = ""
    """What was installed; empty for an interpreter that the operator has named."""
    version: str = ""


def installed(settings: Settings, name: str) -> Environment | None:
    """An engine's environment, or None where it has none: the operator's own, else the one here."""
    if own := _setting(settings, _of(name).python_setting):
        return Environment(name=name, python=own) if own.is_file() else None
    folder = _folder(settings) / name
    try:
        marker: dict[str, Any] = json.loads((folder / _MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    return Environment(
        name=name,
        python=python_of(folder),
        package=str(marker.get("package", "")),
        version=str(marker.get("version", "")),
    )


def missing(name: str) -> str:
    """What to tell who wants an engine whose environment is not there."""
    setting = _of(name).python_setting
    own = f", or name an interpreter that has it in STOKER_{setting.upper()}" if setting else ""
    return (
        f"The engine '{name}' is not installed on this server: its operator can run "
        f"'stoker engines install {name}'{own}."
    )


def of_replica(settings: Settings, name: str) -> OwnEnvironment | None:
    """What a replica gets to know of an engine's environment; None: it is not there."""
    found = installed(settings, name)
    if found is None:
        return None
    share = gpu_share(settings, name)
    return OwnEnvironment(
        python=str(found.python),
        cache_dir=str(cache_dir(settings, name)),
        gpu_share=1.0 if share is None else share,
    )


def gpu_share(settings: Settings, name: str) -> float | None:
    """The part of a GPU's memory that a replica of an engine takes when it starts; None: it takes
    what it needs, or there is no such engine."""
    return _setting(settings, _of(name).gpu_share_setting) if name in NAMES else None


def install(settings: Settings, name: str, say: Say, *, cpu: bool) -> Environment:
    """Make an engine's environment: some minutes, and gigabytes.

    Raises `InstallError`.
    """
    with _alone(settings, name) as folder:
        if (folder / _MARKER).exists():
            raise InstallError(f"'{name}' is installed already; remove it first.")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            make: Make = catalogue.loaded(_of(name).make)
            package, version = make(folder, say, cpu=cpu, cache=cache_dir(settings, name))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / _MARKER).write_text(json.dumps({"package": package, "version": version}))
    return Environment(name=name, python=python_of(folder), package=package, version=version)


def remove(settings: Settings, name: str) -> bool:
    """Remove an engine's environment; False where there is none."""
    with _alone(settings, name) as folder:
        if not folder.exists():
            return False
        # First, so that nothing starts in what is half gone.
        (folder / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)
    return True


def cache_dir(settings: Settings, name: str) -> Path:
    """Where an engine keeps what is worth it between starts; its bytecode, too."""
    return settings.data_dir.resolve() / "cache" / name


def install_packages(python: Path, *requirements: str) -> None:
    # Bytecode is made where replicas look for it, and of what is imported only.
    call(python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements)


def call(*command: str | Path) -> str:
    """The standard output of a command that has to succeed. Raises `InstallError`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(  # noqa: S603 - our own commands
            command,
            env=kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"A step took longer than {INSTALL_S} s.") from error
    if done.returncode:
        raise InstallError(_last(done.stderr or done.stdout))
    return done.stdout


def _last(output: str) -> str:
    """What a failing command has said at the end."""
    return "\n".join(output.strip().splitlines()[-8:])[-2000:] or "A command failed silently."


@contextmanager
def _alone(settings: Settings, name: str) -> Generator[Path]:
    """The environment's folder, with no other process at it. Raises `InstallError`."""
    parent = _folder(settings)
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError(f"Another process is installing or removing '{name}'.") from None
        yield parent / name


def _of(name: str) -> OwnPython:
    environment = catalogue.ENGINES[name].environment
    if environment is None:
        raise ValueError(f"the engine '{name}' has no environment of its own")
    return environment


def _setting(settings: Settings, name: str | None) -> Any:
    return getattr(settings, name) if name else None


def _folder(settings: Settings) -> Path:
    return settings.data_dir.resolve() / "engines"


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"
