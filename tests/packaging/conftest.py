"""Tools that examine containers, charts and distributions, in a separate environment that no user
needs.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import distributions
from tools.distributions import Distributions

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


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Returns the wheel and the source distribution of this checkout."""
    if not (TOOLS / "python").exists():
        pytest.skip(MISSING.kwargs["reason"])
    # Commands and URLs must quote the space.
    return distributions.build(
        ROOT, tmp_path_factory.mktemp("built") / "a release", TOOLS / "python"
    )
