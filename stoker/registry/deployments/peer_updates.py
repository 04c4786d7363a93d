"""What other servers of the same PostgreSQL do to deployments, done here too."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Generator, Sequence

from sqlalchemy.exc import SQLAlchemyError

from stoker.registry.deployments import adapters, repository, revisions, versions
from stoker.registry.deployments.context import DeploymentContext
from stoker.registry.deployments.directory import Entry
from stoker.store.changes import Change
from stoker.store.tables.deployments import Deployment, DeploymentVersion
from stoker.store.waiting import repeated

log = logging.getLogger(__name__)

LOOK_S = 1.0
_AT_ONCE = 200


class Following:
    def __init__(self, context: DeploymentContext) -> None:
        self._context = context
        self._seen = 0
        self._rounds = 0
        """How often the database was asked."""
        self._following = asyncio.Lock()
        self._again: set[str] = set()
        """Of those that have changed: what could not be done."""
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Before all deployments are read for the first time."""
        async with self._context.database.reading() as session:
            self._seen = await revisions.current(session)

    async def run(self) -> None:
        await repeated(self.follow, LOOK_S, "following the deployments of other servers")

    async def catch_up(self) -> None:
        """`follow`, once for all callers that wait for it at the same time."""
        asked_in = self._rounds
        async with self._following:
            if self._rounds == asked_in:
                await self._follow()

    async def follow(self) -> None:
        """Bring the directory and the runtime up to what the database says now."""
        async with self._following:
            await self._follow()

    async def _follow(self) -> None:
        context = self._context
        self._rounds += 1
        async with context.database.reading() as session:
            revision, changed = await revisions.since(
                session, context.database.server_id, self._seen
            )
            if changed is None:
                there = [row.id for row in await repository.everything(session)]
                known = [entry.deployment_id for entry in context.directory.entries()]
                changed = [*there, *known]
        # Bases before their adapters, which are younger.
        changed = sorted({*changed, *self._again})
        failed: set[str] = set()
        for at in range(0, len(changed), _AT_ONCE):
            failed |= await self._catch_up(changed[at : at + _AT_ONCE])
        self._seen, self._again = revision, failed

    async def _catch_up(self, ids: Sequence[str]) -> set[str]:
        """Returns those with which it went wrong."""
        context, failed = self._context, set[str]()
        async with context.database.reading() as session:
            for row in await repository.these(session, ids):
                if row.shares:
                    # Copying takes its time: before, and beside what is held up.
                    with self._kept(row.id, failed):
                        await adapters.place(session, context.folders, row)
        # What this server commits meanwhile would be told before what is older.
        async with context.database.between_commits(), context.database.reading() as session:
            rows = {row.id: row for row in await repository.these(session, ids)}
            found = await versions.of_these(session, ids)
            for one in ids:
                with self._kept(one, failed):
                    self._tell(one, rows.get(one), found.get(one, ()))
        return failed

    @contextlib.contextmanager
    def _kept(self, identifier: str, failed: set[str]) -> Generator[None]:
        """What goes wrong with one keeps none of the others, and is tried again."""
        try:
            yield
        except SQLAlchemyError:
            raise
        except Exception:
            if identifier not in self._again:
                log.exception("a peer server's deployment could not be applied; retrying")
            failed.add(identifier)

    def _tell(
        self, identifier: str, row: Deployment | None, found: Sequence[DeploymentVersion]
    ) -> None:
        context = self._context
        before = context.directory.find(identifier)
        ended = self._unprepared(identifier, found)
        if row is None:
            context.directory.drop(identifier)
            place = (before.base_id, identifier) if before and before.base_id else (identifier,)
            context.folders.drop_adapters(*place)
        else:
            versions.tell(context, row, found)
        after = context.directory.find(identifier)
        if before and not before.base_id:
            kept = dict(after.sources) if after else {}
            ended |= {one: source for one, source in before.sources if one not in kept}
        if ended:
            task = asyncio.create_task(self._end(ended))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._announce(row, before)

    def _unprepared(self, identifier: str, found: Collection[DeploymentVersion]) -> dict[str, str]:
        """The versions that this server was about to prove, and that were deleted."""
        left = {one.id for one in found}
        gone = [one for one in self._context.preparing.jobs_of(identifier) if one not in left]
        for one in gone:
            self._context.preparing.cancel(one)
        return dict.fromkeys(gone, "")

    async def _end(self, ended: dict[str, str]) -> None:
        """End the replicas of versions that are no more."""
        context = self._context
        try:
            for spec_id in ended:
                await context.runtime.remove(spec_id)
            async with context.database.reading() as session:
                left = await versions.sources(session)
            for source in {*ended.values()} - left - {""}:
                await context.folders.drop(source)
        except Exception:
            log.exception("a deployment that a peer server deleted could not be stopped")

    def _announce(self, row: Deployment | None, before: Entry | None) -> None:
        """Whoever watches hears of it, too."""
        changes = self._context.database.changes
        if not changes.is_heard:
            return
        if row is not None:
            changes.announce([Change(Deployment, row.id, row.account_id, row)])
        elif before is not None:
            gone = Change(Deployment, before.deployment_id, before.account_id, is_deleted=True)
            changes.announce([gone])
