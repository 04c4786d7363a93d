"""Context of a run: machine, card, versions, and the verdicts of `stoker doctor`."""

import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from bench import launching, machine
from bench.common import ROOT
from bench.gpu.card import Card

DOCTOR_S = 120
PACKAGES = ("stoker", "torch", "transformers", "diffusers", "openvino", "vllm")


def facts(*, is_tiny: bool) -> dict[str, Any]:
    """Returns the facts of this machine. Those with text values head the table."""
    about, card = machine.facts(), Card().facts()
    commit = about["commit"] or {"id": _packed_commit()}
    versions = {name: _version(name) for name in PACKAGES}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": "tiny, on the CPU: the figures say nothing" if is_tiny else "full",
        "processor": f"{about['cpu']}, {about['cores']} cores",
        "card": ", ".join(card.values()) or "none",
        "python": platform.python_version(),
        **{name: version for name, version in versions.items() if version},
        "commit": commit["id"] + (" with changes" if commit.get("changed") else ""),
        "machine": about,
        "card_facts": card,
    }


def doctor(environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the checks of `stoker doctor`, with those of the GPU if this version has them."""
    command = [sys.executable, "-m", "stoker", "doctor"]
    has_gpu_checks = "--gpu" in _output([*command, "--help"], environment)
    arguments = ["--gpu", "--json"] if has_gpu_checks else ["--json"]
    output = _output([*command, *arguments], environment)
    try:
        return json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"ok": False, "output": output[-2000:]}


def _packed_commit() -> str:
    """Returns the commit from a file beside the packed folders. See docs/gpu.md."""
    try:
        return (ROOT / "COMMIT").read_text().strip()
    except OSError:
        return "unknown"


def _output(command: list[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            env=launching.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DOCTOR_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {DOCTOR_S} s"
    return done.stdout


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
