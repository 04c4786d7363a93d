"""Records observations of deployments, away from the event loop's hot paths."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy.exc import IntegrityError

from stoker.base.ids import Prefix, new_id
from stoker.registry.deployments import repository, versions
from stoker.runtime.listening import RuntimeListener
from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import DeploymentSpec
from stoker.store import db
from stoker.store.db import Database, Session
from stoker.store.tables.deployments import Deployment, DeploymentEvent, Desired
from stoker.store.waiting import written
from stoker.wire.notices import Notice

log = logging.getLogger(__name__)


def event_of(
    deployment_id: str,
    version_id: str,
    status: Status,
    reason: Reason,
    message: str,
    *,
    at: datetime | None = None,
) -> DeploymentEvent:
    """
    Args:
        at: time of the event. None means now.
    """
    return DeploymentEvent(
        id=new_id(Prefix.EVENT),
        deployment_id=deployment_id,
        version_id=version_id,
        status=status.value,
        reason=reason.value,
        message=message,
        created_at=at or db.now(),
    )


async def untold(session: Session, row: Deployment) -> DeploymentEvent | None:
    """Returns the event of a stop or start that no node reports, because no node holds a lease of
    the deployment. Returns None if a node holds one.
    """
    if await repository.is_leased(session, row.live_version_id):
        return None
    how = (row.id, row.live_version_id)
    if row.desired == Desired.STOPPED:
        return event_of(*how, Status.STOPPED, Reason.STOPPED_BY_USER, "Stopped.")
    return event_of(*how, Status.IDLE, Reason.CHANGED, "Waiting for its first request.")


@dataclass(frozen=True)
class _Change:
    deployment_id: str
    version_id: str
    status: Status
    reason: Reason
    message: str
    at: datetime


@dataclass(frozen=True)
class _Measured:
    spec: DeploymentSpec

    @property
    def deployment_id(self) -> str:
        return self.spec.deployment


@dataclass(frozen=True)
class _Noticed:
    spec: DeploymentSpec
    notices: Sequence[Notice]

    @property
    def deployment_id(self) -> str:
        return self.spec.deployment


_Observed = _Change | _Measured | _Noticed


class EventLog(RuntimeListener):
    """Writer of deployment events. Events are a convenience: a full queue drops the newest. A full
    disk delays writing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._observed: asyncio.Queue[_Observed] = asyncio.Queue(maxsize=10_000)

    def changed(self, spec: DeploymentSpec, status: Status, reason: Reason, message: str) -> None:
        self._put(_Change(spec.deployment, spec.id, status, reason, message, db.now()))

    def measured(self, spec: DeploymentSpec) -> None:
        self._put(_Measured(spec))

    def noticed(self, spec: DeploymentSpec, notices: Sequence[Notice]) -> None:
        self._put(_Noticed(spec, notices))

    def _put(self, observed: _Observed) -> None:
        try:
            self._observed.put_nowait(observed)
        except asyncio.QueueFull:
            log.warning("deployment event dropped", extra={"deployment": observed.deployment_id})

    async def run(self) -> None:
        while True:
            observed = await self._observed.get()
            try:
                await written(partial(self._write, observed), "events of deployments")
            except IntegrityError:
                # The deployment and its events were deleted in the meantime.
                continue
            except Exception:
                log.exception("deployment event could not be written")

    async def _write(self, observed: _Observed) -> None:
        async with self._database.transaction() as session:
            if isinstance(observed, _Measured):
                await versions.weighed(session, observed.spec)
            elif isinstance(observed, _Noticed):
                await versions.keep_notices(session, observed.spec, observed.notices)
            else:
                # Create a new row for each attempt.
                session.add(
                    event_of(
                        observed.deployment_id,
                        observed.version_id,
                        observed.status,
                        observed.reason,
                        observed.message,
                        at=observed.at,
                    )
                )
