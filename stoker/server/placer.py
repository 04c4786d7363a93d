"""Placer process: places leases by Ray, next to Ray's head."""

import asyncio
import contextlib
import logging
import os
import signal

from stoker import sandbox
from stoker.base import logs
from stoker.base.config import Settings
from stoker.runtime.ray.groups import Ray
from stoker.runtime.ray.placer import Placer, RayLostError
from stoker.store.db import Database

log = logging.getLogger(__name__)


def run(settings: Settings, address: str) -> None:
    """Places leases until SIGTERM or SIGINT.

    Raises Ray's own error if Ray cannot be reached.

    Args:
        address: `host:port` of Ray's head.
    """
    logs.configure(settings.log_level, settings.log_format)
    sandbox.keep_to_itself()
    placer, code = Placer(Database(settings.resolved_database_url, connections=3), Ray(address)), 1
    try:
        asyncio.run(_run(placer))
        code = 0
    except RayLostError as error:
        log.error("Ray is lost: %s", error)
    except Exception:
        log.exception("leases cannot be placed any more")
    finally:
        # A thread may still wait for a Ray that does not answer. Its result is not needed.
        os._exit(code)


async def _run(placer: Placer) -> None:
    """Runs the placer. Returns after SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    placing = asyncio.create_task(placer.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, placing.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await placing
