"""Every kind of language model for text that docs/tasks.md claims, where users run it.

All in one process, which imports the libraries once, as an engine and not as a deployment each:
tests/llm compares all that the engine can do, and tests/openai the way there.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from stoker.models.llm.model_types import TEXT
from tests.install.conftest import RUNS
from tests.support.server import INSTALLED

pytestmark = RUNS
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Kind → how its answer differs from that of transformers; empty: it does not."""
    folder = tmp_path_factory.mktemp("writers")
    done = subprocess.run(
        [str(INSTALLED), "-m", "tests.install.writers", str(folder), *sorted(TEXT)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=450,
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("kind", sorted(TEXT))
def test_writes_as_transformers_does(kind: str, differences: dict[str, str]) -> None:
    assert differences[kind] == ""
