"""A second runtime that runs models in threads of the server's own process, without forks, sockets
or pids.

`STOKER_RUNTIME=tests.runtime.in_process:InProcessRuntime` selects it. No file of the package refers
to it. Each deployment has one replica, which its first call loads and which stays until the
deployment is stopped.
"""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.base.config import Settings
from stoker.base.errors import ConflictError, InvalidRequestError, ModelLoadingError, NotFoundError
from stoker.runtime.interface import KEEP_ALIVE, Call, LoadError, ModelLocator, OnProgress
from stoker.runtime.listening import OK, Listeners, RuntimeListener, Served
from stoker.runtime.metering import Meter
from stoker.runtime.observed import (
    DeploymentStats,
    MachineStats,
    NodeStats,
    Reason,
    ReplicaStats,
    Status,
)
from stoker.runtime.specification import DeploymentSpec, Readiness
from stoker.wire.generation_request import Generation
from tests.support.local import Local, RefusedError

_numbers = itertools.count(1)


@dataclass(eq=False)
class _Deployment:
    spec: DeploymentSpec
    running: bool
    status: Status = Status.IDLE
    reason: Reason = Reason.CREATED
    message: str = "Waiting for its first request."
    replica_id: str = ""
    model: Local | None = None
    calls: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock of the task that loads, calls or unloads the model."""
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=1000))


class InProcessRuntime:
    is_remote = False

    def __init__(
        self,
        settings: Settings,
        folders: ModelLocator,
        unfunded: Callable[[], Collection[str]],
    ) -> None:
        self._folders = folders
        self._listeners = Listeners()
        self._deployments: dict[str, _Deployment] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.meter = Meter()

    async def start(self, listeners: Sequence[RuntimeListener]) -> None:
        self._listeners.add(*listeners)

    async def stop(self) -> None:
        for deployment in self._deployments.values():
            await self._end(deployment, Reason.SERVER_STOPPING)
        await asyncio.gather(*self._ending)

    def apply(self, spec: DeploymentSpec, *, running: bool) -> None:
        deployment = self._deployments.setdefault(spec.id, _Deployment(spec, running))
        is_other = not deployment.spec.runs_like(spec)
        deployment.spec, deployment.running = spec, running
        if not running:
            self._end_later(deployment, Reason.STOPPED_BY_USER)
        elif is_other:
            self._end_later(deployment, Reason.CHANGED)
        elif deployment.status is Status.STOPPED:
            self._observe(deployment, Status.IDLE, Reason.CHANGED, "Waiting for its first request.")
        if running and spec.readiness is Readiness.WARM:
            self._later(self._load_now(deployment))

    def check_fits(self, spec: DeploymentSpec) -> None:
        """Accepts every deployment, because the runtime has no memory budget."""

    def check_beside(self, spec: DeploymentSpec, live_id: str) -> None:
        """Accepts every pair of deployments, because the runtime has no memory budget."""

    async def remove(self, spec_id: str) -> None:
        if deployment := self._deployments.pop(spec_id, None):
            deployment.running = False
            await self._end(deployment, Reason.STOPPED_BY_USER)

    async def sweep_strays(self) -> None:
        """Does nothing, because the runtime keeps no files or processes."""

    async def call(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        on_progress: OnProgress | None = None,
    ) -> bytes:
        deployment = self._deployments.get(spec_id)
        if deployment is None:
            raise NotFoundError("Deployment not found", code="deployment_not_found")
        if isinstance(call, Generation):
            raise InvalidRequestError("This runtime runs no language models.")
        begun = time.monotonic()
        deployment.calls += 1
        try:
            async with deployment.lock:
                model = await self._loaded(deployment)
                started = time.monotonic()
                outcome, answer = await asyncio.to_thread(_answer, model, call)
        finally:
            deployment.calls -= 1
        self._listeners.served(
            Served(
                account_id=deployment.spec.account_id,
                deployment_id=deployment.spec.deployment,
                model=deployment.spec.model,
                outcome=outcome,
                status=200 if outcome == OK else 400,
                waited_s=started - begun,
                seconds=time.monotonic() - started,
                counts={},
            )
        )
        if isinstance(answer, InvalidRequestError):
            raise answer
        return answer

    async def stream(
        self,
        spec_id: str,
        call: Call | Generation,
        *,
        wait_s: float,
        timeout_s: float,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> AsyncGenerator[bytes]:
        yield await self.call(spec_id, call, wait_s=wait_s, timeout_s=timeout_s)

    def machine(self) -> MachineStats:
        return MachineStats()

    def nodes(self) -> Sequence[NodeStats]:
        return ()

    def at_work(self, besides: str) -> bool:
        return any(
            deployment.calls and deployment.spec.id != besides
            for deployment in self._deployments.values()
        )

    def stats(self, spec_id: str) -> DeploymentStats | None:
        deployment = self._deployments.get(spec_id)
        if deployment is None:
            return None
        replica = ReplicaStats(
            id=deployment.replica_id,
            status=deployment.status,
            pid=None,
            outstanding=deployment.calls,
            memory_bytes=None,
            progress=1.0,
            engine=deployment.model.engine if deployment.model else "",
        )
        return DeploymentStats(
            status=deployment.status,
            reason=deployment.reason,
            message=deployment.message,
            replicas=[replica] if deployment.model else [],
            calls=deployment.calls,
        )

    async def log_lines(self, deployment_id: str, limit: int) -> list[str]:
        deployments = [
            deployment
            for deployment in self._deployments.values()
            if deployment.spec.deployment == deployment_id
        ]
        return [line for deployment in deployments for line in deployment.lines][-limit:]

    def why_not_ready(self) -> str | None:
        return None

    def check(self) -> str | None:
        return None

    async def _loaded(self, one: _Deployment) -> Local:
        if not one.running:
            raise ConflictError(
                f"The deployment '{one.spec.model}' is stopped: start it first.",
                code="deployment_stopped",
            )
        if one.model is None:
            began = time.monotonic()
            one.replica_id = f"thread_{next(_numbers)}"
            self._observe(one, Status.STARTING, Reason.REQUEST, "A replica is starting.")
            try:
                folder = await self._folders.folder(one.spec)
            except LoadError as error:
                raise ModelLoadingError(
                    f"The model could not be loaded: {error}", retry_after_s=10
                ) from error
            one.model = await asyncio.to_thread(Local, one.spec.pipeline, folder)
            one.lines.append(f"{one.replica_id} has loaded {one.spec.model}")
            self.meter.begin(
                one.replica_id,
                account_id=one.spec.account_id,
                deployment_id=one.spec.deployment,
                model=one.spec.model,
                memory_bytes=one.spec.memory_bytes,
            )
            self._listeners.loaded(one.spec, time.monotonic() - began)
            self._observe(one, Status.READY, Reason.LOADED, "Ready.")
        return one.model

    async def _load_now(self, one: _Deployment) -> None:
        async with one.lock:
            if one.running:
                await self._loaded(one)

    def _end_later(self, one: _Deployment, reason: Reason) -> None:
        self._later(self._end(one, reason))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, one: _Deployment, reason: Reason) -> None:
        async with one.lock:
            if model := one.model:
                one.model = None
                await asyncio.to_thread(model.close)
                self.meter.end(one.replica_id)
            status = Status.IDLE if one.running else Status.STOPPED
            self._observe(one, status, reason, "" if one.running else "Stopped.")

    def _observe(self, one: _Deployment, status: Status, reason: Reason, message: str) -> None:
        one.status, one.reason, one.message = status, reason, message
        self._listeners.changed(one.spec, status, reason, message)


def _answer(model: Local, call: Call) -> tuple[str, bytes | InvalidRequestError]:
    try:
        return OK, model.answers([call])[0]
    except RefusedError as error:
        failure = error.failure
        refused = InvalidRequestError(failure.message, code=failure.code, param=failure.param)
        return refused.code, refused
