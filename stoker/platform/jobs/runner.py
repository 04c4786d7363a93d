"""Runs jobs: claims them, renews their leases, and ends each of them once."""

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Generic

from stoker.base.errors import (
    CapacityError,
    InternalError,
    ModelLoadingError,
    RateLimitError,
    StokerError,
)
from stoker.base.fairness import FairShare
from stoker.platform.jobs import repository
from stoker.platform.jobs.kind import JobKind, Made, Row, YieldedError
from stoker.platform.jobs.running_job import RunningJob
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.jobs import JobStatus

log = logging.getLogger(__name__)


MOST_LOSSES = 5
"""Maximum number of lost attempts. A job that crashes its worker every time must end."""
MOST_TRIES = 100
"""Maximum number of starts. A job that reaches it probably crashes its server. The limit is high,
because servers often stop for other reasons.
"""
PASSING: tuple[type[StokerError], ...] = (CapacityError, ModelLoadingError, RateLimitError)
"""Errors that are not caused by the job itself. The job is retried."""
RETRY_FIRST_S = 2.0
RETRY_LAST_S = 60.0
_RENEWALS = 4
"""Renewals per lease duration, so that one late renewal does no harm."""
POLL_S = 2.0
"""Seconds between polls for retries, expired leases and other servers' jobs. New jobs of this
server wake the runner.
"""
_REST_S = 60.0
"""Seconds between polls of a runner without work that a `JobPoller` wakes, or whose database has no
unfinished job and no other server.
"""


