"""Checks whether a version can take over, and promotes it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from stoker.base.errors import (
    ConflictError,
    InferenceError,
    InvalidRequestError,
    NotFoundError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.platform.jobs.kind import Outcome
from stoker.registry.deployments import adapters, versions
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.registry.deployments.specs import prepared_spec, spec_of
from stoker.runtime.interface import OnProgress
from stoker.runtime.observed import Status
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment, DeploymentVersion, VersionStatus
from stoker.workloads.evaluation.checks import service as checks
from stoker.workloads.evaluation.checks.schemas import Check
from stoker.workloads.evaluation.replay import examples
from stoker.workloads.evaluation.replay.internal_client import InternalClient
from stoker.workloads.rollouts.context import VersionContext

_LOOK_S = 0.05
_SHOWN = 5


@dataclass(frozen=True)
class Proven:
    """A version that passed its checks and is loaded."""

    version_id: str


class RolloutJob:
    """The `JobKind` of new versions."""

    table = DeploymentVersion

    def __init__(self, context: VersionContext) -> None:
        self._context = context

    async def perform(self, row: DeploymentVersion, on_progress: OnProgress) -> Proven:
        context = self._context
        CURRENT_CALLER.set(Party(row.account_id))
        async with context.database.reading() as session:
            deployment = await deployments.get(session, row.account_id, row.deployment_id)
        entry = context.directory.find(row.deployment_id)
        if entry is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        await adapters.check_version(context, spec_of(deployment, row))
        async with self._room(deployment, row):
            context.runtime.apply(prepared_spec(deployment, row), running=True)
            await self._loaded(deployment, row, on_progress)
            inside = InternalClient(context.calls, entry, row.id)
            await self._tried(inside, entry)
            on_progress(0.9)
            await self._set_state(row, VersionStatus.CHECKING)
            await self._checked(inside, entry)
        return Proven(row.id)

    @contextlib.asynccontextmanager
    async def _room(self, deployment: Deployment, row: DeploymentVersion) -> AsyncGenerator[None]:
        """Provides memory for a version. If the version fails, the previous state is restored."""
        context = self._context
        await self._set_state(row, VersionStatus.PREPARING)
        in_place = row.strategy == "in_place"
        if in_place:
            context.directory.hold(deployment.id)
        try:
            if in_place:
                await self._empty(deployment)
            yield
        except BaseException as error:
            if isinstance(error, Exception):
                await context.runtime.remove(row.id)
            if in_place:
                await self._as_before(deployment)
            raise

    async def _empty(self, deployment: Deployment) -> None:
        """Unloads the live version, once it has answered its calls."""
        runtime, live = self._context.runtime, spec_of(deployment)
        deadline = time.monotonic() + self._context.settings.inference_timeout_s
        is_stopped = False
        while stats := runtime.stats(live.id):
            if not is_stopped and (not stats.calls or time.monotonic() > deadline):
                runtime.apply(live, running=False)
                is_stopped = True
            elif is_stopped and not stats.replicas:
                return
            await asyncio.sleep(_LOOK_S)

    async def _as_before(self, deployment: Deployment) -> None:
        context = self._context
        try:
            async with context.database.transaction() as session:
                row = await deployments.get(
                    session, deployment.account_id, deployment.id, lock=True
                )
                await versions.publish(session, context, row)
        except NotFoundError:
            # The deployment was deleted meanwhile.
            pass
        finally:
            context.directory.release(deployment.id)

    async def _loaded(
        self, deployment: Deployment, row: DeploymentVersion, on_progress: OnProgress
    ) -> None:
        """Waits until the version can serve. Raises `StokerError` if it cannot be loaded."""
        context = self._context
        least = max(1, deployment.min_replicas)
        deadline = time.monotonic() + context.settings.load_timeout_s
        while True:
            context.calls.credits.check(row.account_id)
            stats = context.runtime.stats(row.id)
            if stats is None:
                raise NotFoundError("Version not found", code="version_not_found")
            if stats.status is Status.FAILED:
                raise InferenceError(stats.message, code=stats.reason.value)
            ready = sum(replica.status is Status.READY for replica in stats.replicas)
            if ready >= least:
                return
            if time.monotonic() > deadline:
                raise InferenceError("The version was not loaded in time.", code="load_timeout")
            on_progress(0.8 * max((replica.progress for replica in stats.replicas), default=0.0))
            await asyncio.sleep(_LOOK_S)

    async def _tried(self, inside: InternalClient, entry: DirectoryEntry) -> None:
        """Calls the version with made-up inputs. It must accept one of them. Raises
        `StokerError`.
        """
        try:
            path = examples.path_of(entry.pipeline)
        except InvalidRequestError:
            # The pipeline answers with jobs.
            return
        refused: InvalidRequestError | None = None
        made = examples.prepared(entry.pipeline, None)
        for example in made:
            try:
                await inside.answer(path, inside.body(example))
            except InvalidRequestError as error:
                # An example may be too long for the model.
                refused = error
            else:
                return
        if refused:
            raise refused

    async def _checked(self, inside: InternalClient, entry: DirectoryEntry) -> None:
        """Raises `ConflictError` if an answer does not meet the deployment's checks."""
        async with self._context.database.reading() as session:
            stored = await checks.get(session, entry.account_id, entry.deployment_id)
        parsed = [Check.model_validate(item) for item in stored.checks]
        results = await checks.results_of(inside, self._context.judges, entry, parsed)
        failed = [item for item in results if not item.is_passed]
        if failed:
            shown = "; ".join(f"{item.name}: {item.message}" for item in failed[:_SHOWN])
            more = f"; and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
            raise ConflictError(
                f"{len(failed)} of {len(results)} checks failed: {shown}{more}",
                code="checks_failed",
            )

    async def _set_state(self, row: DeploymentVersion, state: VersionStatus) -> None:
        async with self._context.database.transaction() as session:
            version = await session.get(DeploymentVersion, row.id)
            if version is not None:
                version.state, version.reason, version.message = state.value, "", ""

    def outcome(self, row: DeploymentVersion, made: Proven) -> Outcome:
        return Outcome({"state": VersionStatus.READY.value})

    async def keep(self, session: Session, row: DeploymentVersion, made: Proven) -> None:
        context = self._context
        deployment = await deployments.get(session, row.account_id, row.deployment_id, lock=True)
        version = await versions.get(session, row.deployment_id, row.id)
        await session.refresh(version)
        if version.promote == "when_ready":
            await versions.take_over(session, deployment, version)
        await versions.publish(session, context, deployment)

    async def ended(
        self, session: Session, row: DeploymentVersion, error: StokerError | None
    ) -> None:
        session.after_commit(lambda: self._context.directory.release(row.deployment_id))
        if error is not None:
            version = await versions.get(session, row.deployment_id, row.id)
            version.state = VersionStatus.FAILED.value
            version.reason, version.message = error.code, error.message

    async def discard(self, made: Proven) -> None:
        await self._context.runtime.remove(made.version_id)
