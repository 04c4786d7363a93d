"""Starts the services of a server, runs their background work, and stops them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from stoker.registry.artifacts import upkeep
from stoker.registry.artifacts.imports.work import ImportJob
from stoker.registry.deployments import startup
from stoker.registry.deployments.events import EventLog
from stoker.registry.deployments.peer_updates import Following
from stoker.runtime.listening import RuntimeListener
from stoker.server.background import bounded
from stoker.server.erasure import service as erasure
from stoker.server.garbage import Garbage
from stoker.server.janitor import Janitor
from stoker.server.peer_sync import PeerSync
from stoker.server.services import Services, log
from stoker.tenancy.keys.shared_limits import SharedLimits
from stoker.workloads.agents.work import AgentRunJob
from stoker.workloads.evaluation.trials.service import TrialJob
from stoker.workloads.rollouts.work import RolloutJob
from stoker.workloads.videos import service as videos

STEP_S = 10.0
"""Timeout in seconds of a shutdown step, such as one that needs a database which does not
answer.
"""


@contextlib.asynccontextmanager
async def running(services: Services) -> AsyncGenerator[None]:
    """Runs the services: migrates the schema, starts the required replicas and the janitor."""
    try:
        await _begin(services)
    except BaseException as error:
        if isinstance(error, Exception):
            # The traceback that uvicorn logs is long.
            why = str(error) or type(error).__name__
            log.error("server failed to start", extra={"why": why})
        # The threads of the heartbeat would prevent the process from exiting.
        await bounded("heartbeat", services.servers.close(), STEP_S)
        await bounded("database", services.platform.database.close(), STEP_S)
        raise
    try:
        yield
    finally:
        await _end(services)


async def _begin(services: Services) -> None:
    platform = services.platform
    await platform.database.migrate()
    await platform.secret.agree(platform.database)
    await services.servers.open()
    await upkeep.recover(platform.database, platform.blobs)
    events = EventLog(platform.database)
    await services.metering.open()
    await platform.runtime.start(_listeners(services, events))
    following = Following(services.deployments)
    if not platform.database.is_sqlite:
        await following.open()
        services.deployments.directory.catch_up = following.catch_up
    await startup.restore(services.deployments)
    _start(services, events, following)


def _start(services: Services, events: EventLog, following: Following) -> None:
    """Starts all background tasks."""
    platform, background = services.platform, services.background
    janitor = Janitor(
        services.deployments,
        services.keyring,
        services.agents,
        services.console,
        is_first=lambda: services.servers.is_first,
    )
    if not platform.database.is_sqlite:
        background.start(
            "heartbeat",
            lambda: services.servers.run(lambda: upkeep.reopen_lost(platform.database)),
        )
        background.start("other servers' deployments", following.run)
        background.start("other servers", PeerSync(services.agents, services.runners).run)
    if isinstance(services.rate_limits, SharedLimits):
        background.start("limits of keys", services.rate_limits.run)
    background.start("garbage", Garbage().run)
    background.start("janitor", janitor.run)
    background.start("events of deployments", events.run)
    background.start("metering", services.metering.run)
    background.start("journal of runs", services.agents.journal.run)
    background.start("history of deployments", services.watching.history.run)
    background.start("videos", lambda: services.videos.jobs.run(videos.VideoJob(services.videos)))
    background.start("imports", lambda: services.imports.jobs.run(ImportJob(services.imports)))
    background.start(
        "versions", lambda: services.versions.preparing.run(RolloutJob(services.versions))
    )
    background.start("mirrors", services.versions.mirrors.run)
    background.start("trials", lambda: services.trials.jobs.run(TrialJob(services.trials)))
    background.start("deletions of accounts", lambda: erasure.run(services.erasure))
    background.start("runs", lambda: services.agents.jobs.run(AgentRunJob(services.agents)))


async def _end(services: Services) -> None:
    """Ends all services. A step that does not answer does not block the next one."""
    platform, background = services.platform, services.background
    grace_s = 2 * platform.settings.stop_grace_s + STEP_S
    # Jobs are released before their replicas end. The next start continues them.
    handing_back = background.stop("imports", "videos", "versions", "runs", "trials")
    await bounded("jobs", handing_back, STEP_S)
    await bounded("replicas", platform.runtime.stop(), grace_s)
    await bounded("background", background.stop_all(), STEP_S)
    services.agents.outbound.close()
    await asyncio.gather(
        bounded("metering", services.metering.close(), STEP_S),
        bounded("media", platform.media.close(), STEP_S),
        bounded("hub", services.imports.hub.close(), STEP_S),
        bounded("inspections", platform.inspectors.close(), STEP_S),
        bounded("comparisons", services.trials.comparer.close(), STEP_S),
        bounded("checks", services.checks.judges.close(), STEP_S),
        bounded("copies of models", services.deployments.folders.copies.close(), STEP_S),
        bounded("last use of keys", services.keyring.flush_last_used(), STEP_S),
        bounded("heartbeat", services.servers.close(), STEP_S),
    )
    await bounded("database", platform.database.close(), STEP_S)
    if services.traces:
        await bounded("traces", asyncio.to_thread(services.traces.close), STEP_S)


def _listeners(services: Services, events: EventLog) -> list[RuntimeListener]:
    tracing = [services.traces] if services.traces else []
    history = services.watching.history
    counting = [services.metrics, history, services.rate_limits, services.counts]
    # Events are recorded once, independent of the number of servers that receive them.
    written = [] if services.platform.runtime.is_remote else [events]
    return [*written, services.loaded, *counting, *tracing]
