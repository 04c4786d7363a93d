"""`stoker demo`: a server with every demo model deployed."""

import asyncio
import os

from stoker.base.config import Settings
from stoker.demo.setup import calls, set_up
from stoker.platform.parts import ServerParts
from stoker.platform.web.context import Platform
from stoker.server import banner, bootstrap
from stoker.server import serve as server


def run(settings: Settings) -> None:
    if "STOKER_LOG_LEVEL" not in os.environ:
        # The screen shows the calls to copy. Errors are still shown.
        settings = settings.model_copy(update={"log_level": "warning"})
    server.run(settings, _started)


async def _started(parts: ServerParts, base_url: str) -> None:
    platform = parts.get(Platform)
    banner.say(f"Stoker is listening on {base_url}; the demo models are being deployed …")
    await bootstrap.first_keys(parts)
    data_dir = platform.settings.data_dir.resolve()
    demo = await asyncio.to_thread(set_up, base_url, data_dir)
    while platform.runtime.why_not_ready():  # noqa: ASYNC110 - a runtime has no event for it
        await asyncio.sleep(0.05)
    await bootstrap.announce(parts, base_url)
    ready = await banner.describe(parts, base_url)
    banner.say(f"{ready}\n\n{banner.IN_SECOND_TERMINAL}\n\n{calls(demo, data_dir)}\n\n{banner.END}")
