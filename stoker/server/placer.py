"""Who places leases by Ray, as a process beside Ray's head."""

import asyncio
import contextlib
import os
import signal

from stoker import logs, sandbox
from stoker.config import Settings
from stoker.runtime.ray.groups import Ray
from stoker.runtime.ray.placer import Placer
from stoker.store.db import Database


def run(settings: Settings, address: str) -> None:
    """Place leases until SIGTERM or SIGINT.

    Raises what Ray raises where it cannot be reached.

    Args:
        address: `host:port` of Ray's head.
    """
    logs.configure(settings.log_level, settings.log_format)
    sandbox.keep_to_itself()
    placer = Placer(Database(settings.resolved_database_url, connections=3), Ray(address))
    try:
        asyncio.run(_run(placer))
    finally:
        # A thread may wait for a Ray that does not answer, and nobody for what it would say.
        os._exit(0 if _ENDED.is_set() else 1)


_ENDED = asyncio.Event()


async def _run(placer: Placer) -> None:
    loop = asyncio.get_running_loop()
    placing = asyncio.create_task(placer.run())

    def end() -> None:
        _ENDED.set()
        placing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    with contextlib.suppress(asyncio.CancelledError):
        await placing
