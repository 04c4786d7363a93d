"""Every kind of language model for text that docs/tasks.md claims, where users run it.

In one process for many of them, as an engine and not as a deployment each: tests/llm compares all
that the engine can do, and tests/openai the way there.
"""

import os
import subprocess
from pathlib import Path

import pytest

from stoker.llm.model_types import TEXT
from tests.install.conftest import RUNS
from tests.support.server import INSTALLED

pytestmark = RUNS
PROCESSES = 4
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", range(PROCESSES))
def test_write_as_transformers_does(number: int, tmp_path: Path) -> None:
    kinds = sorted(TEXT)[number::PROCESSES]
    done = subprocess.run(
        [str(INSTALLED), "-m", "tests.install.writers", str(tmp_path), *kinds],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == [f"{len(kinds)} kinds"]
