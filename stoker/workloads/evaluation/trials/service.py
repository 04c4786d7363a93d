"""Trials: jobs that measure a deployment's model on each engine and in each precision."""

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.base.errors import (
    ConflictError,
    NotFoundError,
    RateLimitError,
    StokerError,
)
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.base.ids import Prefix, new_id
from stoker.platform.jobs import repository as jobs
from stoker.platform.jobs.kind import Outcome, YieldedError
from stoker.registry.deployments import adapters, estimates, versions
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.registry.deployments.estimates import SourceFolder
from stoker.registry.deployments.specs import spec_of
from stoker.runtime.interface import OnProgress
from stoker.runtime.specification import DeploymentSpec
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.deployments import Deployment
from stoker.store.tables.jobs import JobStatus
from stoker.store.tables.trials import Trial
from stoker.workloads.evaluation.replay import examples
from stoker.workloads.evaluation.trials import measuring, repository, schemas
from stoker.workloads.evaluation.trials.candidates import (
    TrialCandidate,
    candidates,
    is_on_gpu,
    why_not,
)
from stoker.workloads.evaluation.trials.context import TrialContext
from stoker.workloads.evaluation.trials.measuring import NotRunError, Subject, TrialConfiguration
from stoker.workloads.evaluation.trials.schemas import Row, RowStatus

QUEUED = 4
"""Maximum number of queued and running trials of a deployment."""
KEPT = 20
"""Number of a deployment's latest trials that are kept."""


async def create(
    session: Session,
    context: TrialContext,
    account_id: str,
    deployment_id: str,
    body: schemas.TrialCreate,
) -> Trial:
    """Creates a trial. The caller must check the examples first. Raises also the errors of an
    unknown engine.
    """
    deployment = await deployments.get(session, account_id, deployment_id, lock=True)
    adapters.refuse(deployment, "It runs like its base. Run the trial on the base instead.")
    ways = candidates(
        context.settings,
        deployment,
        on_gpu=_is_on_gpu(context, deployment),
        only_engines=body.engines,
        only_dtypes=body.dtypes,
    )
    if not ways:
        raise ConflictError("This deployment has no configuration that can be tried.")
    if await jobs.unfinished(session, Trial, deployment_id) >= QUEUED:
        raise RateLimitError(
            f"This deployment has {QUEUED} trials waiting or running. Try again later.",
            code="queue_full",
            retry_after_s=60,
        )
    await repository.forget_older(session, deployment_id, KEPT - 1)
    row = Trial(
        id=new_id(Prefix.TRIAL),
        account_id=account_id,
        deployment_id=deployment_id,
        examples=body.examples,
        example_count=len(body.examples) if body.examples is not None else None,
        engines=body.engines,
        dtypes=body.dtypes,
        rows=[],
        status=JobStatus.QUEUED.value,
        progress=0.0,
        tries=0,
        losses=0,
        created_at=db.now(),
    )
    session.add(row)
    return row


def response(context: TrialContext, row: Trial) -> schemas.Trial:
    error = None
    if row.error_code:
        error = schemas.TrialError(code=row.error_code, message=row.error_message or "")
    return schemas.Trial(
        id=row.id,
        deployment_id=row.deployment_id,
        status=JobStatus(row.status),
        progress=context.jobs.shown(row),
        examples=row.example_count,
        rows=[Row.model_validate(item) for item in row.rows],
        error=error,
        created_at=row.created_at,
        completed_at=row.completed_at,
    )


async def get(session: Session, account_id: str, deployment_id: str, trial_id: str) -> Trial:
    await deployments.get(session, account_id, deployment_id)
    row = await repository.get(session, deployment_id, trial_id)
    if row is None:
        raise NotFoundError("Trial not found", code="trial_not_found")
    return row


