"""What looks at containers and charts, in an environment of its own: no user needs any of it."""

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
    """What a program of that environment says, given some JSON or text."""
    return subprocess.run(
        [TOOLS / command[0], *command[1:]],
        input=given if given is None or isinstance(given, str) else json.dumps(given),
        text=True,
        capture_output=True,
        check=False,
        timeout=_TIMEOUT_S,
    )


def asked(script: str, given: Any = None) -> Any:
    """The JSON that a Python program prints there."""
    found = tool("python", "-c", script, given=given)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)
