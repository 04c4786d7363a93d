"""An upload session on the server and the file parts it holds."""

from collections.abc import Sequence
from dataclasses import dataclass

from .request import JsonObject, quoted
from .selection import LocalFile

ARTIFACTS = "/v1/model-artifacts"


@dataclass(frozen=True)
class Part:
    file: LocalFile
    number: int
    offset: int
    size: int

    @property
    def key(self) -> tuple[str, int]:
        return self.file.path, self.number


@dataclass(frozen=True)
class RemoteFile:
    """Parts of a file that a session holds. `size` is None until known. Digests are in hex."""

    size: int | None
    is_complete: bool
    sha256: str | None
    parts: dict[int, str]

    @classmethod
    def read(cls, file: JsonObject) -> "RemoteFile":
        parts = {part["number"]: part["sha256"] for part in file["parts"]}
        return cls(file["size"], file["complete"], file["sha256"], parts)

    def digest(self, part: Part) -> str | None:
        came_whole = self.is_complete and self.size == part.size == part.file.size
        return self.parts.get(part.number) or (self.sha256 if came_whole else None)

    def fits(self, file: LocalFile, parts: Sequence[Part]) -> bool:
        """True if this may be the local file. Does not read the file."""
        return self.size in {None, file.size} and len(parts) >= max(self.parts, default=0)


@dataclass(frozen=True)
class UploadSession:
    artifact_id: str
    upload_id: str
    part_size: int
    files: dict[str, RemoteFile]

    @property
    def path(self) -> str:
        return session_path(self.artifact_id, self.upload_id)

    def file_path(self, part: Part) -> str:
        """Returns the path to upload a part. A file of 0 bytes is sent whole."""
        whole = f"{self.path}/files/{quoted(part.file.path)}"
        return f"{whole}/parts/{part.number}" if part.size else whole

    def parts_of(self, file: LocalFile) -> list[Part]:
        """Returns the parts of a file, numbered from 1. An empty file has one part of 0 bytes."""
        step = self.part_size
        return [
            Part(file, offset // step + 1, offset, min(step, file.size - offset))
            for offset in range(0, max(file.size, 1), step)
        ]

    def digest(self, part: Part) -> str | None:
        """Returns the SHA-256 in hex of a part on the server, or None if it is missing."""
        file = self.files.get(part.file.path)
        return file.digest(part) if file else None

    def stale(self, files: Sequence[LocalFile]) -> list[str]:
        """Returns the paths of the session's files that differ from these files, judged by sizes
        and names.
        """
        local = {file.path: file for file in files}
        return [
            path
            for path, remote in self.files.items()
            if path not in local or not remote.fits(local[path], self.parts_of(local[path]))
        ]


def session_path(artifact_id: str, upload_id: str) -> str:
    return f"{ARTIFACTS}/{quoted(artifact_id)}/uploads/{quoted(upload_id)}"
