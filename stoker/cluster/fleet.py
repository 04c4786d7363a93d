"""A fleet: starts and stops its processes in order, and writes the file that lists them."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

import httpx

from stoker.base.database_urls import without_password
from stoker.base.extras import install_command
from stoker.base.private_files import write_private
from stoker.base.temporary_folder import TemporaryFolder
from stoker.client.errors import StokerError, WrongUseError
from stoker.cluster import ray
from stoker.cluster.member import FleetProcess, Program
from stoker.cluster.plan import FleetPlan
from stoker.cluster.postgres import Postgres, free_port
from stoker.server.bootstrap import FILE as OPERATOR_KEY
from stoker.store.folder_lock import FILE as LOCK
from stoker.store.folder_lock import lock

STATE = "cluster.json"
READY_S = 300.0
_LOOK_S = 0.1
_ANSWER_S = 5.0
_END_S = 40.0
"""Maximum seconds for the end of a gateway or a node, in addition to the grace period for work in
flight.
"""


class Teller(Protocol):
    """Receives messages about the fleet's state."""

    def progress(self, text: str) -> None:
        """Reports the step that the fleet waits for."""
        ...

    def note(self, text: str) -> None:
        """Reports an unexpected event or its end."""
        ...


class LocalFleet:
    def __init__(self, plan: FleetPlan, teller: Teller) -> None:
        """Raises `StokerError` if PostgreSQL is missing, and `FolderInUseError` if another process
        uses the folder.
        """
        self._plan = plan
        self._teller = teller
        self._path = plan.folder / STATE
        self._gateways: list[FleetProcess] = []
        self._nodes: list[FleetProcess] = []
        self._rays: list[FleetProcess] = []
        """Ray's head, its process for each node, and the placer."""
        self._folders: list[TemporaryFolder] = []
        self._ray_port = 0
        self._is_written = False
        if plan.has_ray:
            ray.check_installed()
        if find_spec("asyncpg") is None:
            hint = f"Install it: {install_command('postgres')}"
            raise StokerError("The library that speaks to PostgreSQL is missing.", hint=hint)
        if (plan.folder / "server.json").exists():
            raise WrongUseError(
                f"{plan.folder} is the data folder of a server.",
                hint="Choose a separate folder for the fleet with --data-dir.",
            )
        self._url = plan.given_database_url
        self._database: Postgres | None = None
        if self._url is None:
            folder, log = plan.folder / "postgres", plan.log("postgres")
            self._database = Postgres(folder, log, plan.connections)
        plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        plan.log("").parent.mkdir(exist_ok=True, mode=0o700)
        hint = "Stop it, or choose another folder with --data-dir."
        self._lock = lock(plan.folder / LOCK, f"The fleet's folder {plan.folder}", hint)
        self._path.unlink(missing_ok=True)

    async def start(self) -> None:
        """Starts the fleet. Returns once every gateway reports that it can load models. Raises
        `StokerError`.
        """
        if self._database:
            await self._database.start(self._teller.progress)
            self._url = self._database.url
        serving = asyncio.create_task(self._start_servers())
        try:
            await self.while_database(serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def while_database(self, work: "asyncio.Task[Any]") -> None:
        """Waits for a task and raises its error. Raises `StokerError` if PostgreSQL ends."""
        if self._database is None:
            await work
            return
        ended = asyncio.create_task(self._database.child.wait())
        try:
            await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise self._database.child.failed(ended.result())
            await work
        finally:
            ended.cancel()

    @property
    def base_urls(self) -> list[str]:
        return [gateway.state["base_url"] for gateway in self._gateways]

    def write(self) -> dict[str, Any]:
        """Writes the fleet's state to DATA_DIR/cluster.json. Later changes update the file."""
        self._is_written = True
        key = self._plan.folder / OPERATOR_KEY
        state = {
            "gateways": self.base_urls,
            "nodes": [{"id": node.state["id"], "pid": node.state["pid"]} for node in self._nodes],
            # None without Ray, because such a fleet has no head.
            "head": self._head(),
            "database_url": without_password(self._url or ""),
            "operator_key_file": str(key) if key.exists() else None,
            "pid": os.getpid(),
        }
        write_private(self._path, json.dumps(state, indent=2) + "\n")
        return state

    async def stop(self) -> None:
        """Stops first the gateways, which call the nodes, then the nodes, and last the database
        that both need.
        """
        self._is_written = False
        self._path.unlink(missing_ok=True)
        grace_s = 2 * self._plan.settings.stop_grace_s + _END_S
        all_of = (("gateways", self._gateways), ("nodes", self._nodes), ("Ray", self._rays))
        for kind, members in all_of:
            if members:
                self._teller.progress(f"Ending {kind} …")
                ended = await asyncio.gather(*(member.stop(grace_s) for member in members))
                for member, in_time in zip(members, ended, strict=True):
                    if not in_time:
                        self._teller.note(f"{member.name} did not end by itself, and was killed.")
        for folder in self._folders:
            folder.remove()
        if self._database:
            self._teller.progress("Ending PostgreSQL …")
            await self._database.stop()
        os.close(self._lock)

    def _head(self) -> dict[str, Any] | None:
        if not self._rays:
            return None
        return {"address": f"127.0.0.1:{self._ray_port}", "pid": self._rays[0].state["pid"]}

    async def _start_ray(self, url: str) -> None:
        self._teller.progress("Starting Ray …")
        plan, self._ray_port = self._plan, free_port()
        self._folders = [ray.new_folder() for _ in range(plan.nodes + 1)]
        paths = [member.path for member in self._folders]
        token = await ray.shared_token(plan.settings, url, plan.folder)
        programs = plan.ray_programs(url, token, self._ray_port, paths)
        self._rays = self._members(programs)
        head, *rest = self._rays
        await head.start()
        await ray.wait_listening(self._ray_port, head)
        for member in rest:
            await member.start()

    async def _start_servers(self) -> None:
        url = self._url or ""
        if self._plan.has_ray:
            await self._start_ray(url)
        self._nodes = self._members(self._plan.node_programs(url))
        self._gateways = self._members(self._plan.gateway_programs(url))
        nodes, gateways = len(self._nodes), len(self._gateways)
        self._teller.progress(
            f"Starting {_count(nodes, 'node')} and {_count(gateways, 'gateway')} …"
        )
        members = [*self._nodes, *self._gateways]
        starts = [asyncio.create_task(item.start()) for item in members]
        try:
            await asyncio.gather(*starts)
        finally:
            # If one start fails, the other starts are cancelled.
            for item in starts:
                item.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
        await self._wait_ready()
        self._keep_operator_key()

    def _members(self, programs: Sequence[Program]) -> list[FleetProcess]:
        return [
            FleetProcess(program, self._plan.log(program.name), self._changed)
            for program in programs
        ]

    def _changed(self, text: str) -> None:
        self._teller.note(text)
        if self._is_written:
            try:
                self.write()
            except OSError as error:
                # The processes are restarted despite the error.
                self._teller.note(f"{self._path} could not be written: {error}")

    async def _wait_ready(self) -> None:
        deadline, waiting = time.monotonic() + READY_S, [*self._gateways]
        # No proxy, because the gateways run on this machine.
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=_ANSWER_S) as client:  # noqa: S501 - there is no TLS
            while waiting:
                gateway = waiting[0]
                problem = await _why_not_ready(client, gateway.state["base_url"])
                if problem is None:
                    waiting.remove(gateway)
                    continue
                self._teller.progress(f"{gateway.name} is not ready yet: {problem}")
                if time.monotonic() > deadline:
                    raise gateway.failed(f"was not ready within {READY_S:.0f} s: {problem}")
                await asyncio.sleep(_LOOK_S)

    def _keep_operator_key(self) -> None:
        """Copies the operator's key to the folder that commands search. All gateways write the same
        key, if they have one.
        """
        with contextlib.suppress(FileNotFoundError):
            key = (self._plan.data_dir(self._gateways[0].name) / OPERATOR_KEY).read_text()
            write_private(self._plan.folder / OPERATOR_KEY, key)


async def _why_not_ready(client: httpx.AsyncClient, base_url: str) -> str | None:
    """Returns the reason why a gateway is not ready. None if it is ready."""
    try:
        answer = await client.get(f"{base_url}/ready")
    except httpx.HTTPError as error:
        return str(error) or "it does not answer"
    if answer.is_success:
        return None
    try:
        return str(answer.json()["problem"])
    except (ValueError, KeyError, TypeError):
        return f"it answers {answer.status_code}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
