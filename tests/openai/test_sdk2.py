"""The contract once more, with version 2 of the SDK: in a process that has that one on its path."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.openai.conftest import BASE_URL, CACHING, KEY

SDK2 = Path(sys.prefix) / "openai-2"
TESTS = Path(__file__).parents[1]
OTHERS = ("test_responses", "test_vision", "test_speech", "test_openai_embeddings")


def test_the_same_contract(account: httpx.Client, base_url: str, key: str):
    if not SDK2.is_dir():
        pytest.skip(f"version 2 of the SDK is missing: 'make install-dev' puts it into {SDK2}")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"),
            # Chats on one engine; the others' tests know but one.
            *("-p", "no:xdist", "-k", f"not TestRefused and ({CACHING} or {' or '.join(OTHERS)})"),
            *(str(path) for name in ("test_chat", *OTHERS) for path in TESTS.rglob(f"{name}.py")),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(SDK2), BASE_URL: base_url, KEY: key},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    version = subprocess.run(
        [sys.executable, "-c", "import openai; print(openai.__version__)"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SDK2)},
    )
    assert version.stdout.startswith("2."), "it was that version"
