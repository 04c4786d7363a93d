"""Every kind of language model for text that docs/tasks.md claims, in the users' environment.

All kinds run in one process, as engines and not as deployments, so the libraries are imported once.
tests/llm compares all features of the engine, and tests/openai the API.
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
    """Maps each kind to the difference between its answer and that of transformers. Empty if they
    are equal.
    """
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
