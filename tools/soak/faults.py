"""Injects faults in a soak test, one after another, in an order that the seed determines."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import psutil

from tools.soak.actors import World
from tools.soak.service import Service

BETWEEN_S = (4.0, 16.0)
FULL_S, HALTED_S = 6.0, 20.0
JUMPS_S = (-7200, -600, -30, 30, 600, 7200)
WEIGHTS = {
    "replica killed": 6,
    "replica halted": 2,
    "engine host killed": 2,
    "server killed": 3,
    "server stopped": 1,
    "disk full": 2,
    "clock set": 3,
}


class Faults:
    def __init__(self, world: World, service: Service, place: Path, seed: str, small: bool) -> None:
        self._world = world
        self._service = service
        self._filler = place / "filler"
        self._random = random.Random(f"{seed} faults")
        self._kinds = dict(WEIGHTS)
        if not small:
            del self._kinds["disk full"]
        if not service.has_clock:
            del self._kinds["clock set"]
        self._ways: dict[str, Callable[[], Awaitable[bool]]] = {
            "replica killed": self._kill_replica,
            "replica halted": self._halt_replica,
            "engine host killed": self._kill_host,
            "server killed": self._kill_server,
            "server stopped": self._stop_server,
            "disk full": self._fill_disk,
            "clock set": self._set_clock,
        }

    async def run(self, until: Callable[[], bool], *, servers: Callable[[], bool]) -> None:
        """Injects faults until `until` returns True. Spares the server itself while `servers`
        returns False.
        """
        while not until():
            await asyncio.sleep(self._random.uniform(*BETWEEN_S))
            kinds = [
                fault_kind
                for fault_kind in self._kinds
                if servers() or not fault_kind.startswith("server")
            ]
            weights = [self._kinds[fault_kind] for fault_kind in kinds]
            kind = self._random.choices(kinds, weights)[0]
            if await self._ways[kind]():
                self._world.tally.faults[kind] += 1

    def _replicas(self) -> list[psutil.Process]:
        host = self._host()
        with contextlib.suppress(psutil.NoSuchProcess):
            return host.children() if host else []
        return []

    def _host(self) -> psutil.Process | None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._service.pid).children():
                if "stoker.replica.host" in process.cmdline():
                    return process
        return None

    async def _kill_replica(self) -> bool:
        return _send(self._random, self._replicas(), signal.SIGKILL) is not None

    async def _halt_replica(self) -> bool:
        """Suspends a replica, which stays alive. The server must detect this."""
        halted = _send(self._random, self._replicas(), signal.SIGSTOP)
        if halted is None:
            return False
        await asyncio.sleep(HALTED_S)
        with contextlib.suppress(psutil.NoSuchProcess):
            halted.resume()
        return True

    async def _kill_host(self) -> bool:
        host = self._host()
        if host is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            host.kill()
        return True

    async def _kill_server(self) -> bool:
        await asyncio.to_thread(self._service.kill)
        await asyncio.to_thread(self._service.start)
        await self._until_ready()
        return True

    async def _stop_server(self) -> bool:
        code = await asyncio.to_thread(self._service.stop)
        if code:
            self._world.tally.lose(f"the server ended with {code} when it was asked to")
        await asyncio.to_thread(self._service.start)
        await self._until_ready()
        return True

    async def _until_ready(self) -> None:
        # Otherwise a server that takes seconds to start would rarely be available.
        async with self._world.client() as client:
            for _ in range(300):
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.2)

    async def _fill_disk(self) -> bool:
        def fill() -> None:
            with contextlib.suppress(OSError), self._filler.open("wb") as file:
                while True:
                    file.write(os.urandom(1 << 20))

        await asyncio.to_thread(fill)
        try:
            await asyncio.sleep(FULL_S)
        finally:
            self._filler.unlink(missing_ok=True)
        return True

    async def _set_clock(self) -> bool:
        self._service.set_clock(self._random.choice(JUMPS_S))
        await asyncio.sleep(self._random.uniform(2, 10))
        # The return to the true time is also a jump.
        self._service.set_clock(0)
        return True


def _send(
    chance: random.Random, processes: list[psutil.Process], number: signal.Signals
) -> psutil.Process | None:
    """Sends a signal to one of the processes, if any. Returns that process."""
    if not processes:
        return None
    chosen = chance.choice(sorted(processes, key=lambda process: process.pid))
    with contextlib.suppress(psutil.NoSuchProcess):
        chosen.send_signal(number)
        return chosen
    return None
