"""State of the machine, its engines and its replicas."""

import asyncio
from datetime import UTC, datetime
from importlib import metadata

from stoker.base import ids
from stoker.base.config import Settings
from stoker.models.engines import environments
from stoker.models.engines.catalogue import ENGINES, not_installed
from stoker.models.engines.record import EngineRecord
from stoker.registry.deployments.directory import Directory
from stoker.runtime.interface import Runtime
from stoker.runtime.observed import MachineStats
from stoker.server.events import schemas
from stoker.server.events.messages import Visibility

MOST_WAITING = 100
"""Maximum number of waiting replicas in a response."""
_TURN = 200
"""Number of deployments that are read before other tasks may run."""


async def machine(
    settings: Settings, runtime: Runtime, directory: Directory, reach: Visibility
) -> schemas.Machine:
    """Returns the current state of the machine. Includes replicas and waiting ones only for visible
    accounts.
    """
    stats = runtime.machine()
    return schemas.Machine(
        cores=stats.cores,
        processor=stats.processor,
        memory=memory(stats),
        devices=devices(stats),
        device_problem=stats.device_problem,
        sandbox_openings=[*stats.sandbox_openings],
        # Reads files.
        engines=await asyncio.to_thread(_engines, settings),
        replicas=await _replicas(runtime, directory, reach),
        waiting=waiting(stats, reach),
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
            index=device.index,
            name=device.name,
            total_bytes=device.total_bytes,
            budget_bytes=device.budget_bytes,
            held_bytes=device.held_bytes,
            uuid=device.uuid,
            used_bytes=device.used_bytes,
            other_bytes=device.other_bytes,
            prepared_workers=device.prepared_workers,
        )
        for device in found.devices
    ]


def waiting(found: MachineStats, reach: Visibility) -> list[schemas.Waiting]:
    """Returns the replicas that wait for memory and belong to visible accounts."""
    return [
        schemas.Waiting(
            deployment_id=replica.deployment_id,
            model=replica.model,
            bytes=replica.memory_bytes,
            reason=replica.reason,
        )
        for replica in found.waiting
        if reach.has(replica.account_id)
    ][:MOST_WAITING]


async def _replicas(
    runtime: Runtime, directory: Directory, reach: Visibility
) -> list[schemas.MachineReplica]:
    replicas: list[schemas.MachineReplica] = []
    for number, entry in enumerate(directory.entries(), start=1):
        if number % _TURN == 0:
            await asyncio.sleep(0)
        # An adapter's replicas belong to its base.
        if entry.base_id or not reach.has(entry.account_id):
            continue
        for version_id in sorted(entry.callable_versions | {entry.version_id}):
            stats = runtime.stats(version_id)
            for replica in stats.replicas if stats else ():
                made_at = ids.made_at(replica.id)
                replicas.append(
                    schemas.MachineReplica(
                        deployment_id=entry.deployment_id,
                        model=entry.model,
                        account_id=entry.account_id,
                        status=replica.status,
                        engine=replica.engine,
                        memory_bytes=replica.memory_bytes,
                        device=replica.device,
                        device_bytes=replica.device_bytes,
                        device_held_bytes=replica.device_held_bytes,
                        started_at=datetime.fromtimestamp(made_at, UTC) if made_at else None,
                    )
                )
    return replicas


def _engines(settings: Settings) -> list[schemas.Engine]:
    return [_engine(settings, record) for record in ENGINES.values()]


def _engine(settings: Settings, record: EngineRecord) -> schemas.Engine:
    if record.package and record.is_missing:
        detail = not_installed(record.name, record.package)
        return schemas.Engine(engine=record.name, available=False, detail=detail)
    if record.environment is None:
        try:
            version = metadata.version(record.name)
        except metadata.PackageNotFoundError:
            # The engine's package has a different name.
            version = ""
        return schemas.Engine(engine=record.name, available=True, detail=version)
    environment = environments.installed(settings, record.name)
    detail = (
        environment.version or str(environment.python)
        if environment
        else environments.missing(record.name)
    )
    return schemas.Engine(engine=record.name, available=environment is not None, detail=detail)
