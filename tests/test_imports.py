import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "numpy", "safetensors", "tokenizers", "openvino", "diffusers")


def test_gateway_imports_no_engine():
    """The gateway is one event loop. It starts fast, stays small and computes nothing."""
    program = (
        "import json, sys, stoker.server.app; from stoker.runtime import choose; "
        "choose.builder('local'); print(json.dumps(sorted(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=60, cwd=ROOT
    )
    loaded = set(json.loads(result.stdout))
    assert {"stoker.inference.tasks", "stoker.runtime.local.runtime"} <= loaded
    assert loaded & set(HEAVY) == set()
    # Native code that applies a caller's schema or pattern holds the interpreter's lock.
    assert loaded & {"jsonschema_rs", "jsonschema", "regex", "llguidance"} == set()


def test_contracts_are_kept():
    lint = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run(
        [str(lint), "--no-cache"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr
