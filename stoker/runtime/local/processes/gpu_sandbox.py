"""Openings that a machine's GPU driver needs in the walls of replicas on a GPU.

Tested once per start of the server or node, in a separate process.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Sequence

import msgspec

from stoker.base.config import Settings
from stoker.base.module_command import module_command
from stoker.runtime.interface import LoadError
from stoker.runtime.local.processes.engine_host import environment
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.observed import Reason
from stoker.runtime.pool.deployment_pool import DeploymentPool
from stoker.sandbox import Opening, gpu_places
from stoker.wire.gpu_walls import GpuWalls

log = logging.getLogger(__name__)

PROGRAM = "stoker.replica.gpu_walls"
_NAME = "gpu-walls"
_MOST_S = 300.0
"""Timeout of the whole test in seconds, which consists of many attempts in the worst case."""


class GpuSandbox:
    """Result of the test. `prepare` runs it."""

    def __init__(self, settings: Settings, cells: Sandboxes) -> None:
        self._is_strict = settings.gpu_sandbox == "strict"
        self._cells = cells
        self._has_ended = asyncio.Event()
        self._walls = GpuWalls()
        """Result, after the test has ended."""
        self._reported: weakref.WeakSet[DeploymentPool] = weakref.WeakSet()

    async def openings(self) -> Sequence[Opening]:
        """Returns the openings for a replica on a GPU. Usually empty.

        Raises:
            LoadError: CUDA needs an opening that may not be made.
        """
        if not gpu_places.has_nvidia():
            return ()
        await self._has_ended.wait()
        walls = self._walls
        if not walls.openings:
            return ()
        if self._is_strict:
            raise LoadError(
                "CUDA does not start inside the sandbox, and STOKER_GPU_SANDBOX=strict forbids an "
                f"exception: {walls.message}.",
                lasting=True,
            )
        if not walls.can_be_opened:
            raise LoadError(
                f"CUDA does not start inside the sandbox unless several walls are left out: "
                f"{walls.message}. Run `stoker doctor --gpu`.",
                lasting=True,
            )
        return walls.openings

    @property
    def known_openings(self) -> Sequence[Opening] | None:
        """Openings for a process on a GPU. None before the test has ended, or if no such process
        may start.
        """
        is_forbidden = self._walls.openings and (self._is_strict or not self._walls.can_be_opened)
        if not self._has_ended.is_set() or is_forbidden:
            return None
        return self._walls.openings

    async def prepare(self) -> None:
        """Runs the test on a machine with a GPU of NVIDIA."""
        try:
            if gpu_places.has_nvidia():
                self._walls = await self._run()
        finally:
            self._has_ended.set()

    def report(self, pool: DeploymentPool) -> None:
        """Adds the deployment's event about the openings, once."""
        if pool not in self._reported:
            self._reported.add(pool)
            pool.add_event(
                Reason.SANDBOX_OPENED,
                "CUDA does not start inside the whole sandbox on this machine. Replicas on a GPU "
                f"run with an exception: {self._walls.message}.",
            )

    @property
    def in_words(self) -> Sequence[str]:
        """Returns the openings of replicas on a GPU. Empty before the test has ended."""
        is_used = self._walls.can_be_opened and not self._is_strict
        return [str(opening) for opening in self._walls.openings] if is_used else ()

    async def _run(self) -> GpuWalls:
        cell = self._cells.make(_NAME)
        try:
            walls = await _tested(msgspec.json.encode(cell))
        except (OSError, msgspec.MsgspecError, TimeoutError):
            log.exception("CUDA could not be tested inside the sandbox")
            return GpuWalls()
        finally:
            self._cells.remove(_NAME)
        if walls.openings:
            log.warning("sandbox opened for GPUs", extra={"openings": walls.message})
        elif walls.problem:
            log.error("CUDA does not start", extra={"why": walls.bare_problem or walls.problem})
        return walls


async def _tested(question: bytes) -> GpuWalls:
    process = await asyncio.create_subprocess_exec(
        *module_command(PROGRAM),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment(),
    )
    try:
        async with asyncio.timeout(_MOST_S):
            output, _ = await process.communicate(question)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return msgspec.json.decode(output, type=GpuWalls)
