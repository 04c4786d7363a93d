"""The file format of backups: an uncompressed tar archive in the pax format.

Its first member is `manifest.json`, its last one `SHA256SUMS`. An archive without the last member
is incomplete. After `tar xf`, `sha256sum -c SHA256SUMS` checks the files.
"""

import contextlib
import errno
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from stoker.server.bootstrap import ACCOUNT_FILE as ACCOUNT_KEY
from stoker.server.bootstrap import FILE as OPERATOR_KEY
from stoker.store.secret import FILE as SECRET

FORMAT = 1
"""Version of the format. A release reads this version and older ones."""
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
DATABASE = "stoker.db"
BLOBS = "blobs"
KEY_FILES = (OPERATOR_KEY, ACCOUNT_KEY)
ROOT_FILES = (*KEY_FILES, SECRET, DATABASE)
"""Files directly in the data folder. All others are below the blobs."""

Advance = Callable[[int], None]
"""Called with the number of bytes that were processed since the last call."""

_BLOCK = 1024 * 1024
_MANIFEST_BYTES = 64 * 1024
"""Maximum size of the manifest."""
_SUMS_BYTES = 1024 * 1024 * 1024
"""Maximum size of the checksums: 100 bytes for each of ten million files."""


class BackupError(Exception):
    """A backup cannot be made or restored. The message says why and what to do."""


