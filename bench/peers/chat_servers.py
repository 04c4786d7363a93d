"""The peers that serve chats: vLLM's CPU build and `transformers serve`, as they come."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.peers import environments
from bench.processes import end, free_port, suspend

START_S = 600


@dataclass(frozen=True)
class ChatServer:
    """How to start one."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What every request to it says."""


def vllm(folder: Path, dtype: str) -> ChatServer:
    command = [
        *(str(environments.vllm()), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--served-model-name", "measured"),
        *("--dtype", dtype, "--host", "127.0.0.1"),
    ]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # By itself it leaves one core to its server: the half of two.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return ChatServer("vllm-cpu", command, environment, {"model": "measured", "ignore_eos": True})


def transformers_serve(folder: Path, dtype: str) -> ChatServer:
    command = [
        *(str(Path(sys.executable).with_name("transformers")), "serve", str(folder)),
        *("--continuous-batching", "--cb-max-memory-percent", "0.2"),
        *("--dtype", dtype, "--device", "cpu", "--host", "127.0.0.1"),
    ]
    environment = {"PYTHONPATH": str(environments.serving())}
    # It refuses what OpenAI does not have. The model with random weights never ends by itself.
    return ChatServer("transformers serve", command, environment, {"model": str(folder)})


def transformers_serve_any() -> ChatServer:
    """It loads the model that a request names, which rules out its continuous batching."""
    command = [
        *(str(Path(sys.executable).with_name("transformers")), "serve"),
        *("--dtype", "float32", "--device", "cpu", "--host", "127.0.0.1"),
    ]
    environment = {"PYTHONPATH": str(environments.serving())}
    return ChatServer("transformers serve", command, environment)


@contextlib.contextmanager
def started(server: ChatServer, log_path: Path) -> Generator[tuple[str, int, float]]:
    """The base URL and process id of a server that was started, and the seconds until it was ready.

    It is suspended then.
    """
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*server.command, "--port", str(port)],
            cwd=log_path.parent,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
                **server.environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # As our replicas are: the kernel may share out its time by session.
            start_new_session=True,
        )
    try:
        _wait_healthy(server.name, base_url, process, log_path)
        took = time.monotonic() - began
        suspend(process.pid)
        yield base_url, process.pid, took
    finally:
        end(process.pid)
        process.wait()


def _wait_healthy(
    name: str, base_url: str, process: "subprocess.Popen[bytes]", log_path: Path
) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base_url}/health", verify=False).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{name} did not start:\n{log_path.read_text()[-3000:]}")
