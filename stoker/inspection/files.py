"""Reading one uploaded file set, with every read bounded."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from stoker.inspection.failure import FailureCode, InspectionError

CHUNK_BYTES = 1 << 20
# Every file is bounded by itself; this bounds what a set of many of them costs. A large model with
# a large tokenizer takes about 60 MiB.
MAX_READ_BYTES = 512 << 20


class FileReader(Protocol):
    """One uploaded file set. Synchronous: inspection runs in a worker thread."""

    def sizes(self) -> Mapping[str, int]:
        """Every file's relative path and its size in bytes."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """The `length` bytes of a file from `offset` on; fewer only where the file ends."""
        ...


class FileSet:
    """A `FileReader` whose sizes are asked once, whose reads are counted and never short."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self._bytes_read = 0
        self.sizes = dict(reader.sizes())

    def __contains__(self, path: str) -> bool:
        return path in self.sizes

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes.

        Raises:
            InspectionError: `TRUNCATED` where the store gives another number of bytes,
                `FILE_TOO_LARGE` where over 512 MiB of the set would be read in all.
        """
        if length == 0:
            return b""
        self._bytes_read += length
        if self._bytes_read > MAX_READ_BYTES:
            raise InspectionError(
                FailureCode.FILE_TOO_LARGE,
                f"The headers, JSON and text of all files have over {MAX_READ_BYTES} bytes "
                "together. Leave out what the model does not need.",
            )
        data = self._reader.read(path, offset, length)
        if len(data) != length:
            raise InspectionError(
                FailureCode.TRUNCATED,
                f"{path} ends before its stated size of {self.sizes[path]} bytes; upload it again.",
                path,
            )
        return data

    def head(self, path: str, length: int) -> bytes:
        """The first bytes of a file, all of it where it is shorter than `length`."""
        return self.read(path, 0, min(length, self.sizes[path]))

    def tail(self, path: str, length: int) -> bytes:
        """The last bytes of a file, all of it where it is shorter than `length`."""
        kept = min(length, self.sizes[path])
        return self.read(path, self.sizes[path] - kept, kept)

    def chunks(self, path: str) -> Iterator[bytes]:
        """The whole file, piece by piece."""
        size = self.sizes[path]
        for offset in range(0, size, CHUNK_BYTES):
            yield self.read(path, offset, min(CHUNK_BYTES, size - offset))

    def whole(self, path: str) -> bytes:
        """The whole file; the caller has bounded its size with `refuse_larger`."""
        return self.read(path, 0, self.sizes[path])

    def refuse_larger(self, path: str, limit: int, what: str) -> None:
        """Refuse a file over `limit` bytes.

        Raises:
            InspectionError: `FILE_TOO_LARGE`.
        """
        if self.sizes[path] > limit:
            raise InspectionError(
                FailureCode.FILE_TOO_LARGE,
                f"{path} has {self.sizes[path]} bytes; {what} may have at most {limit}. "
                "Make it smaller or leave it out.",
                path,
            )
