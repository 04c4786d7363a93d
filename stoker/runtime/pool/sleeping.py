"""Replicas whose GPU memory is in main memory, so that others can use the GPU.

A replica falls asleep after its pending calls. It accepts no calls until it is awake again.
"""

import asyncio
import logging
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from stoker.runtime.observed import Reason, Status
from stoker.runtime.pool.draining import Draining
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Launcher, SleepError
from stoker.runtime.pool.state import State

log = logging.getLogger(__name__)


class Sleeping:
    def __init__(self, state: State, launcher: Launcher, draining: Draining) -> None:
        self._state = state
        self._launcher = launcher
        self._draining = draining
        self._falling: dict[str, asyncio.Task[None]] = {}
        """Maps a replica to the task that puts it to sleep."""
        self._waking: set[str] = set()
        self._moves: dict[str, asyncio.Task[None]] = {}
        """Maps a replica to the move of its GPU memory."""

    def begin(self, replica: ReplicaHandle) -> None:
        """Puts a replica to sleep after its pending calls."""
        replica.fall_asleep()
        self._state.notify(Reason.ASLEEP, "Its GPU memory is being moved to main memory.")
        task = asyncio.create_task(self._fall_asleep(replica))
        self._falling[replica.id] = task
        task.add_done_callback(lambda _: self._falling.pop(replica.id, None))

    def next(self) -> ReplicaHandle | None:
        """Returns a sleeping replica of the newest specification that no start wakes yet."""
        for replica in self._state.of_status(Status.ASLEEP):
            is_current = replica.generation == self._state.generation
            is_killed = replica.has_ended or replica.kill_cause.details
            if is_current and not is_killed and not self.is_waking(replica):
                return replica
        return None

    def has_room(self, replica: ReplicaHandle) -> bool:
        return self._launcher.has_device_room(self._state.spec, replica.id)

    async def claim(self, replica: ReplicaHandle, *, is_needed: bool) -> bool:
        """Claims memory of the replica's GPU. Returns False if that is not needed and none is
        free.

        Ends the replica and raises `SleepError` if it can never wake.
        """
        with self._attempt(replica):
            if falling := self._falling.get(replica.id):
                await asyncio.wait([falling])
            _check_alive(replica)
            spec = self._state.spec
            return await self._launcher.claim_device(spec, replica.id, is_needed=is_needed)

    async def wake(self, replica: ReplicaHandle) -> None:
        """Wakes a replica that has claimed memory of its GPU.

        Ends the replica and raises `SleepError` if that fails.
        """
        with self._attempt(replica):
            await self._move(replica, self._launcher.wake(replica.id))
            _check_alive(replica)

    def ended(self, replica: ReplicaHandle) -> None:
        """Abandons the move of a replica that has ended. The driver may not notice its end."""
        if move := self._moves.get(replica.id):
            move.cancel()

    def is_waking(self, replica: ReplicaHandle) -> bool:
        return replica.id in self._waking

    @contextmanager
    def _attempt(self, replica: ReplicaHandle) -> Generator[None]:
        """Marks the replica as waking. Ends it if the block fails."""
        self._waking.add(replica.id)
        try:
            yield
        except SleepError as error:
            self._kill(replica, f"its memory could not be moved back to the GPU: {error}")
            raise
        finally:
            self._waking.discard(replica.id)

    async def _fall_asleep(self, replica: ReplicaHandle) -> None:
        try:
            await replica.wait_idle()
            if replica.generation < self._state.generation and not replica.has_ended:
                # No call would wake it.
                self._draining.end_outdated(replica)
                return
            await self._move(replica, self._launcher.sleep(replica.id))
        except SleepError as error:
            self._kill(replica, f"its GPU memory could not be moved to main memory: {error}")
        except Exception:
            log.exception("GPU memory of a replica could not be moved to main memory")
            self._kill(replica, "its GPU memory could not be moved to main memory")
        else:
            message = "Its GPU memory was moved to main memory. The next request moves it back."
            self._state.add_event(Reason.ASLEEP, message)

    async def _move(self, replica: ReplicaHandle, work: Coroutine[Any, Any, None]) -> None:
        """Runs a move until it or the replica ends. Raises `SleepError`."""
        move = self._moves[replica.id] = asyncio.create_task(work)
        try:
            await move
        except asyncio.CancelledError:
            if not replica.has_ended:
                raise
            _check_alive(replica)
        finally:
            self._moves.pop(replica.id, None)

    def _kill(self, replica: ReplicaHandle, why: str) -> None:
        if not replica.has_ended:
            self._draining.kill(replica, Reason.EVICTED, why)


def _check_alive(replica: ReplicaHandle) -> None:
    if replica.has_ended:
        raise SleepError("its process has ended")