class TrialJob:
    """The `JobKind` of trials."""

    table = Trial

    def __init__(self, context: TrialContext) -> None:
        self._context = context

    async def perform(self, row: Trial, on_progress: OnProgress) -> list[dict[str, Any]]:
        """Measures the rows that no earlier worker has stored.

        The first row is always measured again, because the others are compared with it.
        """
        CURRENT_CALLER.set(Party(row.account_id))
        deployment, ways = await self._ways(row)
        entry = self._context.calls.directory.find(row.deployment_id)
        if entry is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        subject = self._subject(row, entry)
        rows = {_way_of(item): item for item in row.rows}
        reference: list[bytes] | None = None
        for number, (way, spec) in enumerate(ways):
            if reference is not None and way in rows:
                continue
            result, answers = await self._measured(deployment, subject, way, spec)
            if answers is not None:
                reference = answers if reference is None else reference
                result = await measuring.compared(
                    self._context.comparer, row.account_id, result, reference, answers
                )
            rows[way] = result.model_dump(mode="json")
            on_progress((number + 1) / len(ways))
            await self._keep(row, [rows[item] for item, _ in ways if item in rows])
            # Yields only after the first row, which each turn has to measure again.
            is_last = all(other in rows for other, _ in ways[number + 1 :])
            if number and not is_last and self._context.jobs.should_yield(row):
                raise YieldedError
        return [rows[way] for way, _ in ways]

    async def _ways(
        self, row: Trial
    ) -> "tuple[Deployment, list[tuple[TrialCandidate, DeploymentSpec]]]":
        context = self._context
        async with context.database.reading() as session:
            deployment = await deployments.get(session, row.account_id, row.deployment_id)
        folder = await estimates.folder_again(context.settings, deployment)
        async with context.database.reading() as session:
            ways = candidates(
                context.settings,
                deployment,
                on_gpu=_is_on_gpu(context, deployment),
                only_engines=row.engines,
                only_dtypes=row.dtypes,
            )
            return deployment, [
                (way, await _spec(session, deployment, way, folder)) for way in ways
            ]

    def _subject(self, row: Trial, entry: DirectoryEntry) -> Subject:
        directory = self._context.calls.directory
        return Subject(
            trial_id=row.id,
            entry=entry,
            path=examples.path_of(entry.pipeline),
            examples=examples.prepared(entry.pipeline, row.examples),
            may_drop=row.examples is None,
            still_wanted=lambda: directory.find(entry.deployment_id) is not None,
        )

    async def _measured(
        self, deployment: Deployment, subject: Subject, way: TrialCandidate, spec: DeploymentSpec
    ) -> tuple[Row, list[bytes] | None]:
        """Returns a row, with the answers if it has any."""

        def without(status: RowStatus, reason: str) -> tuple[Row, None]:
            row = Row(
                engine=way.engine,
                dtype=way.dtype,
                weight_format=way.weight_format,
                status=status,
                reason=reason,
            )
            return row, None

        on_gpu = _is_on_gpu(self._context, deployment)
        if why := why_not(self._context.settings, deployment, way, on_gpu=on_gpu):
            return without(RowStatus.UNAVAILABLE, why)
        try:
            return await TrialConfiguration(self._context.calls, subject, spec).measured()
        except NotRunError as error:
            return without(RowStatus.FAILED, str(error))

    async def _keep(self, row: Trial, rows: Sequence[dict[str, Any]]) -> None:
        async with self._context.database.transaction() as session:
            await repository.keep_rows(session, row, rows)

    def outcome(self, row: Trial, made: list[dict[str, Any]]) -> Outcome:
        return Outcome({"rows": made})

    async def keep(self, session: Session, row: Trial, made: list[dict[str, Any]]) -> None:
        """Does nothing: all results are in the row."""

    async def ended(self, session: Session, row: Trial, error: StokerError | None) -> None:
        await repository.drop_examples(session, row.id)

    async def discard(self, made: list[dict[str, Any]]) -> None:
        """Does nothing: no other data exists."""


def _is_on_gpu(context: TrialContext, deployment: Deployment) -> bool:
    runtime = context.calls.runtime
    nodes = [node.machine for node in runtime.nodes()]
    return is_on_gpu(deployment.device, nodes or [runtime.machine()])


def _way_of(row: Mapping[str, Any]) -> TrialCandidate:
    return TrialCandidate(row["engine"], row["dtype"], row["weight_format"])


async def _spec(
    session: Session, deployment: Deployment, way: TrialCandidate, folder: SourceFolder | None
) -> DeploymentSpec:
    """Returns the specification of the deployment in this configuration."""
    changed = versions.applied(deployment, way.applied(deployment))
    changed.memory_bytes = await estimates.again(session, changed, folder)
    return spec_of(changed)
