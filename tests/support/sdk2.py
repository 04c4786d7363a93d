"""Version 2 of the openai SDK, which lies beside version 3: scripts in a process of their own."""

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
    """What a script prints as JSON; it finds a client in `sdk`, its arguments in `sys.argv`."""
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
