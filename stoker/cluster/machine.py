"""Runs the processes of one machine of a fleet with leases that Ray places, for the duration of the
command.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker import sandbox
from stoker.base.config import Settings
from stoker.base.temporary_folder import TemporaryFolder
from stoker.cluster import ray
from stoker.cluster.member import FleetProcess, Program
from stoker.cluster.plan import ours
from stoker.runtime.machine_memory import budget_bytes
from stoker.server.node import node_id

_END_S = 40.0
"""Maximum seconds for the end of a process, in addition to the grace period for work in flight."""


@dataclass(frozen=True, kw_only=True)
class RayMachine:
    settings: Settings
    """Settings with the URL of the fleet's database."""
    start: str = ""
    """Command that starts Ray here, if an external tool provides it."""

    def run_head(self, port: int, tell: Callable[[str], None]) -> None:
        """Runs Ray's head and the placer until SIGTERM or SIGINT. Raises `StokerError`.

        Args:
            tell: receives messages about the state of the processes.
        """
        settings = self.settings
        host = settings.ray_node_ip or "127.0.0.1"
        address = f"{host}:{ray.option(self.start, '--port') or port}"

        def programs(token: str, folder: TemporaryFolder) -> list[Program]:
            env = ray.environment(token)
            head = ray.head(port, folder.path, env, start=self.start, host=settings.ray_node_ip)
            return [head, ray.placer(address, settings.data_dir.resolve() / "placer", env)]

        self._run(programs, tell)

    def run_node(self, address: str, options: Sequence[str], tell: Callable[[str], None]) -> None:
        """Runs Ray's process of a node and a node host until SIGTERM or SIGINT.

        Raises `StokerError`.

        Args:
            address: `host:port` of the head.
            options: options of `stoker node host`.
            tell: receives messages about the state of the processes.
        """
        settings, data_dir = self.settings, self.settings.data_dir.resolve()
        memory = budget_bytes(settings.memory_budget_mib)

        def programs(token: str, folder: TemporaryFolder) -> list[Program]:
            raylet = ray.raylet(
                "ray",
                address,
                node_id=node_id(data_dir),
                memory_bytes=memory,
                folder=folder.path,
                env=ray.environment(token),
                start=self.start,
                host=settings.ray_node_ip,
            )
            # The node host and its replicas do not use Ray.
            env = {name: value for name, value in os.environ.items() if name[:4] != "RAY_"}
            env |= {"STOKER_RUNTIME": "ray"}
            return [raylet, ours("host", ("node", "host", *options), data_dir, env, "node.json")]

        self._run(programs, tell)

    def _run(
        self,
        programs: Callable[[str, TemporaryFolder], list[Program]],
        tell: Callable[[str], None],
    ) -> None:
        ray.check_installed()
        # This process has the token for joining the cluster.
        sandbox.keep_to_itself()
        asyncio.run(self._serve(programs, tell))

    async def _serve(
        self,
        programs: Callable[[str, TemporaryFolder], list[Program]],
        tell: Callable[[str], None],
    ) -> None:
        settings, loop, stopping = self.settings, asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        url, data_dir = settings.resolved_database_url, settings.data_dir.resolve()
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        token, folder = await ray.shared_token(settings, url, data_dir), ray.new_folder()
        members = [FleetProcess(item, None, tell) for item in programs(token, folder)]
        starting = asyncio.create_task(_start(members))
        ending = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await starting
                await ending
        finally:
            for task in (starting, ending):
                task.cancel()
            await asyncio.gather(starting, ending, return_exceptions=True)
            # Stops the host first. Ray has no work to finish.
            for item in reversed(members):
                await item.stop(2 * settings.stop_grace_s + _END_S)
            folder.remove()


async def _start(members: Sequence[FleetProcess]) -> None:
    for member in members:
        await member.start()
