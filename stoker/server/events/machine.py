"""The machine, its engines, and the replicas on it."""

import asyncio
from datetime import UTC, datetime
from importlib import metadata

from stoker.base import ids
from stoker.base.config import Settings
from stoker.models.engines import environments
from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import EngineRecord
from stoker.registry.deployments.directory import Directory
from stoker.runtime.interface import Runtime
from stoker.runtime.observed import MachineStats
from stoker.server.events import schemas
from stoker.server.events.messages import Visibility

MOST_WAITING = 100
"""That are told."""
_TURN = 200
"""Deployments that are looked at before others have their turn."""


async def machine(
    settings: Settings, runtime: Runtime, directory: Directory, reach: Visibility
) -> schemas.Machine:
    """As of now; replicas and waiting ones only where their accounts are within reach."""
    found = runtime.machine()
    return schemas.Machine(
        cores=found.cores,
        processor=found.processor,
        memory=memory(found),
        devices=devices(found),
        # Looks at files.
        engines=await asyncio.to_thread(_engines, settings),
        replicas=await _replicas(runtime, directory, reach),
        waiting=waiting(found, reach),
    )


def memory(found: MachineStats) -> schemas.MachineMemory:
    return schemas.MachineMemory(
        total_bytes=found.total_bytes,
        budget_bytes=found.budget_bytes,
        held_bytes=found.held_bytes,
        used_bytes=found.used_bytes,
        reserved_bytes=found.reserved_bytes,
    )


def devices(found: MachineStats) -> list[schemas.MachineDevice]:
    return [
        schemas.MachineDevice(
            index=one.index,
            name=one.name,
            total_bytes=one.total_bytes,
            budget_bytes=one.budget_bytes,
            held_bytes=one.held_bytes,
        )
        for one in found.devices
    ]


def waiting(found: MachineStats, reach: Visibility) -> list[schemas.Waiting]:
    """What waits for memory, as far as it is within reach."""
    return [
        schemas.Waiting(
            deployment_id=one.deployment_id,
            model=one.model,
            bytes=one.memory_bytes,
            reason=one.reason,
        )
        for one in found.waiting
        if reach.has(one.account_id)
    ][:MOST_WAITING]


async def _replicas(
    runtime: Runtime, directory: Directory, reach: Visibility
) -> list[schemas.MachineReplica]:
    found: list[schemas.MachineReplica] = []
    for number, entry in enumerate(directory.entries(), start=1):
        if number % _TURN == 0:
            await asyncio.sleep(0)
        # An adapter's replicas are its base's.
        if entry.base_id or not reach.has(entry.account_id):
            continue
        for version_id in sorted(entry.callable_versions | {entry.version_id}):
            stats = runtime.stats(version_id)
            for one in stats.replicas if stats else ():
                made_at = ids.made_at(one.id)
                found.append(
                    schemas.MachineReplica(
                        deployment_id=entry.deployment_id,
                        model=entry.model,
                        account_id=entry.account_id,
                        status=one.status,
                        engine=one.engine,
                        memory_bytes=one.memory_bytes,
                        started_at=datetime.fromtimestamp(made_at, UTC) if made_at else None,
                    )
                )
    return found


def _engines(settings: Settings) -> list[schemas.Engine]:
    return [_engine(settings, record) for record in ENGINES.values()]


def _engine(settings: Settings, record: EngineRecord) -> schemas.Engine:
    if record.environment is None:
        try:
            version = metadata.version(record.name)
        except metadata.PackageNotFoundError:
            # Of a package of another name: its record would not be here without it.
            version = ""
        return schemas.Engine(engine=record.name, available=True, detail=version)
    found = environments.installed(settings, record.name)
    detail = found.version or str(found.python) if found else environments.missing(record.name)
    return schemas.Engine(engine=record.name, available=found is not None, detail=detail)
