"""Tests of the contract with version 2 of the SDK, in a process with that version on its path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.openai.conftest import BASE_URL, CACHING, ENGINES, KEY
from tests.support import sdk2

SHAPES = ("TestModels", "TestStream", "TestTools", "TestForms", "TestCompletions")
"""Test classes about the objects that an SDK builds. The others concern only the server."""
WANTED = " and not ".join(
    [f"({' or '.join(SHAPES)})", *(engine for engine in ENGINES if engine != CACHING)]
)


@pytest.mark.usefixtures("random_model")
def test_the_same_contract(base_url: str, key: str):
    sdk2.need()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"),
            *("-p", "no:xdist", "-k", WANTED),
            *(
                str(Path(__file__).with_name(name))
                for name in ("test_chat.py", "test_responses.py", "test_tools_and_forms.py")
            ),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(sdk2.SDK2), BASE_URL: base_url, KEY: key},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
