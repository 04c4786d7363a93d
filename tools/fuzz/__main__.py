"""`python -m tools.fuzz --program PATH --calls 20 --seed 1`: exit code 0 if no problem was
found.
"""

import argparse
import json
import mimetypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from stoker.demo.examples import EXAMPLES, MEDIA_CALLS
from stoker.models.tasks.registry import TASKS
from stoker.server.telemetry.loop_watch import HELD

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "stoker" / "demo"
MODELS, MEDIA = DEMO / "models", DEMO / "media"
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
OF_CHAT = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "The capital of France is"},
    "/v1/responses": {"input": "What is the capital of France?"},
    "/v1/responses/input_tokens": {"input": "What is the capital of France?"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hello!"}]},
}
OF_OTHER_SERVERS: Mapping[str, list[tuple[str, dict[str, Any]]]] = {
    "/embed": [("tiny-encoder", {"inputs": ["How do I bake bread?"]})],
    "/embed_all": [("tiny-encoder", {"inputs": "How do I bake bread?"})],
    "/embed_sparse": [("tiny-fill-mask", {"inputs": "How do I bake bread?"})],
    "/predict": [("tiny-sentiment", {"inputs": [["The food was good."], ["Good.", "Bad."]]})],
    "/similarity": [
        (
            "tiny-encoder",
            {"inputs": {"source_sentence": "Rain?", "sentences": ["Sun.", "Will it rain?"]}},
        )
    ],
    "/rerank": [("tiny-reranker", {"query": "Rain?", "texts": ["Sun.", "Will it rain?"]})],
    "/tokenize": [
        ("tiny-encoder", {"inputs": ["How do I bake bread?"]}),
        ("tiny-chat", {"prompt": "The capital of France is", "return_token_strs": True}),
        ("tiny-chat", CHAT),
    ],
    "/decode": [("tiny-encoder", {"ids": [[12, 34], [56]]})],
    "/detokenize": [("tiny-chat", {"tokens": [12, 34]})],
}
"""Maps a path of Text Embeddings Inference or vLLM to models and valid calls."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503", "504"]
"""
SETTINGS = {
    "STOKER_SOURCE_DIRS": json.dumps([str(MODELS)]),
    "STOKER_REPLICA_THREADS": "1",
    # A generated call may request hours of work.
    "STOKER_INFERENCE_TIMEOUT_S": "5",
    "STOKER_LOOP_STEP_LIMIT_MS": "100",
    "STOKER_LOG_LEVEL": "warning",
}
_START_S = 120.0
_LOAD_S = 300.0


@dataclass(frozen=True)
class Key:
    name: str
    key: str


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path, required=True, help="Schemathesis' own.")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="Where to write what was seen, as JSON.")
    arguments = parser.parse_args()
    # Without this handler, the server would keep running.
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="stoker-fuzz-") as folder:
        place = Path(folder)
        server = _started(place)
        try:
            findings = _fuzz(arguments, place)
        finally:
            server.terminate()
            server.wait(60)
    if arguments.report:
        arguments.report.write_text(json.dumps(findings, indent=1) + "\n")
    print(json.dumps(findings, indent=1))
    return int(
        bool(findings["keys_that_failed"] or findings["server_errors"] or findings["held_loop"])
    )


def _fuzz(given: argparse.Namespace, place: Path) -> dict[str, Any]:
    base_url = json.loads((place / "data" / "server.json").read_text())["base_url"]
    operator = (place / "data" / "operator-key").read_text().strip()
    (place / "schemathesis.toml").write_text(CONFIG)
    keys, world = _world(base_url, operator)
    (place / "world.json").write_text(json.dumps(world))
    began = time.monotonic()
    failed = [key.name for key in keys if _run(given, place, base_url, key)]
    seconds = time.monotonic() - began
    with httpx.Client(trust_env=False, base_url=base_url, headers=_bearer(operator)) as client:
        text = client.get("/metrics").raise_for_status().text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    statuses: Counter[str] = Counter()
    for sample in families["stoker_http_requests"].samples:
        if sample.name.endswith("_total"):
            statuses[sample.labels["status"]] += int(sample.value)
    log = (place / "server.log").read_text()
    longest = families["stoker_event_loop_longest_step_seconds"].samples[0].value
    return {
        "seed": given.seed,
        "calls": sum(statuses.values()),
        "answers": dict(sorted(statuses.items())),
        "seconds": round(seconds),
        "keys_that_failed": failed,
        # The log also contains failures after the response started.
        "server_errors": max(statuses["500"], log.count('"event": "request failed"')),
        "held_loop": [line for line in log.splitlines() if HELD in line][:20],
        "longest_step_ms": round(1000 * longest),
    }


