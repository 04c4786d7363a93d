"""Helpers: an upload session on a real server, and requests that are interrupted midway."""

import base64
import hashlib
import random
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.server import Server

ACCOUNT = "acct_test"
ARTIFACTS = "/v1/model-artifacts"
MIB = 1024 * 1024


def data(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def digest(content: bytes) -> dict[str, str]:
    encoded = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return {"content-digest": f"sha-256=:{encoded}:"}


def sent_range(start: int, end: int, total: int) -> dict[str, str]:
    """Returns the header for the bytes from `start` up to, not including, `end`."""
    return {"content-range": f"bytes {start}-{end - 1}/{total}"}


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.text
    return response.json()["error"]


def eventually(condition: Callable[[], bool], timeout: float = 60) -> bool:
    deadline = time.monotonic() + timeout
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


def new_artifact(client: httpx.Client, **fields: Any) -> str:
    body = {"display_name": "model", **fields}
    return client.post(ARTIFACTS, json=body).raise_for_status().json()["id"]


@dataclass
class Uploading:
    """Upload session as a client sees it, with the place of its bytes on the server."""

    server: Server
    client: httpx.Client
    artifact_id: str
    upload_id: str
    part_size: int

    @classmethod
    def open(
        cls, server: Server, client: httpx.Client, artifact_id: str | None = None
    ) -> "Uploading":
        artifact_id = artifact_id or new_artifact(client)
        opened = client.post(f"{ARTIFACTS}/{artifact_id}/uploads").raise_for_status().json()
        return cls(server, client, artifact_id, opened["upload_id"], opened["part_size"])

    @property
    def url(self) -> str:
        return f"{ARTIFACTS}/{self.artifact_id}/uploads/{self.upload_id}"

    @property
    def folder(self) -> Path:
        """Folder with the session's bytes."""
        return self.server.data_dir / "blobs" / "artifacts" / self.artifact_id / self.upload_id

    def stored(self) -> list[bytes]:
        """Returns the contents of all blobs of the session."""
        if not self.folder.exists():
            return []
        paths = sorted(self.folder.iterdir(), key=lambda path: int(path.name.split(".")[0]))
        return [path.read_bytes() for path in paths]

    def put(self, path: str, content: Any = b"", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.put(f"{self.url}/files/{path}", content=content, headers=named)

    def put_part(self, path: str, number: int, content: Any, **headers: str) -> httpx.Response:
        return self.put(f"{path}/parts/{number}", content, **headers)

    def put_folder(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            self.put(path.name, path.read_bytes()).raise_for_status()

    def head(self, path: str) -> httpx.Response:
        return self.client.head(f"{self.url}/files/{path}")

    def offset(self, path: str) -> int:
        return int(self.head(path).raise_for_status().headers["upload-offset"])

    def get(self) -> dict[str, Any]:
        return self.client.get(self.url).raise_for_status().json()

    def file(self, path: str) -> dict[str, Any]:
        return next(file for file in self.get()["files"] if file["path"] == path)

    def complete(self) -> httpx.Response:
        return self.client.post(f"{self.url}/complete")

    def artifact(self) -> dict[str, Any]:
        return self.client.get(f"{ARTIFACTS}/{self.artifact_id}").raise_for_status().json()

    @contextmanager
    def beginning(self, path: str, length: int, content: bytes, **headers: str) -> Iterator["Raw"]:
        """Starts a PUT that announces `length` bytes and sends only `content`."""
        with Raw.connect(self.server) as raw:
            raw.begin(
                f"{self.url}/files/{path}",
                self.client.headers["authorization"],
                {"content-length": str(length), **headers},
            )
            raw.send(content)
            yield raw


class Raw:
    """Connection that sends exactly the bytes passed to it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    @classmethod
    @contextmanager
    def connect(cls, server: Server) -> Iterator["Raw"]:
        address = urlsplit(server.base_url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            yield cls(connection)

    def begin(self, path: str, authorization: str, headers: dict[str, str]) -> None:
        lines = [f"PUT {path} HTTP/1.1", "host: test", f"authorization: {authorization}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode())

    def send(self, content: bytes) -> None:
        self.connection.sendall(content)

    def status(self) -> int:
        return int(self.answer().split(b" ", 2)[1])

    def answer(self) -> bytes:
        """Returns the response's head and the part of its body received with it. Empty if the
        server closed the connection.
        """
        received = b""
        while b"\r\n\r\n" not in received or b"}" not in received:
            try:
                more = self.connection.recv(65536)
            except ConnectionResetError:
                break
            if not more:
                break
            received += more
        return received


def deploy(client: httpx.Client, artifact_id: str, model: str) -> str:
    """Creates a cold deployment of an artifact and returns its id."""
    body = {"model": model, "artifact_id": artifact_id}
    return client.post("/v1/deployments", json=body).raise_for_status().json()["id"]


@contextmanager
def small_files(server: Server, size: int) -> Iterator[None]:
    """Limits the size of the files that a server can write."""
    pid = server.process.pid  # type: ignore[union-attr]
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, unlimited[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
