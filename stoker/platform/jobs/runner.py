"""Works on jobs: claims them, keeps their leases, ends each of them once."""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from stoker.base.errors import (
    CapacityError,
    InternalError,
    ModelLoadingError,
    RateLimitError,
    StokerError,
)
from stoker.base.fairness import FairShare
from stoker.platform.jobs import repository
from stoker.runtime.interface import OnProgress
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.jobs import Job, JobStatus

log = logging.getLogger(__name__)

Row = TypeVar("Row", bound=Job)
Made = TypeVar("Made")

MOST_LOSSES = 5
"""A job that takes its worker down every time must come to an end."""
MOST_TRIES = 100
"""Begun so often, it takes its server down. Others end servers, too, and may do so often."""
PASSING: tuple[type[StokerError], ...] = (CapacityError, ModelLoadingError, RateLimitError)
"""Errors that say nothing about the job itself: it is tried again."""
RETRY_FIRST_S = 2.0
RETRY_LAST_S = 60.0
_RENEWALS = 4
"""Within a lease: one that is late costs nothing yet."""
_POLL_S = 2.0
"""How often other servers' jobs are looked at; one's own wake the runner."""


class YieldedError(Exception):
    """Raised by `Kind.perform` to give the job's place to another account: see `should_yield`."""


@dataclass(frozen=True)
class Outcome:
    """What becomes of a row whose work was done."""

    values: Mapping[str, Any]
    """Columns of the kind's own."""
    waits_as: str | None = None
    """None: the row is completed. Else the status in which it waits for somebody who makes it due
    again; `Kind.ended` is not called then.
    """


class Kind(Protocol[Row, Made]):
    """A kind of job."""

    table: type[Row]

    async def perform(self, row: Row, on_progress: OnProgress) -> Made:
        """Do the work, outside the database. May be called again for the same row, by anyone."""
        ...

    def outcome(self, row: Row, made: Made) -> Outcome: ...

    async def keep(self, session: Session, row: Row, made: Made) -> None:
        """Write what was made beside the row, in the transaction that completes or parks it."""
        ...

    async def ended(self, session: Session, row: Row, error: StokerError | None) -> None:
        """Clear up what only the work needed, in the transaction that ends the row, in success or
        with an error.
        """
        ...

    async def discard(self, made: Made) -> None:
        """Drop what was made: the job was deleted, or is another server's by now."""
        ...


