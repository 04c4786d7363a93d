"""Artifacts as a resource."""

from collections.abc import Collection, Sequence
from datetime import datetime

from stoker.platform.parts import ServerParts
from stoker.platform.resource import EventObjects, Related, Resource, Upkeep
from stoker.platform.web.context import Platform
from stoker.registry.artifacts import completion, repository, schemas, service, upkeep
from stoker.registry.artifacts.endpoints import router
from stoker.store.db import Session
from stoker.store.tables.artifacts import Artifact, UploadPart
from stoker.store.tables.imports import Import


async def _recover(parts: ServerParts) -> None:
    platform = parts.get(Platform)
    await upkeep.recover(platform.database, platform.blobs)


async def _reopen_lost(parts: ServerParts) -> None:
    await upkeep.reopen_lost(parts.get(Platform).database)


async def _end_closed(parts: ServerParts) -> None:
    await upkeep.end_closed(parts.get(Platform).database)


async def _reopen_cut_off(parts: ServerParts, _now: datetime) -> None:
    await completion.reopen_cut_off(parts.get(Platform).database)


async def _expire(parts: ServerParts, now: datetime) -> None:
    platform = parts.get(Platform)
    if not platform.database.is_sqlite:
        # The server that noticed a lost server may have stopped, too.
        await upkeep.reopen_lost(platform.database)
    await upkeep.expire_uploads(platform.database, platform.blobs, now)


async def _sweep_strays(parts: ServerParts, _now: datetime) -> None:
    platform = parts.get(Platform)
    await upkeep.sweep_strays(platform.database, platform.blobs)


async def _read(
    _parts: ServerParts, session: Session, ids: Collection[str]
) -> Sequence[tuple[Artifact, schemas.Artifact]]:
    rows = await repository.these(session, ids)
    return list(zip(rows, await service.shown(session, *rows), strict=True))


RESOURCE = Resource(
    name="artifacts",
    routers=[router],
    prepare=_recover,
    peer_lost=_reopen_lost,
    catch_up=_end_closed,
    upkeep=Upkeep(each_server=_reopen_cut_off, shared=_expire, strays=_sweep_strays),
    events=EventObjects(
        kind="artifact",
        table=Artifact,
        read=_read,
        related={
            Import: Related("artifact_id"),
            UploadPart: Related("upload_id", repository.imported_by),
        },
    ),
)
