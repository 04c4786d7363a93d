"""Liveness and readiness: these routes and the API's own description are the only ones that need no
key.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

import stoker
from stoker.platform.web.context import Platform, PlatformDep, part
from stoker.registry.deployments.context import ContextDep
from stoker.registry.deployments.folders import ModelFolders
from stoker.server.background import Background
from stoker.server.edge.connections import Connections
from stoker.server.workers.fleet import WorkerFleet

router = APIRouter(tags=["Health"])


class Health(BaseModel):
    status: Literal["ok", "failing"]
    version: str
    problem: str | None = Field(
        default=None, description="Problem that keeps the server from working."
    )
    warning: str | None = Field(
        default=None,
        description="Problems that affect some models, or a missing HTTP worker. Calls still work.",
    )


async def _fleet(request: Request) -> WorkerFleet | None:
    return request.app.state.parts.find(WorkerFleet)


async def _connections(request: Request) -> Connections | None:
    return request.app.state.parts.find(Connections)


FleetDep = Annotated[WorkerFleet | None, Depends(_fleet)]
ConnectionsDep = Annotated[Connections | None, Depends(_connections)]
BackgroundDep = Annotated[Background, part(Background)]


async def _problem(platform: Platform, background: Background) -> str | None:
    if problem := platform.runtime.check() or background.problem:
        return problem
    try:
        await platform.database.ping()
    except Exception:
        return "The database does not answer."
    return None


def _answer(response: Response, problem: str | None, warning: str | None = None) -> Health:
    if problem:
        response.status_code = 503
    return Health(
        status="failing" if problem else "ok",
        version=stoker.__version__,
        problem=problem,
        warning=warning,
    )


def _incomplete(folders: ModelFolders) -> tuple[str | None, str | None]:
    """Returns the problem or warning about missing model files. Neither names a model, because this
    route needs no key.
    """
    lost, all_models = folders.incomplete, folders.looked_at
    if not lost:
        return None, None
    message = (
        f"{lost} of {all_models} models have missing files. Check that the data folder is "
        "complete and the right one. Each deployment's status names its files."
    )
    return message if lost == all_models else None, message


@router.get("/health", responses={503: {"model": Health}})
async def health(
    platform: PlatformDep, background: BackgroundDep, response: Response, fleet: FleetDep = None
) -> Health:
    """Check that the process is alive and makes progress."""
    warning = fleet.warning if fleet else None
    return _answer(response, await _problem(platform, background), warning)


@router.get("/ready", responses={503: {"model": Health}})
async def ready(
    platform: PlatformDep,
    background: BackgroundDep,
    context: ContextDep,
    response: Response,
    connections: ConnectionsDep = None,
) -> Health:
    """Check that the server can accept work: models would start without delay."""
    problem = await _problem(platform, background)
    if connections and connections.is_draining:
        problem = "The server stops soon and still answers requests."
    none_whole, warning = _incomplete(context.folders)
    return _answer(response, problem or platform.runtime.why_not_ready() or none_whole, warning)
