"""Runs scripts with version 2 of the openai SDK in a separate process. It is installed next to
version 3.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

SDK2 = Path(sys.prefix) / "openai-2"
_BEGIN = """
import json, sys, openai
assert openai.__version__.startswith("2.")
sdk = openai.OpenAI(max_retries=0)
"""


def need() -> None:
    if not SDK2.is_dir():
        pytest.skip(f"version 2 of the SDK is missing: 'make install-dev' puts it into {SDK2}")


def printed(script: str, account: httpx.Client, *args: str) -> Any:
    """Runs a script and returns the JSON that it prints. The script has a client in `sdk` and its
    arguments in `sys.argv`.
    """
    need()
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + script, *args],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PYTHONPATH": str(SDK2),
            "OPENAI_BASE_URL": f"{account.base_url}/v1",
            "OPENAI_API_KEY": str(account.headers["authorization"]).removeprefix("Bearer "),
        },
    )
    return json.loads(done.stdout)