class Runner(Generic[Row, Made]):
    def __init__(
        self,
        database: Database,
        *,
        lease_s: float,
        at_once: int,
        share: Callable[[str], int],
        turn_s: float | None = None,
        clock: Callable[[], datetime] = db.now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            share: how many jobs of a deployment are worked on at a time.
            turn_s: how long a job keeps its place while an account waits that has fewer. Only for
                kinds that go on where they were. None: until it ends.
            sleep: for so many seconds of the clock.
        """
        self._database = database
        self._lease = timedelta(seconds=lease_s)
        self._turns = FairShare(at_once)
        self._share = share
        self._turn = None if turn_s is None else timedelta(seconds=turn_s)
        self._without_place: set[str] = set()
        """Accounts that have due jobs and got no place the last time."""
        self._clock = clock
        self._sleep = sleep
        self._working: dict[str, _Working[Row, Made]] = {}
        self._wake = asyncio.Event()
        self._kind: Kind[Row, Made] | None = None
        """While it runs."""
        self._has_room = True
        """Whether nobody had to be left out the last time."""

    def at_work(self) -> dict[str, float]:
        """The jobs that this server works on, by their ids: how far each is, 0 to 1."""
        return {job_id: one.progress for job_id, one in self._working.items()}

    def wake(self) -> None:
        """There may be something to do."""
        self._wake.set()

    def take(self, session: Session, row: Row) -> None:
        """Lease a row that this transaction makes due, so that work on it begins with the commit;
        it waits its turn where there is no room.
        """
        rows = [one.row for one in self._working.values()]
        at_work = sum(one.deployment_id == row.deployment_id for one in rows)
        has_room = (
            self._has_room
            and self._turns.may_begin(row.account_id, Counter(one.account_id for one in rows))
            and at_work < self._share(row.deployment_id)
        )
        if self._kind is None or not has_room:
            # Whoever ends looks for it.
            self._has_room = False
            session.after_commit(self.wake)
            return
        working = self._leased(self._kind, row)
        session.after_commit(lambda: self._begin(working))

    def should_yield(self, row: Row) -> bool:
        """Returns whether an account waits that has fewer jobs at work than this one's account."""
        at_work = self._by_account()
        own = at_work[row.account_id]
        return any(at_work[name] < own for name in self._without_place - {row.account_id})

    def jobs_of(self, deployment_id: str) -> list[str]:
        """The jobs of a deployment that this server works on."""
        found = self._working.items()
        return [job_id for job_id, one in found if one.row.deployment_id == deployment_id]

    def cancel(self, job_id: str) -> None:
        """The job was deleted: stop working on it."""
        if working := self._working.get(job_id):
            working.task.cancel()

    async def let_go(self) -> None:
        """Stop working on jobs that were deleted or cancelled, by whatever server: the next renewal
        of their leases would find it out, too.
        """
        working = {one.token: one for one in self._working.values()}
        if not working or self._kind is None:
            return
        async with self._database.reading() as session:
            held = await repository.held(session, self._kind.table, [*working])
        for token in working.keys() - held:
            working[token].task.cancel()

    def progress(self, job_id: str) -> float | None:
        """How far a job is that this server works on."""
        working = self._working.get(job_id)
        return working.progress if working else None

    def shown(self, row: Row) -> float:
        """How far a job is, 0 to 1: as its row says, or as is known here."""
        if row.status == JobStatus.COMPLETED:
            return 1.0
        return max(row.progress, self.progress(row.id) or 0.0)

    async def run(self, kind: Kind[Row, Made]) -> None:
        """Work until cancelled; then hand back what is not finished."""
        self._kind = kind
        try:
            while True:
                try:
                    # What was leased is begun, too: nobody else would hand it back.
                    await db.uncut(self._claim_all(kind))
                except Exception:
                    log.exception("jobs could not be claimed; retrying")
                self._wake.clear()
                # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes
                # together with what it waits for.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._wake.wait()
        finally:
            self._kind = None
            # Work that is cancelled before its first step never gets to hand its job back.
            await asyncio.sleep(0)
            tasks = [working.task for working in self._working.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _claim_all(self, kind: Kind[Row, Made]) -> None:
        claimed: list[_Working[Row, Made]] = []
        async with self._database.transaction() as session:
            await self._renew_overdue(session)
            while await self._claim_some(session, kind, claimed):
                # Behind those whose deployments are busy by now there may be others.
                await session.flush()
        for working in claimed:
            self._begin(working)
        self._take_turns()

    def _by_account(self) -> Counter[str]:
        return Counter(one.row.account_id for one in self._working.values())

    def _take_turns(self) -> None:
        """Ends the turn of the job that has had its place for longest, if another account waits.

        Its work is cancelled, and the job handed back: it waits its turn again.
        """
        if self._turn is None:
            return
        over = self._clock() - self._turn
        long = [
            one
            for one in self._working.values()
            if one.begun_at <= over and self.should_yield(one.row)
        ]
        if long:
            at_work = self._by_account()
            first = min(long, key=lambda one: (-at_work[one.row.account_id], one.begun_at))
            log.info("job yields to another account", extra={"job": first.row.id})
            first.task.cancel()

    async def _claim_some(
        self, session: Session, kind: Kind[Row, Made], claimed: "list[_Working[Row, Made]]"
    ) -> bool:
        """Lease what each account may begin now; whether that was anything."""
        rows = [one.row for one in (*self._working.values(), *claimed)]
        by_deployment = Counter(row.deployment_id for row in rows)
        busy = [name for name, count in by_deployment.items() if count >= self._share(name)]
        held = [one.token for one in self._working.values()]
        now, before = self._clock(), len(claimed)
        waiting = await repository.due_accounts(session, kind.table, now=now, busy=busy, held=held)
        self._has_room = not busy and not waiting
        by_account = Counter(row.account_id for row in rows)
        for account_id, places in self._turns.allot(by_account, waiting).items():
            found = await repository.due(
                session,
                kind.table,
                now=now,
                busy=busy,
                held=held,
                account_id=account_id,
                limit=places,
            )
            for row in found:
                by_deployment[row.deployment_id] += 1
                if by_deployment[row.deployment_id] <= self._share(row.deployment_id):
                    claimed.append(self._leased(kind, row))
        self._without_place = {*waiting} - {one.row.account_id for one in claimed[before:]}
        return len(claimed) > before

    async def _renew_overdue(self, session: Session) -> None:
        """After a stall, before another server takes for lost what is worked on here."""
        now = self._clock()
        for working in list(self._working.values()):
            if working.leased_until <= now:
                await self._renew(session, working)

    def _leased(self, kind: Kind[Row, Made], row: Row) -> "_Working[Row, Made]":
        token, until = secrets.token_hex(16), self._clock() + self._lease
        repository.lease(row, token=token, until=until)
        return _Working(kind, row, token, until, until - self._lease)

    def _begin(self, working: "_Working[Row, Made]") -> None:
        self._working[working.row.id] = working
        working.task = asyncio.create_task(self._work(working))

    async def _work(self, working: "_Working[Row, Made]") -> None:
        renewing = asyncio.create_task(self._keep_lease(working))
        try:
            await self._try(working)
        except asyncio.CancelledError:
            await self._hand_back(working)
        except Exception:
            # Its lease runs out, and it is taken up again.
            log.exception("job could not be stopped", extra={"job": working.row.id})
        finally:
            renewing.cancel()
            if self._working.get(working.row.id) is working:
                del self._working[working.row.id]
            if not self._has_room:
                self.wake()

    async def _try(self, working: "_Working[Row, Made]") -> None:
        row = working.row
        if row.tries > MOST_TRIES:
            await self._fail(working, _lost_too_often())
            return
        try:
            made = await working.kind.perform(row, working.tell)
        except YieldedError:
            await self._hand_back(working)
            return
        except PASSING as error:
            if row.losses + 1 >= MOST_LOSSES:
                await self._fail(working, error)
            else:
                log.info("job is retried", extra={"job": row.id, "why": error.code})
                pause_s = min(RETRY_LAST_S, RETRY_FIRST_S * 2**row.losses)
                # Before that, it would be told the same.
                pause_s = max(pause_s, error.retry_after_s or 0)
                await self._hand_back(working, self._clock() + timedelta(seconds=pause_s))
            return
        except StokerError as error:
            await self._fail(working, error)
            return
        except Exception:
            log.exception("job failed", extra={"job": row.id})
            await self._fail(working, InternalError())
            return
        completing = asyncio.create_task(self._complete(working, made))
        try:
            await asyncio.shield(completing)
        except asyncio.CancelledError:
            # Deleted just now, or stopping: what was made is kept or dropped, never forgotten.
            await completing

    async def _complete(self, working: "_Working[Row, Made]", made: Made) -> None:
        row, kind, token = working.row, working.kind, working.token
        outcome = kind.outcome(row, made)
        status, values = outcome.waits_as, outcome.values
        async with self._database.transaction() as session:
            if status:
                held = await repository.park(
                    session, row, token=token, status=status, values=values
                )
            else:
                held = await repository.end(
                    session, row, token=token, now=self._clock(), values=values
                )
            if held:
                await kind.keep(session, row, made)
            if held and not status:
                await kind.ended(session, row, None)
        # Not where committing failed: it may have happened all the same.
        if not held:
            await kind.discard(made)

    async def _fail(self, working: "_Working[Row, Made]", error: StokerError) -> None:
        row, found = working.row, (error.code, error.message)
        async with self._database.transaction() as session:
            if await repository.end(
                session, row, token=working.token, now=self._clock(), error=found
            ):
                await working.kind.ended(session, row, error)

    async def _hand_back(
        self, working: "_Working[Row, Made]", not_before: datetime | None = None
    ) -> None:
        async with self._database.transaction() as session:
            await repository.hand_back(
                session, working.row, token=working.token, not_before=not_before
            )

    async def _keep_lease(self, working: "_Working[Row, Made]") -> None:
        while True:
            await self._sleep(self._lease.total_seconds() / _RENEWALS)
            try:
                async with self._database.transaction() as session:
                    held = await self._renew(session, working)
            except Exception:
                log.exception("lease could not be renewed; retrying")
                continue
            if not held:
                # Deleted, or taken over: whatever comes of the work now is nobody's.
                working.task.cancel()
                return

    async def _renew(self, session: Session, working: "_Working[Row, Made]") -> bool:
        """False where the job is not ours any more."""
        until = self._clock() + self._lease
        held = await repository.renew(
            session, working.row, token=working.token, until=until, progress=working.progress
        )
        if held:
            working.leased_until = until
        return held


class _Working(Generic[Row, Made]):
    """A job that this server works on."""

    task: "asyncio.Task[None]"

    def __init__(
        self,
        kind: Kind[Row, Made],
        row: Row,
        token: str,
        leased_until: datetime,
        begun_at: datetime,
    ) -> None:
        self.kind = kind
        self.row = row
        self.token = token
        self.leased_until = leased_until
        self.begun_at = begun_at
        self.progress = 0.0

    def tell(self, fraction: float) -> None:
        self.progress = fraction


def _lost_too_often() -> StokerError:
    return CapacityError(
        f"The job was begun {MOST_TRIES} times and lost its server every time.",
        code="worker_lost",
    )
