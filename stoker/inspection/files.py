"""Reads one uploaded file set, with a limit on every read."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from stoker.inspection.failure import FailureCode, InspectionError

CHUNK_BYTES = 1 << 20
# Every file has a separate limit. This one limits the cost of a set of many files. A large model
# with a large tokenizer takes about 60 MiB.
MAX_READ_BYTES = 512 << 20


class FileReader(Protocol):
    """One uploaded file set. Synchronous, because inspection runs in a worker thread."""

    def sizes(self) -> Mapping[str, int]:
        """Returns every file's relative path and its size in bytes."""
        ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Returns `length` bytes of a file from `offset` on, or fewer if the file ends before."""
        ...


class FileSet:
    """A `FileReader` with cached sizes and counted reads that are never short."""

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader
        self._bytes_read = 0
        self.sizes = dict(reader.sizes())

    def __contains__(self, path: str) -> bool:
        return path in self.sizes

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes.

        Raises:
            InspectionError: `TRUNCATED` if the store returns another number of bytes,
                `FILE_TOO_LARGE` if the reads of the set would exceed 512 MiB in total.
        """
        if length == 0:
            return b""
        self._bytes_read += length
        if self._bytes_read > MAX_READ_BYTES:
            raise InspectionError(
                FailureCode.FILE_TOO_LARGE,
                f"The headers, JSON and text of all files exceed {MAX_READ_BYTES} bytes in "
                "total. Leave out what the model does not need.",
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
        """Returns the first bytes of a file, or all of it if it is shorter than `length`."""
        return self.read(path, 0, min(length, self.sizes[path]))

    def tail(self, path: str, length: int) -> bytes:
        """Returns the last bytes of a file, or all of it if it is shorter than `length`."""
        count = min(length, self.sizes[path])
        return self.read(path, self.sizes[path] - count, count)

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yields the whole file in pieces."""
        size = self.sizes[path]
        for offset in range(0, size, CHUNK_BYTES):
            yield self.read(path, offset, min(CHUNK_BYTES, size - offset))

    def whole(self, path: str) -> bytes:
        """Returns the whole file. The caller has limited its size with `refuse_larger`."""
        return self.read(path, 0, self.sizes[path])

    def refuse_larger(self, path: str, limit: int, what: str) -> None:
        """Rejects a file over `limit` bytes.

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