class JobRunner(Generic[Row, Made]):
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
            share: returns the maximum number of concurrent jobs of a deployment.
            turn_s: seconds for which a job keeps its place while an account with fewer jobs waits.
                Only for kinds that can resume. None means until the job ends.
            sleep: sleeps for a number of seconds of the clock.
        """
        self._database = database
        self._lease = timedelta(seconds=lease_s)
        self._turns = FairShare(at_once)
        self._share = share
        self._turn = None if turn_s is None else timedelta(seconds=turn_s)
        self._without_place: set[str] = set()
        """Accounts with due jobs that got no place in the last round."""
        self._clock = clock
        self._sleep = sleep
        self._working: dict[str, RunningJob[Row, Made]] = {}
        self._wake = asyncio.Event()
        self._kind: JobKind[Row, Made] | None = None
        """Kind of the jobs while the runner runs, otherwise None."""
        self._has_room = True
        """True if no due job was left out in the last round."""
        self._may_become_due = True
        """True if a job may become due without a call of `wake`."""
        self.is_polled = False
        """True if a `JobPoller` wakes this runner while it has no work."""

    def at_work(self) -> dict[str, float]:
        """Returns the jobs that this server works on: job id to progress from 0 to 1."""
        return {job_id: working.progress for job_id, working in self._working.items()}

    def wake(self) -> None:
        """Wakes the runner, because a job may be due."""
        self._wake.set()

    def wake_if_idle(self) -> None:
        """Wakes the runner unless it works on jobs. It then polls by itself."""
        if not self._working:
            self.wake()

    def take(self, session: Session, row: Row) -> None:
        """Leases a row that this transaction makes due, so that work starts at the commit. Leaves
        the row in the queue if the runner has no free place.
        """
        rows = [running.row for running in self._working.values()]
        at_work = sum(running.deployment_id == row.deployment_id for running in rows)
        has_room = (
            self._has_room
            and self._turns.may_begin(
                row.account_id, Counter(running.account_id for running in rows)
            )
            and at_work < self._share(row.deployment_id)
        )
        if self._kind is None or not has_room:
            # The next job that ends wakes the runner.
            self._has_room = False
            session.after_commit(self.wake)
            return
        working = self._leased(self._kind, row)
        session.after_commit(lambda: self._begin(working))

    def should_yield(self, row: Row) -> bool:
        """Returns True if an account with fewer running jobs than the row's account waits."""
        at_work = self._by_account()
        account_jobs = at_work[row.account_id]
        return any(at_work[name] < account_jobs for name in self._without_place - {row.account_id})

    def jobs_of(self, deployment_id: str) -> list[str]:
        """Returns the ids of a deployment's jobs that this server works on."""
        items = self._working.items()
        return [job_id for job_id, working in items if working.row.deployment_id == deployment_id]

    def cancel(self, job_id: str) -> None:
        """Cancels the work on a deleted job."""
        if working := self._working.get(job_id):
            working.task.cancel()

    async def let_go(self) -> None:
        """Cancels the work on jobs that any server deleted or cancelled. The next renewal of their
        leases would detect it too.
        """
        working = {item.token: item for item in self._working.values()}
        if not working or self._kind is None:
            return
        async with self._database.reading() as session:
            leased = await repository.held(session, self._kind.table, [*working])
        for token in working.keys() - leased:
            working[token].task.cancel()

    def progress(self, job_id: str) -> float | None:
        """Returns the progress of a job that this server works on, otherwise None."""
        working = self._working.get(job_id)
        return working.progress if working else None

    def shown(self, row: Row) -> float:
        """Returns the progress of a job from 0 to 1: the larger of its row's value and this
        server's value.
        """
        if row.status == JobStatus.COMPLETED:
            return 1.0
        return max(row.progress, self.progress(row.id) or 0.0)

    async def run(self, kind: JobKind[Row, Made]) -> None:
        """Works until cancelled, then hands back unfinished jobs."""
        self._kind = kind
        try:
            while True:
                # First, because a job may be created during the round, and its wake must last.
                self._wake.clear()
                try:
                    # Not interruptible: a leased job must start, because nothing else would hand it
                    # back.
                    await db.uncut(self._claim_all(kind))
                except Exception:
                    self._may_become_due = True
                    log.exception("jobs could not be claimed; retrying")
                # Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that arrives
                # together with the awaited result.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S if self._may_become_due else _REST_S):
                        await self._wake.wait()
        finally:
            self._kind = None
            # A task that is cancelled before its first step cannot hand its job back.
            await asyncio.sleep(0)
            tasks = [working.task for working in self._working.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _claim_all(self, kind: JobKind[Row, Made]) -> None:
        claimed: list[RunningJob[Row, Made]] = []
        async with self._database.transaction() as session:
            await self._renew_overdue(session)
            while await self._claim_some(session, kind, claimed):
                # Jobs of other deployments may follow those of deployments that are now busy.
                await session.flush()
            self._may_become_due = bool(claimed or self._working) or await self._must_poll(
                session, kind
            )
        for working in claimed:
            self._begin(working)
        self._take_turns()

    async def _must_poll(self, session: Session, kind: JobKind[Row, Made]) -> bool:
        """Returns True if this runner must poll although it has no work."""
        if self._database.is_sqlite:
            return await repository.has_unfinished(session, kind.table)
        return not self.is_polled

    def _by_account(self) -> Counter[str]:
        return Counter(working.row.account_id for working in self._working.values())

    def _take_turns(self) -> None:
        """Ends the turn of a job that has used up its time, if another account waits.

        Prefers accounts with the most running jobs, then the oldest job. Its work is cancelled, and
        the job is handed back to wait for its next turn.
        """
        if self._turn is None:
            return
        over = self._clock() - self._turn
        long = [
            working
            for working in self._working.values()
            if working.begun_at <= over and self.should_yield(working.row)
        ]
        if long:
            at_work = self._by_account()
            first = min(
                long, key=lambda working: (-at_work[working.row.account_id], working.begun_at)
            )
            log.info("job yields to another account", extra={"job": first.row.id})
            first.task.cancel()

    async def _claim_some(
        self, session: Session, kind: JobKind[Row, Made], claimed: list[RunningJob[Row, Made]]
    ) -> bool:
        """Leases the jobs that each account may start now. Returns True if any were leased."""
        rows = [working.row for working in (*self._working.values(), *claimed)]
        by_deployment = Counter(row.deployment_id for row in rows)
        busy = [name for name, count in by_deployment.items() if count >= self._share(name)]
        held_tokens = [working.token for working in self._working.values()]
        now, before = self._clock(), len(claimed)
        waiting = await repository.due_accounts(
            session, kind.table, now=now, busy=busy, held=held_tokens
        )
        self._has_room = not busy and not waiting
        by_account = Counter(row.account_id for row in rows)
        for account_id, places in self._turns.allot(by_account, waiting).items():
            due_rows = await repository.due(
                session,
                kind.table,
                now=now,
                busy=busy,
                held=held_tokens,
                account_id=account_id,
                limit=places,
            )
            for row in due_rows:
                by_deployment[row.deployment_id] += 1
                if by_deployment[row.deployment_id] <= self._share(row.deployment_id):
                    claimed.append(self._leased(kind, row))
        self._without_place = {*waiting} - {working.row.account_id for working in claimed[before:]}
        return len(claimed) > before

    async def _renew_overdue(self, session: Session) -> None:
        """Renews expired leases after a stall, before another server treats their jobs as lost."""
        now = self._clock()
        for working in list(self._working.values()):
            if working.leased_until <= now:
                await self._renew(session, working)

    def _leased(self, kind: JobKind[Row, Made], row: Row) -> RunningJob[Row, Made]:
        token, until = secrets.token_hex(16), self._clock() + self._lease
        repository.lease(row, token=token, until=until)
        return RunningJob(kind, row, token, until, until - self._lease)

    def _begin(self, working: RunningJob[Row, Made]) -> None:
        self._working[working.row.id] = working
        working.task = asyncio.create_task(self._work(working))
        if not self._may_become_due:
            # The job may be handed back to be retried later.
            self._may_become_due = True
            asyncio.get_running_loop().call_later(POLL_S, self.wake)

    async def _work(self, working: RunningJob[Row, Made]) -> None:
        renewing = asyncio.create_task(self._keep_lease(working))
        try:
            await self._try(working)
        except asyncio.CancelledError:
            await self._hand_back(working)
        except Exception:
            # The lease expires, and the job is claimed again.
            log.exception("job could not be stopped", extra={"job": working.row.id})
        finally:
            renewing.cancel()
            if self._working.get(working.row.id) is working:
                del self._working[working.row.id]
            if not self._has_room:
                self.wake()

    async def _try(self, working: RunningJob[Row, Made]) -> None:
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
                # An earlier attempt would get the same error.
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
            # The job was deleted or the runner stops. The result must be kept or dropped, but not
            # lost.
            await completing

    async def _complete(self, working: RunningJob[Row, Made], made: Made) -> None:
        row, kind, token = working.row, working.kind, working.token
        outcome = kind.outcome(row, made)
        status, values = outcome.waits_as, outcome.values
        async with self._database.transaction() as session:
            if status:
                is_held = await repository.park(
                    session, row, token=token, status=status, values=values
                )
            else:
                is_held = await repository.end(
                    session, row, token=token, now=self._clock(), values=values
                )
            if is_held:
                await kind.keep(session, row, made)
            if is_held and not status:
                await kind.ended(session, row, None)
        # Not after a failed commit, because it may have succeeded.
        if not is_held:
            await kind.discard(made)

    async def _fail(self, working: RunningJob[Row, Made], error: StokerError) -> None:
        row, failure = working.row, (error.code, error.message)
        async with self._database.transaction() as session:
            if await repository.end(
                session, row, token=working.token, now=self._clock(), error=failure
            ):
                await working.kind.ended(session, row, error)

    async def _hand_back(
        self, working: RunningJob[Row, Made], not_before: datetime | None = None
    ) -> None:
        async with self._database.transaction() as session:
            await repository.hand_back(
                session, working.row, token=working.token, not_before=not_before
            )

    async def _keep_lease(self, working: RunningJob[Row, Made]) -> None:
        while True:
            await self._sleep(self._lease.total_seconds() / _RENEWALS)
            try:
                async with self._database.transaction() as session:
                    is_held = await self._renew(session, working)
            except Exception:
                log.exception("lease could not be renewed; retrying")
                continue
            if not is_held:
                # The job was deleted or another server holds it, so the result is of no use.
                working.task.cancel()
                return

    async def _renew(self, session: Session, working: RunningJob[Row, Made]) -> bool:
        """Renews the lease. Returns False if another worker holds the job."""
        until = self._clock() + self._lease
        is_held = await repository.renew(
            session, working.row, token=working.token, until=until, progress=working.progress
        )
        if is_held:
            working.leased_until = until
        return is_held


def _lost_too_often() -> StokerError:
    return CapacityError(
        f"The job was started {MOST_TRIES} times, and its server was lost every time.",
        code="worker_lost",
    )
