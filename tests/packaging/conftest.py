"""Tools that examine containers and charts, in a separate environment that no user needs."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-packaging" / "bin"
MISSING = pytest.mark.skipif(
    not (TOOLS / "python").exists(), reason=f"{TOOLS} was not found: make install-packaging"
)
_TIMEOUT_S = 120


def tool(*command: str | Path, given: Any = None) -> "subprocess.CompletedProcess[str]":
    """Runs a program of that environment with optional JSON or text as input. Returns the completed
    process.
    """
    return subprocess.run(
        [TOOLS / command[0], *command[1:]],
        input=given if given is None or isinstance(given, str) else json.dumps(given),
        text=True,
        capture_output=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def asked(script: str, given: Any = None) -> Any:
    """Returns the JSON that a Python program prints in that environment."""
    result = tool("python", "-c", script, given=given)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
