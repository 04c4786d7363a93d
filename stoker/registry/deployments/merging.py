"""Model folders with an adapter merged into its base's weights.

A replica that cannot add an adapter to the rows of a batch loads such a folder instead. A worker
process plans the writes from the headers, and a confined process performs them.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from stoker.base.config import Settings
from stoker.base.fairness import FairSemaphore
from stoker.base.module_command import module_command
from stoker.inspection import InspectionError, InspectorError, Inspectors
from stoker.inspection.merge_plan import UnmergeableError
from stoker.models.adapters.merge_job import Confinement, MergeJob, MergeTask
from stoker.sandbox import identity

_MODULE = "stoker.models.adapters.merge_process"
_KEPT_ENV = frozenset({"HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR"})
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_OF_ANOTHER_FORM = frozenset(
    {
        *(".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".pt", ".pth"),
        *(".safetensors", ".xml"),
    }
)
"""Weight files that do not contain the adapter. They may lie next to the merged weights."""
AT_ONCE = 2
"""Maximum number of concurrent merges of all accounts. Each account may run one of them."""
MEMORY_BYTES = 4 << 30
"""Maximum address space of the writing process in bytes. It holds 32 MiB of a weight and an
adapter's matrices.
"""
LEAST_S = 120.0
BYTES_PER_S = 10 << 20
"""Minimum rate in bytes per second. A merge may take the time of its bytes at this rate, plus
`LEAST_S`.
"""

Reserve = Callable[[int], Awaitable[None]]
"""Reserves bytes of an account's quota. Raises `StokerError`."""


class Merges:
    """Makes merged model folders, with limits on their number, memory, time and disk."""

    def __init__(
        self, settings: Settings, inspectors: Inspectors, check_disk: Callable[[int], None]
    ) -> None:
        """
        Args:
            check_disk: raises `CapacityError` if that number of additional bytes would fill the
                disk.
        """
        self._data_dir = settings.data_dir.resolve()
        self._users: Sequence[int] = settings.replica_users or ()
        self._inspectors = inspectors
        self._check_disk = check_disk
        self._slots = FairSemaphore(AT_ONCE)
        self._coming = 0
        """Bytes that active merges are about to write."""

    async def merge(
        self,
        account: str,
        adapter: Mapping[str, Path],
        base: Path,
        target: Path,
        *,
        is_single: bool,
        is_linked: bool,
        reserve: Reserve | None = None,
    ) -> None:
        """Makes a model folder from a base's and an adapter's files.

        Args:
            is_single: True if changed weights are written in float32. Otherwise they keep the
                base's dtype.
            is_linked: True if unchanged files are links to the base's files. Otherwise they remain
                when the base's files are deleted.

        Raises:
            UnmergeableError: the adapter cannot be merged, or the folder cannot be written.
            StokerError: the disk or the account's quota has no room for it.
        """
        async with self._slots.hold(account):
            try:
                building = await asyncio.to_thread(_laid_out, base, target, is_linked=is_linked)
            except OSError as error:
                raise UnmergeableError(f"it cannot be written: {error.strerror}.") from error
            try:
                job = await self._inspectors.plan_merge(
                    account, adapter, base, building, is_single=is_single
                )
                await self._write(job, [base, *adapter.values()], building, reserve)
                building.rename(target)
            except (InspectionError, InspectorError, OSError) as error:
                raise UnmergeableError(f"it cannot be merged: {error}") from error
            finally:
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)

    async def _write(
        self, job: MergeJob, reads: Sequence[Path], building: Path, reserve: Reserve | None
    ) -> None:
        size = job.nbytes
        self._check_disk(self._coming + size)
        self._coming += size
        try:
            if reserve:
                await reserve(size)
            home = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="stoker-merge-"))
            try:
                await _run(MergeTask(job, self._walls(job, reads, building, home)), _limit_s(size))
            finally:
                await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)
            await asyncio.to_thread(_take_back, building)
        finally:
            self._coming -= size

    def _walls(
        self, job: MergeJob, reads: Sequence[Path], building: Path, home: Path
    ) -> Confinement:
        # If the server runs as root, use an unprivileged user. Replicas start with the first of
        # these users.
        user = self._users[-1] if self._users and os.geteuid() == 0 else None
        return Confinement(
            folder=str(home),
            kept_back=str(self._data_dir),
            reads=[str(path) for path in reads],
            writes=[str(building)],
            user=user if user is not None and identity.is_mapped(user, user) else None,
            memory_bytes=MEMORY_BYTES,
            file_bytes=max((file.nbytes for file in job.files), default=0),
        )


def _limit_s(size: int) -> float:
    return LEAST_S + size / BYTES_PER_S


def _take_back(building: Path) -> None:
    """Makes this process the owner of the files, even if another user wrote them."""
    if os.geteuid() == 0:
        for path in (building, *building.rglob("*")):
            if not path.is_symlink() and path.stat().st_uid:
                os.chown(path, 0, 0)


def _laid_out(base: Path, target: Path, *, is_linked: bool) -> Path:
    """Creates a folder with all files except the weights."""
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    # Replicas may run as another user that must read the folder.
    building.chmod(0o755)
    for path in base.rglob("*"):
        within = path.relative_to(base)
        is_weights = path.suffix in _OF_ANOTHER_FORM and len(within.parts) == 1
        if not path.is_file() or is_weights:
            continue
        place = building / within
        place.parent.mkdir(parents=True, exist_ok=True)
        _put(path.resolve(), place, is_linked=is_linked)
    return building


def _put(path: Path, place: Path, *, is_linked: bool) -> None:
    if is_linked:
        place.symlink_to(path)
        return
    try:
        place.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, place)


async def _run(task: MergeTask, limit_s: float) -> None:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENV or name.startswith("PYTHON")
    }
    process = await asyncio.create_subprocess_exec(
        *module_command(_MODULE),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment | _ONE_THREAD,
        # Ctrl-C in the terminal must reach only the server.
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            _, stderr = await process.communicate(msgspec.json.encode(task))
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, TimeoutError):
            raise UnmergeableError(f"the merge takes longer than {limit_s:.0f} s.") from None
        raise
    if process.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines()
        raise UnmergeableError(
            f"the merge process failed: {lines[-1] if lines else process.returncode}"
        )
