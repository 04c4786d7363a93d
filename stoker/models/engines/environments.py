"""Python environments of engines that cannot share the server's, created below the data folder.

An environment is complete when its marker exists. The marker is written last.
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
"""Names of the engines that have an environment."""
INSTALL_S = 3600
_MARKER = "installed.json"

Say = Callable[[str], None]


class Make(Protocol):
    """Creates an engine's environment in a folder. Returns the package and its version.

    Raises `InstallError`.
    """

    def __call__(
        self, folder: Path, say: Say, *, cpu: bool, cache: Path | None = None
    ) -> tuple[str, str]:
        """
        Args:
            cache: the replicas' cache folder, if it is known.
        """
        ...


class InstallError(Exception):
    """An environment could not be created. The message explains why."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Installed environment of an engine."""

    name: str
    python: Path
    package: str = ""
    """Installed package. Empty for an interpreter that the operator named."""
    version: str = ""


def installed(settings: Settings, name: str) -> Environment | None:
    """Returns an engine's environment: the operator's own, otherwise the installed one, or None."""
    if python := _setting(settings, _of(name).python_setting):
        return Environment(name=name, python=python) if python.is_file() else None
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
    """Returns the message for a request for an engine without its environment."""
    setting = _of(name).python_setting
    hint = f", or set STOKER_{setting.upper()} to an interpreter that has it" if setting else ""
    return (
        f"The engine '{name}' is not installed on this server: its operator can run "
        f"'stoker engines install {name}'{hint}."
    )


def of_replica(settings: Settings, name: str) -> OwnEnvironment | None:
    """Returns the description of an engine's environment for a replica. None if it is not
    installed.
    """
    environment = installed(settings, name)
    if environment is None:
        return None
    share = gpu_share(settings, name)
    return OwnEnvironment(
        python=str(environment.python),
        cache_dir=str(cache_dir(settings, name)),
        gpu_share=1.0 if share is None else share,
    )


def gpu_share(settings: Settings, name: str) -> float | None:
    """Returns the share of a GPU's memory that a replica of an engine reserves when it starts.

    None if it uses only what it needs, or if the engine does not exist.
    """
    return _setting(settings, _of(name).gpu_share_setting) if name in NAMES else None


def install(settings: Settings, name: str, say: Say, *, cpu: bool) -> Environment:
    """Creates an engine's environment. This takes some minutes and gigabytes.

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
    """Removes an engine's environment. Returns False if none exists."""
    with _alone(settings, name) as folder:
        if not folder.exists():
            return False
        # Deleted first, so that nothing starts in a half-deleted environment.
        (folder / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)
    return True


def cache_dir(settings: Settings, name: str) -> Path:
    """Returns the folder for files that an engine keeps between starts, including its bytecode."""
    return settings.data_dir.resolve() / "cache" / name


def install_packages(python: Path, *requirements: str) -> None:
    # Replicas compile bytecode later, only of imported modules, into the folder where they look for
    # it.
    call(python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements)


def call(*command: str | Path) -> str:
    """Runs a command and returns its standard output. Raises `InstallError` if it fails."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(  # noqa: S603 - our own commands
            command,
            env=env | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
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
    """Returns the last lines of a failing command's output."""
    return "\n".join(output.strip().splitlines()[-8:])[-2000:] or "A command failed silently."


@contextmanager
def _alone(settings: Settings, name: str) -> Generator[Path]:
    """Yields the environment's folder, locked against other processes. Raises `InstallError`."""
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
        raise ValueError(f"the engine '{name}' has no separate Python environment")
    return environment


def _setting(settings: Settings, name: str | None) -> Any:
    return getattr(settings, name) if name else None


def _folder(settings: Settings) -> Path:
    return settings.data_dir.resolve() / "engines"


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"
