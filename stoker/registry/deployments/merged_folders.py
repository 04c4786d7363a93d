"""Folders of merged adapters on this machine. Each is a copy of its base's weights.

A folder is made when a replica needs it, and counts towards its account's storage. It is removed
after it was idle for a while, because it can be made again.
"""

import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.base.errors import CapacityError, StokerError
from stoker.inspection.merge_plan import UnmergeableError
from stoker.platform.quotas.limits import Quota
from stoker.platform.quotas.service import QuotaService
from stoker.registry.deployments import repository
from stoker.registry.deployments.merging import Merges
from stoker.runtime.interface import LoadError
from stoker.runtime.specification import DeploymentSpec
from stoker.store.db import Database
from stoker.store.tables.deployments import DeploymentVersion

log = logging.getLogger(__name__)

PREFIX = "merged-"
_NO_ROOM = "this machine's disk has no room for the adapter merged into its base."


class MergedFolders:
    def __init__(
        self,
        root: Path,
        database: Database,
        quotas: QuotaService,
        merges: Merges,
        *,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            idle_s: time in seconds for which an unused folder stays. Must be longer than a load.
        """
        self.runs: Callable[[str], bool] = lambda _: False
        """Returns True if a specification, by its id, has replicas."""
        self._root = root
        self._database = database
        self._quotas = quotas
        self._merges = merges
        self._idle_s = idle_s
        self._clock = clock
        self._used_at: dict[str, float] = {}
        self._specs: dict[str, set[str]] = {}
        """Maps a folder to the specifications with replicas that received it."""

    def note(self, name: str, spec_id: str) -> None:
        """Records that a replica of a specification is about to read a folder."""
        self._specs.setdefault(name, set()).add(spec_id)
        self._used_at[name] = self._clock()

    async def make(
        self,
        spec: DeploymentSpec,
        adapter: Mapping[str, Path],
        base: Path,
        target: Path,
        *,
        is_single: bool,
        is_linked: bool,
    ) -> None:
        """Merges an adapter into its base. Raises `LoadError` if the merge is impossible, or the
        disk has no room.
        """

        async def reserve(size: int) -> None:
            await self._count(spec, size)

        async def merged() -> None:
            await self._merges.merge(
                spec.account_id,
                adapter,
                base,
                target,
                is_single=is_single,
                is_linked=is_linked,
                reserve=reserve,
            )

        try:
            try:
                await merged()
            except CapacityError:
                if not await self.drop_idle(for_s=0.0, besides=target.name):
                    raise
                await merged()
        except UnmergeableError as error:
            await self._count(spec, 0)
            raise LoadError(f"the adapter was not merged into its base: {error}") from error
        except CapacityError as error:
            raise LoadError(_NO_ROOM) from error
        except StokerError as error:
            raise LoadError(error.message) from error
        log.info("adapter merged into its base", extra={"folder": target.name})

    async def drop_idle(self, *, for_s: float | None = None, besides: str = "") -> bool:
        """Removes folders that no replica uses. Returns True if any were removed.

        Args:
            for_s: minimum idle time in seconds. None means the default.
            besides: name of a folder to keep.
        """
        since = self._clock() - (self._idle_s if for_s is None else for_s)
        names = [path.name for path in self._root.glob(f"{PREFIX}*")] if self._root.is_dir() else []
        idle = [
            name
            for name in names
            # Folders from before the server's start count as used now.
            if self._used_at.setdefault(name, self._clock()) <= since
            and name != besides
            and not any(map(self.runs, self._specs.get(name, ())))
        ]
        for name in idle:
            await self._drop(name)
        return bool(idle)

    async def _drop(self, name: str) -> None:
        log.info("merged adapter is idle: its folder is deleted", extra={"folder": name})
        aside = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._root, prefix=".removing-"))
        try:
            (self._root / name).rename(aside / name)
        except OSError:
            # The folder was deleted with its deployment.
            log.debug("merged folder does not exist any more", extra={"folder": name})
        await asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True)
        self._used_at.pop(name, None)
        if spec_ids := self._specs.pop(name, set()):
            async with self._database.transaction() as session:
                await repository.clear_merged_bytes(session, spec_ids)

    async def _count(self, spec: DeploymentSpec, size: int) -> None:
        """Reserves the folder's bytes in the account's storage. Raises `PayloadTooLargeError`."""
        async with self._database.transaction() as session:
            version = await session.get(DeploymentVersion, spec.id)
            # A trial has no version: its folder is deleted with it.
            before = (version.merged_bytes or 0) if version else 0
            await self._quotas.take(
                session, spec.account_id, Quota.STORAGE_BYTES, max(0, size - before)
            )
            if version:
                version.merged_bytes = size or None
