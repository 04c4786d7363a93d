"""Our own server for a benchmark: started, filled and stopped; never the user's."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx

from bench.client import Connection
from bench.common import ROOT
from tests.support.server import Server, running


class Service:
    """A running server and an account's key for it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.api: httpx.Client = server.account("bench")
        self.key = str(self.api.headers["authorization"]).removeprefix("Bearer ")

    @property
    def base_url(self) -> str:
        return self.server.base_url

    @property
    def pid(self) -> int:
        if self.server.process is None:
            raise RuntimeError("the server does not run")
        return self.server.process.pid

    def push(self, folder: Path, *arguments: str) -> dict[str, Any]:
        """`stoker artifacts push`, in a process of its own. Raises where it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "stoker", "artifacts", "push", folder, "--json", *arguments],
            cwd=ROOT,
            env={**os.environ, "STOKER_BASE_URL": self.base_url, "STOKER_API_KEY": self.key},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the push failed:\n{done.stderr.decode()[-2000:]}")
        return json.loads(done.stdout)

    def deploy(
        self, folder: Path, model: str, pipeline: str, readiness: str, engine: str = "torch"
    ) -> str:
        """Push and deploy a model folder; the deployment's id."""
        artifact = self.push(folder, "--name", model, "--pipeline", pipeline)
        body = {
            "model": model,
            "artifact_id": artifact["id"],
            "readiness": readiness,
            "engine": engine,
        }
        return self.api.post("/v1/deployments", json=body).raise_for_status().json()["id"]

    def connect(self, path: str) -> Connection:
        return Connection(self.base_url, path, self.key)

    def change(self, deployment: str, action: str, status: str) -> None:
        """`stop` or `start` a deployment and wait for its status."""
        self.api.post(f"/v1/deployments/{deployment}/{action}").raise_for_status()
        self.wait_status(deployment, status)

    def wait_status(self, deployment: str, status: str, timeout: float = 60) -> None:
        found: dict[str, Any] = {}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.api.get(f"/v1/deployments/{deployment}").raise_for_status().json()
            if found["status"] == status:
                return
            time.sleep(0.02)
        raise RuntimeError(f"the deployment is {found['status']}, not {status}: {found['message']}")

    def wait_engine(self, deployment: str, engine: str, timeout: float = 300) -> None:
        """Wait until a deployment's replica runs the model with an engine."""
        found: dict[str, Any] = {}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = self.api.get(f"/v1/deployments/{deployment}").raise_for_status().json()
            if found["status"] == "ready" and {one["engine"] for one in found["workers"]} == {
                engine
            }:
                return
            time.sleep(0.1)
        raise RuntimeError(f"the deployment does not run with {engine}: {found}")

    def wait_calibrated(self, engine: str, models: int = 1, timeout: float = 60) -> None:
        """Wait until the replicas have measured their batch budgets, which they do when idle."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            budgets = (self.server.data_dir / "cache").glob("batch-*.json")
            if sum(f'"{engine}-' in path.read_text() for path in budgets) >= models:
                return
            time.sleep(0.1)

    def wait_converted(self, timeout: float = 180) -> Path | None:
        """Wait for the verdict on the one model; the folder of the conversion that was kept."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for path in (self.server.data_dir / "cache" / "openvino").glob("*/*/verdict.json"):
                verdict = json.loads(path.read_text())
                return path.parent if verdict["forms"] else None
            time.sleep(0.1)
        raise RuntimeError("the model was not converted in time")


@contextlib.contextmanager
def serving(folder: Path, **env: str) -> Generator[Service]:
    """A server with its data below `folder`, ready to fork replicas."""
    with running(folder / "data", STOKER_LOG_LEVEL="warning", **env) as server:
        server.wait_ready()
        service = Service(server)
        try:
            yield service
        finally:
            service.api.close()


def request_body(model: str, text: str) -> bytes:
    return json.dumps({"model": model, "inputs": text}).encode()
