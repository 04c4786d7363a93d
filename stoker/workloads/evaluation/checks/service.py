"""Checks: requests with expected answers, stored with a deployment."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stoker.base.errors import ConflictError, NotFoundError, StokerError
from stoker.base.fairness import CURRENT_CALLER, Party
from stoker.models.tasks.registry import GENERATING
from stoker.platform.quotas.limits import Quota
from stoker.platform.quotas.service import QuotaService
from stoker.registry.deployments import service as deployments
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.checks import DeploymentChecks
from stoker.workloads.evaluation.checks import schemas
from stoker.workloads.evaluation.checks.context import CheckContext
from stoker.workloads.evaluation.checks.judges import Judges
from stoker.workloads.evaluation.replay import examples
from stoker.workloads.evaluation.replay.internal_client import InternalClient

AT_ONCE = 4
"""Number of checks that run concurrently, so that they can share one batch."""


def check(pipeline: str, given: Sequence[schemas.Check]) -> None:
    """Raises `InvalidRequestError` for a request that would be rejected, unless its rejection is
    expected.
    """
    for index, item in enumerate(given):
        if item.expect.status == 200:
            examples.check(pipeline, [item.request], [f"checks[{index}].request"])


def schemas_of(given: Sequence[schemas.Check]) -> dict[str, dict[str, Any]]:
    """Returns the expected JSON schemas, by their places in the request."""
    return {
        f"checks[{index}].expect.json_schema": item.expect.json_schema
        for index, item in enumerate(given)
        if item.expect.json_schema is not None
    }


async def put(
    session: Session,
    quotas: QuotaService,
    account_id: str,
    deployment_id: str,
    given: Sequence[schemas.Check],
) -> schemas.Checks:
    """Replaces a deployment's checks. The report of the earlier checks no longer applies."""
    await deployments.get(session, account_id, deployment_id, lock=True)
    before = await session.get(DeploymentChecks, deployment_id)
    row = DeploymentChecks(
        deployment_id=deployment_id,
        checks=[item.model_dump(mode="json", exclude_unset=True) for item in given],
        report=None,
        updated_at=db.now(),
    )
    row.stored_bytes = _size(row)
    more = row.stored_bytes - (before.stored_bytes if before else 0)
    await quotas.take(session, account_id, Quota.STORAGE_BYTES, more)
    await session.merge(row)
    return _told(deployment_id, row)


def _size(row: DeploymentChecks) -> int:
    """Size in bytes as JSON."""
    return len(msgspec.json.encode([row.checks, row.report]))


async def get(session: Session, account_id: str, deployment_id: str) -> schemas.Checks:
    await deployments.get(session, account_id, deployment_id)
    return _told(deployment_id, await session.get(DeploymentChecks, deployment_id))


async def run(context: CheckContext, account_id: str, deployment_id: str) -> schemas.Report:
    """Runs all checks now. Raises `ConflictError` if none exist."""
    async with context.database.reading() as session:
        stored = await get(session, account_id, deployment_id)
    if not stored.checks:
        raise ConflictError(
            "The deployment has no checks: PUT some first.", code="no_checks", param="checks"
        )
    entry = context.calls.directory.find(deployment_id)
    if entry is None:
        raise NotFoundError("Deployment not found", code="deployment_not_found")
    CURRENT_CALLER.set(Party(account_id))
    results = await results_of(
        InternalClient(context.calls, entry, entry.version_id),
        context.judges,
        entry,
        [schemas.Check.model_validate(item) for item in stored.checks],
    )
    report = schemas.Report(
        deployment_id=deployment_id,
        is_passed=all(item.is_passed for item in results),
        results=results,
        created_at=db.now(),
    )
    async with context.database.transaction() as session:
        row = await session.get(DeploymentChecks, deployment_id)
        # The checks may have been replaced meanwhile.
        if row is not None and row.updated_at == stored.updated_at:
            row.report = report.model_dump(mode="json")
            row.stored_bytes = _size(row)
    return report


async def results_of(
    inside: InternalClient, judges: Judges, entry: DirectoryEntry, given: Sequence[schemas.Check]
) -> list[schemas.Result]:
    """Returns the results of checks, in their order."""
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(one: schemas.Check) -> schemas.Result:
        async with places:
            return await _result(inside, judges, entry, one)

    return await asyncio.gather(*(ask(item) for item in given))


async def _result(
    inside: InternalClient, judges: Judges, entry: DirectoryEntry, one: schemas.Check
) -> schemas.Result:
    pipeline = entry.pipeline
    (request,) = examples.prepared(pipeline, [one.request])
    began = time.perf_counter()
    content: bytes | None = None
    try:
        content = await inside.answer(examples.path_of(pipeline), inside.body(request))
        status, why = 200, ""
    except StokerError as error:
        status, why = error.status, f": {error.message}"
    seconds = time.perf_counter() - began
    message = ""
    if status != one.expect.status:
        message = f"The answer has status {status} and not {one.expect.status}{why}"
    elif content is not None:
        expect = one.expect.model_dump(mode="json", exclude_unset=True)
        message = await judges.failing(
            entry.account_id, expect, content, is_written=pipeline in GENERATING
        )
    return schemas.Result(
        name=one.name, is_passed=not message, message=message, ms=round(seconds * 1000, 3)
    )


def _told(deployment_id: str, row: DeploymentChecks | None) -> schemas.Checks:
    report: Mapping[str, Any] | None = row.report if row else None
    return schemas.Checks(
        deployment_id=deployment_id,
        checks=row.checks if row else [],
        report=schemas.Report.model_validate(report) if report else None,
        updated_at=row.updated_at if row else None,
    )
