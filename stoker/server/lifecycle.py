"""Starts the parts of a server, runs their background work, and stops them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial

from stoker.platform.jobs.poller import JobPoller
from stoker.platform.parts import ServerParts
from stoker.platform.resource import Resources
from stoker.platform.web.context import Platform
from stoker.platform.web.disk import full_disk
from stoker.server.background import Background, bounded
from stoker.server.janitor import Janitor
from stoker.server.peer_sync import PeerSync
from stoker.server.telemetry.traces import Traces
from stoker.store.servers import Servers

log = logging.getLogger(__name__)

STEP_S = 10.0
"""Timeout in seconds of a shutdown step, such as one that needs a database which does not
answer.
"""
_FULL = "The disk of the data folder or of the database is full. Free disk space and start again."


@contextlib.asynccontextmanager
async def running(parts: ServerParts) -> AsyncGenerator[None]:
    """Runs the server: migrates the schema, starts the required replicas and the janitor."""
    try:
        await _begin(parts)
    except BaseException as error:
        if isinstance(error, Exception):
            # The traceback that uvicorn logs is long.
            why = _FULL if full_disk(error) else str(error) or type(error).__name__
            log.error("server failed to start", extra={"why": why})
        # The threads of the heartbeat would prevent the process from exiting.
        await bounded("heartbeat", parts.get(Servers).close(), STEP_S)
        await bounded("database", parts.get(Platform).database.close(), STEP_S)
        raise
    try:
        yield
    finally:
        await _end(parts)


def end_streams(parts: ServerParts) -> None:
    """Ends all streams because the server stops."""
    for resource in parts.get(Resources):
        resource.end_streams(parts)


async def _begin(parts: ServerParts) -> None:
    platform, resources = parts.get(Platform), parts.get(Resources)
    await platform.database.migrate()
    await platform.secret.agree(platform.database)
    await parts.get(Servers).open()
    # A newer server that saw no heartbeat of this one may have contracted the schema meanwhile.
    await platform.database.migrate()
    for resource in resources:
        await resource.prepare(parts)
    listeners = [listener for resource in resources for listener in resource.listeners(parts)]
    await platform.runtime.start(listeners)
    for resource in resources:
        await resource.restore(parts)
    _start(parts)


def _start(parts: ServerParts) -> None:
    """Starts all background tasks."""
    background, servers = parts.get(Background), parts.get(Servers)
    resources = parts.get(Resources)
    if not parts.get(Platform).database.is_sqlite:
        background.start("heartbeat", lambda: servers.run(partial(_take_over, parts)))
        for resource in resources:
            for name, run in resource.peer_tasks.items():
                background.start(name, partial(run, parts))
        background.start("other servers", PeerSync(parts).run)
        runners = {jobs.table: jobs.runner(parts) for jobs in resources.jobs}
        background.start("due jobs", JobPoller(parts.get(Platform).database, runners).run)
    background.start("janitor", Janitor(parts, is_first=lambda: servers.is_first).run)
    for resource in resources:
        for name, run in resource.tasks.items():
            background.start(name, partial(run, parts))
    for jobs in resources.jobs:
        background.start(jobs.task, partial(jobs.run, parts))


async def _take_over(parts: ServerParts) -> None:
    """Takes over the work of a lost server."""
    for resource in parts.get(Resources):
        await resource.peer_lost(parts)


async def _end(parts: ServerParts) -> None:
    """Ends all parts. A step that does not answer does not block the next one."""
    platform, background = parts.get(Platform), parts.get(Background)
    resources = parts.get(Resources)
    grace_s = 2 * platform.settings.stop_grace_s + STEP_S
    # Jobs are released before their replicas end. The next start continues them.
    handing_back = background.stop(*(jobs.task for jobs in resources.jobs))
    await bounded("jobs", handing_back, STEP_S)
    await bounded("replicas", platform.runtime.stop(), grace_s)
    await bounded("background", background.stop_all(), STEP_S)
    closing = [
        bounded(name, close(parts), STEP_S)
        for resource in resources
        for name, close in resource.closing.items()
    ]
    await asyncio.gather(*closing, bounded("heartbeat", parts.get(Servers).close(), STEP_S))
    await bounded("database", platform.database.close(), STEP_S)
    if traces := parts.find(Traces):
        await bounded("traces", asyncio.to_thread(traces.close), STEP_S)
