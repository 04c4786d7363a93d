"""Shortens the first start of deployments by preparing it before a request arrives."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from stoker.runtime.interface import LoadError, ModelLocator
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.machine import read_ahead
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.host_messages import Preload

log = logging.getLogger(__name__)

_LONGEST_S = 300.0
"""Timeout in seconds. A disk that does not answer must not delay the next preparations."""


OnMissing = Callable[[str, LoadError], None]
"""Receives a source with files that cannot be read here, and the error."""


OnFolder = Callable[[DeploymentSpec, Path], Awaitable[None]]
"""Receives a model's folder once it exists here."""


async def _ignore(_spec: DeploymentSpec, _folder: Path) -> None:
    pass


class Preparations:
    """Prepares deployments one after another, so that thousands of them delay nothing.

    Each preparation also checks that the model's files exist.
    """

    def __init__(
        self,
        folders: ModelLocator,
        host: EngineHost,
        on_missing: OnMissing,
        on_folder: OnFolder = _ignore,
    ) -> None:
        self._folders = folders
        self._host = host
        self._on_missing = on_missing
        self._on_folder = on_folder
        self._waiting: asyncio.Queue[DeploymentSpec] = asyncio.Queue()
        self._known: set[str] = set()
        """Sources. Deployments with the same source have the same model."""
        self._code: dict[str, Preload] = {}
        """Maps a source to the code that is to be preloaded for it."""

    def add(self, spec: DeploymentSpec) -> None:
        if spec.source not in self._known:
            self._known.add(spec.source)
            self._waiting.put_nowait(spec)

    def forget(self, source: str) -> None:
        self._known.discard(source)
        self._code.pop(source, None)

    def skip(self, code: Preload) -> set[str]:
        """Records that code is not preloaded. Returns the sources that need it, each only once."""
        sources = {source for source, wanted in self._code.items() if wanted == code}
        for source in sources:
            del self._code[source]
        return sources

    async def run(self) -> None:
        while True:
            spec = await self._waiting.get()
            try:
                async with asyncio.timeout(_LONGEST_S):
                    await self._prepare(spec)
            except LoadError as error:
                self._known.discard(spec.source)
                self._on_missing(spec.source, error)
            except Exception:
                # The load itself will fail with the same error and report it to the owner.
                log.debug("nothing to prepare", exc_info=True, extra={"deployment": spec.id})

    async def _prepare(self, spec: DeploymentSpec) -> None:
        folder = await self._folders.folder(spec, is_ahead=True)
        await self._on_folder(spec, folder)
        code = await asyncio.to_thread(_code_of, folder)
        self._code[spec.source] = code
        self._host.preload(code)
        await asyncio.to_thread(read_ahead, folder)


def _code_of(folder: Path) -> Preload:
    """Returns the code to import before the first fork that needs it."""
    index = folder / "model_index.json"
    if index.exists():
        name = json.loads(index.read_bytes()).get("_class_name", "")
        return Preload(str(name), "diffusers")
    config = json.loads((folder / "config.json").read_bytes())
    return Preload(str(config.get("model_type", "")))
