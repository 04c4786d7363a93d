"""Local copies of models with originals in a bucket. Their size is bounded, and the least recently
used copies are evicted first.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from stoker.base.errors import CapacityError
from stoker.platform.web.disk import full_disk
from stoker.runtime.interface import LoadError
from stoker.store.blobs import BlobLostError, StoreUnavailableError

log = logging.getLogger(__name__)

ASKED_S = 60.0
"""Time in seconds after a request for a folder. Within it, the caller may not have begun to read
the folder.
"""
_NO_ROOM = "this machine's disk has no room for the model."


class BucketUnreachableError(LoadError):
    """Raised if the bucket that has the model does not answer."""


@dataclass(frozen=True)
class _FolderCopy:
    name: str
    size: int
    """Size in bytes."""
    used_at: float
    """Time of last use in seconds, by the file system's clock."""


class Copies:
    """Complete model folders below a root folder. The name of an incomplete folder begins with a
    dot.
    """

    def __init__(
        self,
        root: Path,
        limit_bytes: int,
        check_disk: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            check_disk: raises `CapacityError` if that number of additional bytes would fill the
                disk.
        """
        self.runs: Callable[[str], bool] = lambda _: False
        """Returns True if a specification, by its id, has replicas."""
        self._root = root
        self._limit = limit_bytes
        self._check_disk = check_disk
        self._clock = clock
        self._lock = asyncio.Lock()
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._coming: dict[str, int] = {}
        """Bytes of each folder that is being fetched."""
        self._asked: dict[str, float] = {}
        self._held: Counter[str] = Counter()
        self._specs: dict[str, set[str]] = {}
        """Maps a folder to the specifications with replicas that received it."""

    def note(self, name: str, spec_id: str) -> None:
        """Records that replicas of a specification are about to read a folder."""
        self._specs.setdefault(name, set()).add(spec_id)
        self.touch(name)

    def touch(self, name: str) -> None:
        self._asked[name] = self._clock()
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._root / name)

    def forget(self, name: str) -> None:
        """Forgets a folder that is about to be removed and will not be requested again."""
        self._specs.pop(name, None)
        self._asked.pop(name, None)

    @contextlib.contextmanager
    def held(self, name: str) -> Generator[None]:
        """Protects a folder from eviction while the context is active."""
        self._held[name] += 1
        try:
            yield
        finally:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]

    async def bring(
        self,
        name: str,
        size: int,
        fill: Callable[[Path], Awaitable[None]],
        *,
        may_evict: bool = True,
    ) -> None:
        """Ensures that a folder of `size` bytes exists, filled by `fill`. Concurrent callers wait
        for the same fetch.

        The fetch continues if no caller waits any more, because a start that timed out is tried
        again.

        Raises `BucketUnreachableError`, and `LoadError` if the disk has no room.
        """
        fetch = self._fetches.get(name)
        if fetch is None:
            fetch = asyncio.create_task(self._bring(name, size, fill, may_evict=may_evict))
            self._fetches[name] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(name, None))
            # Possibly no caller is left to retrieve the exception.
            fetch.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(fetch)

    async def close(self) -> None:
        fetches = [*self._fetches.values()]
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    async def _bring(
        self, name: str, size: int, fill: Callable[[Path], Awaitable[None]], *, may_evict: bool
    ) -> None:
        target = self._root / name
        if await asyncio.to_thread(target.is_dir):
            return
        async with self._room(name, size, may_evict=may_evict):
            building = Path(await asyncio.to_thread(_new_folder, self._root))
            try:
                await fill(building)
                await asyncio.to_thread(building.rename, target)
                log.info("model fetched", extra={"folder": name, "bytes": size})
            except (StoreUnavailableError, BlobLostError) as error:
                raise BucketUnreachableError(
                    "the object store did not return the model's files."
                ) from error
            except OSError as error:
                if full_disk(error) is None:
                    raise
                raise LoadError(_NO_ROOM) from error
            finally:
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def _room(self, name: str, size: int, *, may_evict: bool) -> AsyncGenerator[None]:
        async with self._lock:
            await self._make_room(size, may_evict=may_evict)
            self._coming[name] = size
        try:
            yield
        finally:
            del self._coming[name]

    async def _make_room(self, size: int, *, may_evict: bool) -> None:
        copies = await asyncio.to_thread(_copies, self._root)
        total = sum(copy.size for copy in copies) + sum(self._coming.values()) + size
        for copy in sorted(copies, key=lambda copy: copy.used_at):
            if total <= self._limit or not may_evict:
                break
            if self._is_used(copy.name):
                continue
            log.info("copy of a model evicted", extra={"folder": copy.name, "bytes": copy.size})
            aside = Path(tempfile.mkdtemp(dir=self._root, prefix=".removing-"))
            (self._root / copy.name).rename(aside / copy.name)
            await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
            self.forget(copy.name)
            total -= copy.size
        if total > self._limit:
            raise LoadError(
                f"the model needs {size} bytes, but model copies on this machine may use "
                f"{self._limit} bytes, of which {total - size} are in use "
                "(STOKER_MODEL_CACHE_GIB)."
            )
        try:
            self._check_disk(sum(self._coming.values()) + size)
        except CapacityError as error:
            log.warning("no disk space for a model's copy", extra={"reason": error.message})
            raise LoadError(_NO_ROOM) from error

    def _is_used(self, name: str) -> bool:
        requested_at = self._asked.get(name)
        return (
            name in self._held
            or (requested_at is not None and self._clock() - requested_at < ASKED_S)
            or any(self.runs(spec_id) for spec_id in self._specs.get(name, ()))
        )


def _copies(root: Path) -> list[_FolderCopy]:
    return [
        _FolderCopy(path.name, _size(path), path.stat().st_mtime)
        for path in (root.iterdir() if root.is_dir() else ())
        if not path.name.startswith(".")
    ]


def _size(folder: Path) -> int:
    paths = (Path(place, name) for place, _, files in os.walk(folder) for name in files)
    # `lstat`, because links lead to files that an operator keeps.
    return sum(path.lstat().st_size for path in paths)


def _new_folder(root: Path) -> str:
    root.mkdir(parents=True, exist_ok=True)
    return tempfile.mkdtemp(dir=root, prefix=".building-")
