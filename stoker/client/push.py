"""Uploads files in parallel parts with digests, and resumes interrupted uploads.

The client keeps no state. The server lists the parts that it holds with their SHA-256, and parts
that match the local files are not sent again.
"""

import base64
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .client import Client
from .errors import ApiError, StokerError, Stopped
from .parallel import in_parallel
from .request import ApiRequest, JsonObject, quoted
from .retry import Retry
from .selection import LocalFile
from .upload_session import ARTIFACTS, Part, RemoteFile, UploadSession, session_path

# Small enough for a smooth progress bar and a quick stop, large enough to be efficient.
CHUNK_BYTES = 256 * 1024
ROUNDS = 3


class PushListener(Protocol):
    """Receives the progress of a push. Called from several threads."""

    def advance(self, count: int) -> None:
        """Adds sent bytes. Negative if a part must be sent again."""

    def file_done(self, path: str) -> None:
        """Called once the server has a whole file."""

    def note(self, message: str) -> None:
        """Prints a message to the user."""


class Uploader:
    """Uploads one selection of files to one server."""

    def __init__(
        self,
        client: Client,
        files: Sequence[LocalFile],
        progress: PushListener,
        *,
        parallel: int = 4,
        retry: Retry | None = None,
    ) -> None:
        self._client = client
        self._files = files
        self._progress = progress
        self._parallel = parallel
        self._retry = retry or Retry(on_wait=lambda why: progress.note(f"{why} Retrying."))
        # SHA-256 in hex of the local parts read so far.
        self._digests: dict[tuple[str, int], str] = {}

    def create_artifact(self, name: str, pipeline: str | None) -> JsonObject:
        body = {"display_name": name} | ({"pipeline": pipeline} if pipeline else {})
        return self._client.create(ARTIFACTS, body, self._retry)

    def artifact(self, artifact_id: str) -> JsonObject:
        return self._get(f"{ARTIFACTS}/{quoted(artifact_id)}")

    def unfinished(self, name: str, pipeline: str | None) -> list[JsonObject]:
        """Returns the artifacts of this name with an open upload, newest first."""
        artifacts = self._retry.run(lambda: list(self._client.pages(ARTIFACTS)))
        return [
            artifact
            for artifact in artifacts
            if artifact["display_name"] == name
            and artifact["upload_id"]
            and artifact["status"] in ("uploading", "failed")
            and pipeline in {None, artifact["pipeline"]}
        ]

    def session(self, name: str, pipeline: str | None, artifact_id: str | None) -> UploadSession:
        """Returns the session of an interrupted push of these files, or a new one."""
        if artifact_id:
            return self.resume(self.artifact(artifact_id)) or self.open(artifact_id)
        for candidate in self.unfinished(name, pipeline):
            if session := self.resume(candidate):
                return session
        return self.open(self.create_artifact(name, pipeline)["id"])

    def open(self, artifact_id: str) -> UploadSession:
        """Opens a new session. An open session of the artifact is replaced."""
        path = f"{ARTIFACTS}/{quoted(artifact_id)}/uploads"
        # The server reserves this size for the session, or rejects it before any data is sent.
        body = {"size_bytes": sum(file.size for file in self._files)}
        opened = self._retry.run(lambda: self._client.post(path, body))
        return UploadSession(artifact_id, opened["upload_id"], opened["part_size"], {})

    def resume(self, artifact: JsonObject) -> UploadSession | None:
        """Returns the artifact's open session if it holds some of these files and nothing else.

        If the server rejected the session's files, changed files are sent again and missing files
        are deleted from the session.
        """
        if not artifact["upload_id"]:
            return None
        is_refused = artifact["status"] == "failed"
        session = self._fetched(artifact["id"], artifact["upload_id"])
        if session is None or (session.stale(self._files) and not is_refused):
            return None
        received = [part for part in self._parts(session) if session.digest(part)]
        if not received:
            return None
        self._progress.note("Comparing local files with the parts on the server …")
        self._read_in_parallel(received, lambda _part, _data: None)
        changed = len(self._missing(session, received))
        if changed == len(received) or (changed and not is_refused):
            return None
        return self._without_stale(session)

    def _without_stale(self, session: UploadSession) -> UploadSession:
        stale = session.stale(self._files)
        for path in stale:
            self._retry.run(
                lambda path=path: self._client.delete(f"{session.path}/files/{quoted(path)}")
            )
        return self._still_open(session) if stale else session

    def send(self, session: UploadSession) -> None:
        """Sends missing parts until the server lists every part with the local digest."""
        for _ in range(ROUNDS):
            missing = self._missing(session, self._parts(session))
            lacking = Counter(part.file.path for part in missing)
            for file in self._files:
                if file.path not in lacking:
                    self._progress.file_done(file.path)
            if not missing:
                return
            self._send_parts(session, missing, lacking)
            session = self._still_open(session)
        raise StokerError(
            "The server lists different parts than were sent.",
            hint="Check that no other push to this artifact is running, then push again.",
        )

    def complete(self, session: UploadSession) -> JsonObject:
        """Completes the session. Returns the inspected artifact, `ready` or `failed`."""
        return self._retry.run(lambda: self._client.post(f"{session.path}/complete"))["artifact"]

    def held_bytes(self, session: UploadSession) -> int:
        return sum(part.size for part in self._parts(session) if session.digest(part))

    def _get(self, path: str) -> JsonObject:
        return self._retry.run(lambda: self._client.get(path))

    def _fetched(self, artifact_id: str, upload_id: str) -> UploadSession | None:
        """Returns a session and its parts, or None if it is no longer open."""
        try:
            upload = self._get(session_path(artifact_id, upload_id))
        except ApiError as error:
            if error.problem.code == "upload_closed":
                return None
            raise
        if upload["status"] != "open":
            return None
        files = {file["path"]: RemoteFile.read(file) for file in upload["files"]}
        return UploadSession(artifact_id, upload_id, upload["part_size"], files)

    def _still_open(self, session: UploadSession) -> UploadSession:
        fetched = self._fetched(session.artifact_id, session.upload_id)
        if fetched is None:
            raise StokerError("Another client completed or replaced this upload.")
        return fetched

    def _parts(self, session: UploadSession) -> Iterator[Part]:
        for file in self._files:
            yield from session.parts_of(file)

    def _missing(self, session: UploadSession, parts: Iterator[Part] | list[Part]) -> list[Part]:
        """Returns the parts that the server lacks or holds with a different digest."""
        return [
            part
            for part in parts
            if (remote_digest := session.digest(part)) is None
            or remote_digest != self._digests.get(part.key)
        ]

    def _send_parts(self, session: UploadSession, parts: list[Part], lacking: Counter[str]) -> None:
        lock = threading.Lock()

        def send(part: Part, data: memoryview) -> None:
            self._send_part(session, part, data)
            with lock:
                lacking[part.file.path] -= 1
                if not lacking[part.file.path]:
                    self._progress.file_done(part.file.path)

        self._read_in_parallel(parts, send)
        for file in self._files:
            if file.has_changed():
                raise StokerError(
                    f"{file.path} changed during the push.", hint="Push the folder again."
                )

    def _send_part(self, session: UploadSession, part: Part, data: memoryview) -> None:
        digest = bytes.fromhex(self._digests[part.key])
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(part.size),
            "content-digest": f"sha-256=:{base64.b64encode(digest).decode()}:",
        }
        if part.size:
            last = part.offset + part.size - 1
            headers["content-range"] = f"bytes {part.offset}-{last}/{part.file.size}"

        def attempt() -> None:
            body = _Body(data, self._progress, self._retry.stop)
            path = session.file_path(part)
            try:
                self._client.json(
                    ApiRequest(method="PUT", path=path, headers=headers, content=body)
                )
            except BaseException:
                self._progress.advance(-body.sent)
                raise

        self._retry.run(attempt)

    def _read_in_parallel(self, parts: list[Part], use: Callable[[Part, memoryview], None]) -> None:
        """Reads, digests and processes parts. Each thread keeps one part in memory."""
        largest = max(part.size for part in parts)

        def worker() -> Callable[[Part], None]:
            buffer = memoryview(bytearray(largest))

            def do(part: Part) -> None:
                data = buffer[: part.size]
                _read(part, data)
                self._digests[part.key] = hashlib.sha256(data).hexdigest()
                use(part, data)

            return do

        threads = min(self._parallel, len(parts))
        in_parallel(parts, worker, threads=threads, stop=self._retry.stop)


def _read(part: Part, into: memoryview) -> None:
    """Reads a part into the buffer. Raises `StokerError` if the file has become too short."""
    with part.file.source.open("rb", buffering=0) as file:
        file.seek(part.offset)
        filled = 0
        while filled < part.size:
            count = file.readinto(into[filled:])
            if not count:
                raise StokerError(f"{part.file.path} became shorter during the push.")
            filled += count


class _Body:
    """Yields a part as request body chunks and reports progress."""

    def __init__(self, data: memoryview, progress: PushListener, stop: threading.Event) -> None:
        self._data = data
        self._progress = progress
        self._stop = stop
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), CHUNK_BYTES):
            if self._stop.is_set():
                raise Stopped
            chunk = bytes(self._data[start : start + CHUNK_BYTES])
            yield chunk
            self.sent += len(chunk)
            self._progress.advance(len(chunk))
