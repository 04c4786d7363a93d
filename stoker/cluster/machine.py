"""One machine of a fleet whose leases Ray places: what runs on it, as long as the command does."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker import sandbox
from stoker.base.config import Settings
from stoker.base.temporary_folder import TemporaryFolder
from stoker.cluster import ray
from stoker.cluster.member import Member, Program
from stoker.cluster.plan import ours
from stoker.runtime.machine_memory import budget_bytes
from stoker.server.node import node_id

_END_S = 40.0
"""How long the end of a process takes at most, beside what work in flight is given."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    settings: Settings
    """With the URL of the fleet's database."""
    start: str = ""
    """The command that starts Ray here, where somebody else has chosen it."""

    def run_head(self, port: int, tell: Callable[[str], None]) -> None:
        """Ray's head and who places leases, until SIGTERM or SIGINT. Raises `CliError`.

        Args:
            tell: is told what has become of them.
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
        """Ray's part of a node, and a node host, until SIGTERM or SIGINT. Raises `CliError`.

        Args:
            address: `host:port` of the head.
            options: of `stoker node host`.
            tell: is told what has become of them.
        """
        settings, data_dir = self.settings, self.settings.data_dir.resolve()
        memory = budget_bytes(settings.memory_budget_mib)

        def programs(token: str, folder: TemporaryFolder) -> list[Program]:
            own = ray.raylet(
                "ray",
                address,
                node_id=node_id(data_dir),
                memory_bytes=memory,
                folder=folder.path,
                env=ray.environment(token),
                start=self.start,
                host=settings.ray_node_ip,
            )
            # What it runs has no business with Ray.
            env = {name: value for name, value in os.environ.items() if name[:4] != "RAY_"}
            env |= {"STOKER_RUNTIME": "ray"}
            return [own, ours("host", ("node", "host", *options), data_dir, env, "node.json")]

        self._run(programs, tell)

    def _run(
        self,
        programs: Callable[[str, TemporaryFolder], list[Program]],
        tell: Callable[[str], None],
    ) -> None:
        ray.check_installed()
        # They have what whoever joins has to show.
        sandbox.keep_to_itself()
        asyncio.run(self._serve(programs, tell))

    async def _serve(
        self,
        programs: Callable[[str, TemporaryFolder], list[Program]],
        tell: Callable[[str], None],
    ) -> None:
        settings, loop, asked = self.settings, asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, asked.set)
        url, data_dir = settings.resolved_database_url, settings.data_dir.resolve()
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        token, folder = await ray.shared_token(settings, url, data_dir), ray.new_folder()
        members = [Member(one, None, tell) for one in programs(token, folder)]
        starting = asyncio.create_task(_start(members))
        ending = asyncio.create_task(asked.wait())
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await starting
                await ending
        finally:
            for task in (starting, ending):
                task.cancel()
            await asyncio.gather(starting, ending, return_exceptions=True)
            # The host first: Ray has nothing to wait for.
            for one in reversed(members):
                await one.stop(2 * settings.stop_grace_s + _END_S)
            folder.remove()


async def _start(members: Sequence[Member]) -> None:
    for one in members:
        await one.start()
