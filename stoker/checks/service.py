"""Checks: requests with what is expected of their answers, kept with a deployment."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.asking import examples
from stoker.asking.inside import Inside
from stoker.checks import schemas
from stoker.checks.context import CheckContext
from stoker.checks.expecting import check_schema, failing
from stoker.deployments import service as deployments
from stoker.errors import ConflictError, NotFoundError, StokerError
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.checks import DeploymentChecks
from stoker.tasks.registry import GENERATING
from stoker.turns import PARTY, Party

AT_ONCE = 4
"""Checks that are asked at the same time, so that a batch of them is one."""


def check(pipeline: str, given: Sequence[schemas.Check]) -> None:
    """Raise `InvalidRequestError` for a check that no answer can pass: its request would be
    refused where no such status is expected, or its schema is none.
    """
    for index, one in enumerate(given):
        if one.expect.status == 200:
            examples.check(pipeline, [one.request], [f"checks[{index}].request"])
        if one.expect.json_schema is not None:
            check_schema(one.expect.json_schema, f"checks[{index}].expect.json_schema")


async def put(
    session: Session, account_id: str, deployment_id: str, given: Sequence[schemas.Check]
) -> schemas.Checks:
    """Keep these in place of those that there were, with whose report nothing can be begun."""
    await deployments.get(session, account_id, deployment_id, lock=True)
    row = DeploymentChecks(
        deployment_id=deployment_id,
        checks=[one.model_dump(mode="json", exclude_unset=True) for one in given],
        report=None,
        updated_at=db.now(),
    )
    await session.merge(row)
    return _told(deployment_id, row)


async def get(session: Session, account_id: str, deployment_id: str) -> schemas.Checks:
    await deployments.get(session, account_id, deployment_id)
    return _told(deployment_id, await session.get(DeploymentChecks, deployment_id))


async def run(context: CheckContext, account_id: str, deployment_id: str) -> schemas.Report:
    """Ask all of them now. Raises `ConflictError` where there are none."""
    async with context.database.reading() as session:
        kept = await get(session, account_id, deployment_id)
    if not kept.checks:
        raise ConflictError(
            "The deployment has no checks: PUT some first.", code="no_checks", param="checks"
        )
    entry = context.calls.directory.find(deployment_id)
    if entry is None:
        raise NotFoundError("Deployment not found", code="deployment_not_found")
    PARTY.set(Party(account_id))
    results = await results_of(
        Inside(context.calls, entry, entry.version_id),
        entry.pipeline,
        [schemas.Check.model_validate(one) for one in kept.checks],
    )
    report = schemas.Report(
        deployment_id=deployment_id,
        is_passed=all(one.is_passed for one in results),
        results=results,
        created_at=db.now(),
    )
    async with context.database.transaction() as session:
        row = await session.get(DeploymentChecks, deployment_id)
        # Others may have been put meanwhile.
        if row is not None and row.updated_at == kept.updated_at:
            row.report = report.model_dump(mode="json")
    return report


async def results_of(
    inside: Inside, pipeline: str, given: Sequence[schemas.Check]
) -> list[schemas.Result]:
    """What becomes of checks, in their order."""
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(one: schemas.Check) -> schemas.Result:
        async with places:
            return await _result(inside, pipeline, one)

    return await asyncio.gather(*(ask(one) for one in given))


async def _result(inside: Inside, pipeline: str, one: schemas.Check) -> schemas.Result:
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
        message = f"It is answered with {status} and not {one.expect.status}{why}"
    elif content is not None:
        # An answer may be large, and a schema slow.
        message = await asyncio.to_thread(
            failing, one.expect, content, is_written=pipeline in GENERATING
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