def _end(_signal: int, _frame: object) -> None:
    sys.exit(143)


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _started(place: Path) -> "subprocess.Popen[bytes]":
    data_dir, log = place / "data", place / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "stoker", "serve", "--port", "0", "--data-dir", str(data_dir)],
            env={**os.environ, **SETTINGS},
            stdout=output,
            stderr=output,
        )
    deadline = time.monotonic() + _START_S
    while not (data_dir / "server.json").exists():
        if server.poll() is not None or time.monotonic() > deadline:
            server.kill()
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return server


def _world(base_url: str, operator_key: str) -> tuple[list[Key], dict[str, Any]]:
    """Returns the keys, and the existing objects: all demo models and valid calls of them."""
    with httpx.Client(
        trust_env=False, base_url=base_url, headers=_bearer(operator_key), timeout=60
    ) as client:
        account = client.post("/v1/accounts", json={"name": "fuzz"}).raise_for_status().json()
        body: dict[str, Any] = {"scope": "account", "account_id": account["id"]}
        key = client.post("/v1/api-keys", json=body).raise_for_status().json()["key"]
        client.headers.update(_bearer(key))
        made = [_deploy(client, folder) for folder in sorted(MODELS.iterdir()) if folder.is_dir()]
        _wait(client, made)
        body = {"scope": "deployment", "deployment_ids": [entry["id"] for entry in made]}
        narrow = client.post("/v1/api-keys", json=body).raise_for_status().json()["key"]
        client.headers.update(_bearer(operator_key))
        existing_keys = (
            client.get("/v1/api-keys", params={"order": "asc"}).raise_for_status().json()
        )
    keys = [
        Key("an account's", key),
        Key("a deployment's", narrow),
        Key("none", "sk-0-' OR 1=1 --"),
        Key("the operator's", operator_key),
    ]
    objects = {
        "deployment_id": [{"deployment_id": entry["id"]} for entry in made],
        "account_id": [{"account_id": account["id"]}],
    }
    own_key_id = next(
        entry["id"] for entry in existing_keys["data"] if entry["scope"] == "operator"
    )
    return keys, {"calls": _calls(), "there": objects, "own_key_id": own_key_id}


def _deploy(client: httpx.Client, folder: Path) -> dict[str, Any]:
    # Loaded immediately, so that calls meet loaded models.
    body = {"model": folder.name, "source": str(folder), "readiness": "warm"}
    return client.post("/v1/deployments", json=body).raise_for_status().json()


def _wait(client: httpx.Client, made: list[dict[str, Any]]) -> None:
    deadline = time.monotonic() + _LOAD_S
    for deployment in made:
        while time.monotonic() < deadline:
            state = client.get(f"/v1/deployments/{deployment['id']}").raise_for_status().json()
            if state["status"] == "ready":
                break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"{deployment['model']} is not ready")


def _calls() -> dict[str, list[dict[str, Any]]]:
    """Maps each path to valid calls."""
    calls: dict[str, list[dict[str, Any]]] = {
        path: [{"model": "tiny-chat", "body": body, "files": {}}] for path, body in OF_CHAT.items()
    }
    examples = [(TASKS[name].path, example) for name, example in EXAMPLES.items()]
    for path, example in [*examples, *MEDIA_CALLS.items()]:
        files = {
            name: {"path": str(MEDIA / file), "type": mimetypes.guess_type(file)[0]}
            for name, file in example.files.items()
        }
        call = {"model": example.model, "body": dict(example.body), "files": files}
        calls.setdefault(path, []).append(call)
    calls["/v2/rerank"] = calls["/v1/rerank"]
    for path, valid in OF_OTHER_SERVERS.items():
        calls[path] = [{"model": model, "body": body, "files": {}} for model, body in valid]
    calls["/rerank"] += calls["/v1/rerank"]
    return calls


def _run(given: argparse.Namespace, place: Path, base_url: str, key: Key) -> int:
    print(f"with {key.name} key …", flush=True)
    program = str(given.program.absolute())
    command = [
        *(program, "--config-file", str(place / "schemathesis.toml")),
        *("run", f"{base_url}/openapi.json"),
        *("--header", f"Authorization: Bearer {key.key}", "--checks", ",".join(CHECKS)),
        *("--max-examples", str(given.calls), "--seed", str(given.seed), "--request-timeout", "60"),
        # The console delays callers that fail to sign in, and the event stream never ends.
        *("--exclude-path-regex", "^/(metrics|docs|console|v1/events)"),
        *("--phases", "examples,coverage,fuzzing"),
        *("--warnings", "off", "--no-color"),
    ]
    env = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(Path(__file__).parent),
        "FUZZ_WORLD": str(place / "world.json"),
        "FUZZ_SEED": str(given.seed),
    }
    # Schemathesis stores its findings in its working directory.
    done = subprocess.run(command, cwd=place, env=env, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
