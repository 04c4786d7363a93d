"""A hub of models in this process: the part of the Hugging Face hub's protocol that is needed.

It can be told to misbehave as hubs and what stands before them do.
"""

import contextlib
import hashlib
import json
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LFS_BYTES = 2048
"""Larger files are in large file storage, and known by their SHA-256."""


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    revisions: dict[str, str] = field(default_factory=dict[str, str])
    token: str | None = None
    """Of who may read it; None: everybody."""
    is_gated: bool = False
    """Others than the token's owner are told that it is there."""


@dataclass
class Asked:
    host: str
    path: str
    headers: Mapping[str, str]


@dataclass
class Misbehaviour:
    """What goes wrong. Each is off by itself."""

    hangs_s: float = 0.0
    statuses: list[int] = field(default_factory=list[int])
    """Told in place of the next answers about files."""
    breaks_off: int = 0
    """How many answers about files end in the middle."""
    wrong_bytes: bool = False
    other_size: bool = False
    other_commit: bool = False
    no_ranges: bool = False
    redirects_to: str = ""
    """Where files are looked for in place of `elsewhere`."""
    no_digests: bool = False
    listing: bytes = b""
    """Told in place of a list of files."""


class ModelHub:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.misbehaves = Misbehaviour()
        self.sends_elsewhere = False
        """Whether large files are redirected to another host."""
        self.pace_s = 0.0
        """Pause before each 64 KiB of a file."""
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def elsewhere(self) -> str:
        """The same server by another name, as a host of large files."""
        return f"http://localhost:{self.port}"

    def put(self, repo_id: str, files: Mapping[str, bytes] | Path, revision: str = "main") -> str:
        """A new commit of a repository; its id."""
        if isinstance(files, Path):
            found = {one.relative_to(files).as_posix(): one for one in files.rglob("*")}
            files = {name: one.read_bytes() for name, one in found.items() if one.is_file()}
        repository = self.repositories.setdefault(repo_id, Repository())
        named = f"{repo_id} {revision} {len(repository.commits)}"
        commit = hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest()
        repository.commits[commit] = dict(files)
        repository.revisions[revision] = commit
        return commit

    def paths(self, repo_id: str) -> set[str]:
        """The files that were asked for, of whatever commit."""
        pattern = re.compile(rf"/{re.escape(repo_id)}/resolve/[0-9a-f]{{40}}/(.+)")
        matches = (pattern.fullmatch(unquote(one.path)) for one in self.asked)
        return {match[1] for match in matches if match}

    def note(self, asked: Asked) -> None:
        with self._lock:
            self.asked.append(asked)

    def next_status(self) -> int | None:
        with self._lock:
            return self.misbehaves.statuses.pop(0) if self.misbehaves.statuses else None

    def breaks_off(self) -> bool:
        with self._lock:
            self.misbehaves.breaks_off -= 1
            return self.misbehaves.breaks_off >= 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asks may leave."""


class _Handler(BaseHTTPRequestHandler):
    hub: ModelHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.hub.note(Asked(self.headers["host"], url.path, dict(self.headers)))
        time.sleep(self.hub.misbehaves.hangs_s)
        if match := re.fullmatch(r"/api/models/(.+)/revision/([^/]+)", url.path):
            self._listing(match[1], unquote(match[2]))
        elif match := re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", url.path):
            self._file(match[1], match[2], unquote(match[3]))
        else:
            self._refuse(404, "RepoNotFound")

    def _repository(self, repo_id: str) -> Repository | None:
        """One that may be read; what stands against that is answered."""
        found = self.hub.repositories.get(repo_id)
        given = self.headers.get("authorization")
        is_allowed = found and (found.token is None or given == f"Bearer {found.token}")
        if found and is_allowed:
            return found
        if found and found.is_gated:
            self._refuse(403 if given else 401, "GatedRepo")
        else:
            # As the hub does, which tells nobody what there is.
            self._refuse(401, "RepoNotFound")
        return None

    def _listing(self, repo_id: str, revision: str) -> None:
        repository = self._repository(repo_id)
        if repository is None:
            return
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            self._refuse(404, "RevisionNotFound")
            return
        siblings = [self._sibling(*one) for one in repository.commits[commit].items()]
        told = {"id": repo_id, "sha": commit, "siblings": siblings, "gated": False}
        self._answer(200, self.hub.misbehaves.listing or json.dumps(told).encode())

    def _sibling(self, path: str, content: bytes) -> dict[str, Any]:
        size = len(content) + self.hub.misbehaves.other_size
        git = hashlib.sha1(b"blob %d\x00" % len(content) + content, usedforsecurity=False)
        told: dict[str, Any] = {"rfilename": path, "size": size}
        if self.hub.misbehaves.no_digests:
            return told
        told["blobId"] = git.hexdigest()
        if len(content) >= LFS_BYTES:
            digest = hashlib.sha256(content).hexdigest()
            told["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
        return told

    def _file(self, repo_id: str, commit: str, path: str) -> None:
        is_elsewhere = self.headers["host"].startswith("localhost")
        if is_elsewhere:
            # Whoever has the address may read it.
            repository = self.hub.repositories.get(repo_id)
        elif (repository := self._repository(repo_id)) is None:
            return
        content = repository.commits.get(commit, {}).get(path) if repository else None
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        if status := self.hub.next_status():
            self._refuse(status, "")
            return
        misbehaves = self.hub.misbehaves
        told = "0" * 40 if misbehaves.other_commit else commit
        where = misbehaves.redirects_to or self.hub.elsewhere
        is_sent = self.hub.sends_elsewhere and len(content) >= LFS_BYTES and not is_elsewhere
        if is_sent or misbehaves.redirects_to:
            self._answer(302, b"", {"location": f"{where}{self.path}", "x-repo-commit": told})
            return
        if misbehaves.wrong_bytes and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self._send(content, {"x-repo-commit": told, "etag": '"x"'})

    def _send(self, content: bytes, headers: Mapping[str, str]) -> None:
        given = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if given is None or self.hub.misbehaves.no_ranges:
            self._answer(200, content, headers)
            return
        start, end = int(given[1]), min(int(given[2]) + 1, len(content))
        told = f"bytes {start}-{end - 1}/{len(content)}"
        self._answer(206, memoryview(content)[start:end], {**headers, "content-range": told})

    def _answer(
        self, status: int, body: bytes | memoryview, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if status in (200, 206) and "resolve" in self.path and self.hub.breaks_off():
            self.wfile.write(body[: len(body) // 2])
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        # At once, where nobody asks for a pace: other threads go on meanwhile.
        size = 1 << 16 if self.hub.pace_s else max(1, len(body))
        for start in range(0, len(body), size):
            time.sleep(self.hub.pace_s)
            self.wfile.write(body[start : start + size])

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b'{"error":"no"}', {"x-error-code": code})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: pytest would print it."""


@contextlib.contextmanager
def model_hub() -> Generator[ModelHub]:
    hub = ModelHub()
    try:
        yield hub
    finally:
        hub.close()


def main(repo_id: str, folder: str) -> None:
    """Serve a folder as a repository until standard input ends; prints the address."""
    with model_hub() as hub:
        hub.put(repo_id, Path(folder))
        sys.stdout.write(f"{hub.endpoint}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
