"""`stoker demo`: a server with every demo model deployed."""

import asyncio
import os
import sys

from stoker.base.config import Settings
from stoker.demo.setup import calls, set_up
from stoker.platform.web.context import Platform
from stoker.server import bootstrap
from stoker.server import serve as server


def run(settings: Settings) -> None:
    if "STOKER_LOG_LEVEL" not in os.environ:
        # The screen shows the calls to copy. Errors are still shown.
        settings = settings.model_copy(update={"log_level": "warning", "log_format": "text"})
    server.run(settings, _started)


async def _started(platform: Platform, base_url: str) -> None:
    _say(f"Stoker is listening on {base_url}; the demo models are being deployed …")
    await bootstrap.operator_key(platform)
    data_dir = platform.settings.data_dir.resolve()
    demo = await asyncio.to_thread(set_up, base_url, data_dir)
    while platform.runtime.why_not_ready():  # noqa: ASYNC110 - a runtime has no event for it
        await asyncio.sleep(0.05)
    await bootstrap.announce(platform, base_url)
    _say("Ready. In a second terminal:\n\n" + calls(demo, data_dir) + "\n\nCtrl-C ends it.")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