@contextlib.contextmanager
def naming_full_disk(folder: Path) -> Generator[None]:
    """Raises `BackupError` in place of an `OSError` about the full disk of a folder."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BackupError(
            f"The disk of {folder} is full. Free space there, and repeat the command."
        ) from error


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describes a backup."""

    format: int
    release: str
    """Release of Stoker that made the backup."""
    schema: str
    """Revision of the database schema."""
    created_at: str
    """Time in UTC, ISO 8601."""
    has_secret: bool
    """True if the backup contains the server's secret and the key files."""
    oldest_schema: str = ""
    """Oldest revision whose release can restore the backup. Empty if the schema records none."""

    @classmethod
    def parse(cls, content: bytes) -> "Manifest":
        """Raises `BackupError` if the content is not a manifest of a readable format."""
        try:
            fields = json.loads(content)
            version = int(fields["format"])
            if version > FORMAT:
                raise BackupError(
                    f"The backup has format {version}, and this release reads up to {FORMAT}. "
                    f"Install release {fields['release']} or a newer one."
                )
            return cls(
                format=version,
                release=str(fields["release"]),
                schema=str(fields["schema"]),
                created_at=str(fields["created_at"]),
                has_secret=bool(fields["has_secret"]),
                oldest_schema=str(fields.get("oldest_schema", "")),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise BackupError(f"The backup's {MANIFEST} is damaged.") from error


class ArchiveWriter:
    """Writes an archive to a file."""

    def __init__(self, file: IO[bytes], manifest: Manifest, advance: Advance) -> None:
        self._tar = tarfile.TarFile(
            fileobj=file, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_BLOCK
        )
        self._advance = advance
        self._sums: dict[str, str] = {}
        content = json.dumps(asdict(manifest), indent=2).encode() + b"\n"
        self._add(MANIFEST, io.BytesIO(content), len(content))

    def add_file(self, name: str, file: IO[bytes], size: int) -> None:
        """Adds `size` bytes of a file. Adds zeros if the file has become shorter.

        A name may be added again. The last file of a name counts.

        Raises `BackupError` for a name that a backup cannot hold.
        """
        if not _is_allowed(name):
            raise BackupError(f"The data folder holds an unexpected file: {name!a}. Remove it.")
        self._add(name, file, size)

    def finish(self) -> None:
        """Adds the checksums. Without them the archive is incomplete."""
        lines = (f"{digest}  {name}\n" for name, digest in self._sums.items())
        content = "".join(lines).encode()
        self._tar.addfile(_member(SUMS, len(content)), io.BytesIO(content))
        self._tar.close()

    def _add(self, name: str, file: IO[bytes], size: int) -> None:
        source = _Hashed(file, self._advance)
        self._tar.addfile(_member(name, size), source)
        self._sums[name] = source.digest()


class ArchiveReader:
    """Reads an archive from its beginning to its end."""

    def __init__(self, file: IO[bytes]) -> None:
        """Reads the manifest. Raises `BackupError` if the file is not a readable backup."""
        try:
            self._tar = tarfile.TarFile(fileobj=file)
            first = self._tar.next()
        except tarfile.TarError as error:
            raise BackupError("The file is not a backup of Stoker.") from error
        if first is None or first.name != MANIFEST or not first.isreg():
            raise BackupError("The file is not a backup of Stoker.")
        content = self._content(first, _MANIFEST_BYTES)
        self.manifest = Manifest.parse(content)
        self._found = {MANIFEST: hashlib.sha256(content).hexdigest()}

    def files(self) -> Iterator[str]:
        """Yields the name of each file, whose content `copy` then reads. Compares the checksums at
        the end.

        Raises `BackupError` if the archive is incomplete or damaged, or holds an unexpected entry.
        """
        while member := self._next():
            if member.isreg() and member.name == SUMS:
                self._compare(self._content(member, _SUMS_BYTES))
                return
            if not member.isreg() or not _is_allowed(member.name):
                raise BackupError(f"The backup holds an unexpected entry: {member.name!a}.")
            self._member = member
            yield member.name
        raise BackupError("The backup is incomplete: its end is missing.")

    def copy(self, target: IO[bytes], advance: Advance) -> None:
        """Copies the current file's content."""
        source = self._open(self._member)
        digest = hashlib.sha256()
        while block := self._read(source, _BLOCK):
            target.write(block)
            digest.update(block)
            advance(len(block))
        self._found[self._member.name] = digest.hexdigest()

    def _next(self) -> tarfile.TarInfo | None:
        try:
            return self._tar.next()
        except tarfile.TarError as error:
            raise BackupError("The backup is incomplete: its end is missing.") from error

    def _open(self, member: tarfile.TarInfo) -> IO[bytes]:
        # Regular files have content.
        return cast("IO[bytes]", self._tar.extractfile(member))

    def _read(self, source: IO[bytes], size: int) -> bytes:
        try:
            return source.read(size)
        except tarfile.TarError as error:
            raise BackupError("The backup is incomplete: its end is missing.") from error

    def _content(self, member: tarfile.TarInfo, limit: int) -> bytes:
        if member.size > limit:
            raise BackupError(f"The backup's {member.name} is larger than {limit} bytes.")
        return self._read(self._open(member), limit)

    def _compare(self, sums: bytes) -> None:
        """Raises `BackupError` if a file is missing, or differs from the file that was written."""
        wanted = dict[str, str]()
        for line in sums.decode(errors="replace").splitlines():
            digest, _, name = line.partition("  ")
            wanted[name] = digest
        for name in sorted(wanted.keys() | self._found.keys()):
            if wanted.get(name) != self._found.get(name):
                raise BackupError(
                    f"The backup is damaged: {name} differs from the file that was saved. "
                    "Use another backup."
                )


class _Hashed:
    """Reads a file, and zeros after its end. Computes the digest of all bytes."""

    def __init__(self, file: IO[bytes], advance: Advance) -> None:
        self._file = file
        self._advance = advance
        self._digest = hashlib.sha256()

    def read(self, size: int = 0, /) -> bytes:
        block = self._file.read(size).ljust(size, b"\0")
        self._digest.update(block)
        self._advance(len(block))
        return block

    def digest(self) -> str:
        return self._digest.hexdigest()


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    return member


def _is_allowed(name: str) -> bool:
    """Returns True for a known file of the data folder, and for any file below its blobs."""
    folder, *parts = name.split("/")
    is_blob = folder == BLOBS and parts != []
    is_plain = all(part.isprintable() and part not in ("", ".", "..") for part in parts)
    return name in ROOT_FILES or (is_blob and is_plain)
