"""A model hub in this process. Implements the needed part of the Hugging Face hub's protocol.

It can be set to misbehave as hubs and their proxies do.
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
"""Minimum size in bytes of files in large file storage, which are identified by their SHA-256."""


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict[str, dict[str, bytes]])
    revisions: dict[str, str] = field(default_factory=dict[str, str])
    token: str | None = None
    """Token that allows reading. None means that everyone may read."""
    is_gated: bool = False
    """True if callers without the token can see that the repository exists."""


@dataclass
class Asked:
    host: str
    path: str
    headers: Mapping[str, str]


@dataclass
class Misbehaviour:
    """Faults of the hub. All are off by default."""

    hangs_s: float = 0.0
    statuses: list[int] = field(default_factory=list[int])
    """Statuses of the next responses for files."""
    breaks_off: int = 0
    """Number of file responses that break off in the middle."""
    wrong_bytes: bool = False
    other_size: bool = False
    other_commit: bool = False
    no_ranges: bool = False
    redirects_to: str = ""
    """Redirect target for files, instead of `elsewhere`."""
    no_digests: bool = False
    listing: bytes = b""
    """Response body instead of a list of files."""


class ModelHub:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.misbehaves = Misbehaviour()
        self.sends_elsewhere = False
        """True if large files are redirected to another host."""
        self.pace_s = 0.0
        """Pause in seconds before each 64 KiB of a file."""
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
        """URL of the same server under another name, used as the host of large files."""
        return f"http://localhost:{self.port}"

    def put(self, repo_id: str, files: Mapping[str, bytes] | Path, revision: str = "main") -> str:
        """Adds a commit to a repository. Returns its id."""
        if isinstance(files, Path):
            paths_by_name = {path.relative_to(files).as_posix(): path for path in files.rglob("*")}
            files = {
                name: path.read_bytes() for name, path in paths_by_name.items() if path.is_file()
            }
        repository = self.repositories.setdefault(repo_id, Repository())
        named = f"{repo_id} {revision} {len(repository.commits)}"
        commit = hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest()
        repository.commits[commit] = dict(files)
        repository.revisions[revision] = commit
        return commit

    def paths(self, repo_id: str) -> set[str]:
        """Returns the requested files of any commit."""
        pattern = re.compile(rf"/{re.escape(repo_id)}/resolve/[0-9a-f]{{40}}/(.+)")
        matches = (pattern.fullmatch(unquote(request.path)) for request in self.asked)
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
        """Ignores errors, because clients may disconnect."""


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
        """Returns a repository that the caller may read. Otherwise sends an error response and
        returns None.
        """
        repository = self.hub.repositories.get(repo_id)
        authorization = self.headers.get("authorization")
        is_allowed = repository and (
            repository.token is None or authorization == f"Bearer {repository.token}"
        )
        if repository and is_allowed:
            return repository
        if repository and repository.is_gated:
            self._refuse(403 if authorization else 401, "GatedRepo")
        else:
            # Like the hub, does not reveal which repositories exist.
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
        siblings = [self._sibling(*item) for item in repository.commits[commit].items()]
        listing = {"id": repo_id, "sha": commit, "siblings": siblings, "gated": False}
        self._answer(200, self.hub.misbehaves.listing or json.dumps(listing).encode())

    def _sibling(self, path: str, content: bytes) -> dict[str, Any]:
        size = len(content) + self.hub.misbehaves.other_size
        git = hashlib.sha1(b"blob %d\x00" % len(content) + content, usedforsecurity=False)
        entry: dict[str, Any] = {"rfilename": path, "size": size}
        if self.hub.misbehaves.no_digests:
            return entry
        entry["blobId"] = git.hexdigest()
        if len(content) >= LFS_BYTES:
            digest = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
        return entry

    def _file(self, repo_id: str, commit: str, path: str) -> None:
        is_elsewhere = self.headers["host"].startswith("localhost")
        if is_elsewhere:
            # Anyone with the URL may read it.
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
        sent_commit = "0" * 40 if misbehaves.other_commit else commit
        where = misbehaves.redirects_to or self.hub.elsewhere
        is_sent = self.hub.sends_elsewhere and len(content) >= LFS_BYTES and not is_elsewhere
        if is_sent or misbehaves.redirects_to:
            self._answer(
                302, b"", {"location": f"{where}{self.path}", "x-repo-commit": sent_commit}
            )
            return
        if misbehaves.wrong_bytes and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self._send(content, {"x-repo-commit": sent_commit, "etag": '"x"'})

    def _send(self, content: bytes, headers: Mapping[str, str]) -> None:
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if byte_range is None or self.hub.misbehaves.no_ranges:
            self._answer(200, content, headers)
            return
        start, end = int(byte_range[1]), min(int(byte_range[2]) + 1, len(content))
        content_range = f"bytes {start}-{end - 1}/{len(content)}"
        self._answer(
            206, memoryview(content)[start:end], {**headers, "content-range": content_range}
        )

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
        # Sent at once without a pace, so that other threads run meanwhile.
        size = 1 << 16 if self.hub.pace_s else max(1, len(body))
        for start in range(0, len(body), size):
            time.sleep(self.hub.pace_s)
            self.wfile.write(body[start : start + size])

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b'{"error":"no"}', {"x-error-code": code})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs nothing, because pytest would print it."""


@contextlib.contextmanager
def model_hub() -> Generator[ModelHub]:
    hub = ModelHub()
    try:
        yield hub
    finally:
        hub.close()


def main(repo_id: str, folder: str) -> None:
    """Serves a folder as a repository until standard input ends. Prints the address."""
    with model_hub() as hub:
        hub.put(repo_id, Path(folder))
        sys.stdout.write(f"{hub.endpoint}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
