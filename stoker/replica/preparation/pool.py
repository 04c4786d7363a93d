"""The replica's side of its preparation processes: gives them items, and replaces processes that
died.
"""

import logging
import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.base.fairness import Tier
from stoker.models.engines.openmp import keep_to_one_core
from stoker.models.stages.base import InputError, Sample
from stoker.replica.counters import Counters
from stoker.replica.named_thread import NamedThread
from stoker.replica.preparation.demand import PreparationDemand, Turnover
from stoker.replica.preparation.messages import (
    AREA_BYTES,
    AREAS,
    HELLO,
    JOB,
    OUTCOME,
    PREPARED,
    REFUSED,
    TOO_LARGE,
)
from stoker.replica.preparation.parent import ParentGoneError, PreparationParent
from stoker.replica.preparation.payload import (
    NotTransferableError,
    TooLargeError,
    decode,
    encode,
)
from stoker.replica.queue_thread import Lanes

log = logging.getLogger(__name__)

Prepared = Callable[[], list[Sample]]
"""Returns the samples of an item, or raises its error."""
MOST_TRIES = 2
"""Number of processes that may end during one item's preparation."""
_MOST_BYTES = AREA_BYTES - (1 << 20)
"""Maximum bytes of an input. The rest of an area is for errors."""
_LOOK_S = 1.0
_WANTED_S = 1.0
"""Seconds without work after which the request for a first permit is withdrawn."""


class PreparationError(Exception):
    """Raised for an item whose preparation failed in another process. The message is for the log
    only.
    """


@dataclass(eq=False)
class PreparationJob:
    """Item that a process prepares."""

    item: Any
    parameters: Mapping[str, Any]
    party: str
    is_done: Callable[[], bool]
    """Returns True if no caller waits for the item any more."""
    deliver: Callable[[Prepared], None]
    """Receives the outcome, on the pool's thread."""
    prepare: Prepared
    """Prepares the item in the replica. Runs where the outcome is used."""
    tries: int = 0
    """Number of processes that ended while they prepared it."""
    tier: Tier = Tier.DEFAULT
    """Tier of the item's call."""


@dataclass(eq=False)
class _PreparationProcess:
    number: int
    permit: int
    connection: socket.socket
    pid: int | None = None
    """None until the process has sent its first message."""
    running: deque[tuple[PreparationJob, int]] = field(
        default_factory=deque[tuple[PreparationJob, int]]
    )
    """Jobs in the order in which they were sent, with their areas."""
    areas: list[int] = field(default_factory=lambda: list(range(AREAS)))
    """Areas without a job."""
    is_ending: bool = False


class PreparationPool:
    """Processes that prepare items. A separate thread communicates with them.

    This thread starts with the first load. Other threads use `load`, `put`, `pids` and `finish`.
    """

    def __init__(
        self,
        parent: PreparationParent,
        demand: PreparationDemand,
        counters: Counters,
        *,
        is_hungry: Callable[[], bool],
        loaded: Callable[[str], None],
    ) -> None:
        """
        Args:
            is_hungry: returns True if the engine would use more samples than it gets.
            loaded: receives why stages could not be loaded, or an empty text. Runs on the pool's
                thread.
        """
        self._parent = parent
        self._demand = demand
        self._is_hungry = is_hungry
        self._loaded = loaded
        self._lanes: Lanes[PreparationJob] = Lanes()
        self._processes: dict[int, _PreparationProcess] = {}
        """Maps the descriptor of a connection to its process."""
        self._inbox: deque[PreparationJob | bytes | None] = deque()
        """Jobs, stages to load, and None to finish."""
        self._turnover = Turnover()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        self._is_finishing = False
        self.is_open = False
        """True while processes run. Jobs are accepted at any time."""
        self._opens_at = self._yields_at = -math.inf
        self._pending = 0
        self._pulse = counters.pulse(lambda: self.pending > 0)
        self._thread: NamedThread | None = None

    @property
    def pending(self) -> int:
        """Number of jobs without an outcome. Jobs on their way to the pool's thread count."""
        return len(self._inbox) + self._pending

    @property
    def may_open(self) -> bool:
        """False for a while after no process could be started."""
        return time.monotonic() >= self._opens_at

    @property
    def pids(self) -> list[int]:
        processes = list(self._processes.values())
        return [self._parent.pid, *(process.pid for process in processes if process.pid)]

    def load(self, pickled: bytes) -> None:
        """Ends all processes and starts the next ones with these stages."""
        if self._thread is None:
            self._thread = NamedThread("preparation", self._run)
            self._thread.start()
        self._send(pickled)

    def put(self, job: PreparationJob) -> None:
        self._send(job)

    def finish(self) -> None:
        """Ends all processes and the thread, once all jobs have an outcome."""
        if self._thread:
            self._send(None)
            self._thread.join()
        self._parent.connection.close()

    def _send(self, message: PreparationJob | bytes | None) -> None:
        self._inbox.append(message)
        os.eventfd_write(self._wake, 1)

    # --- the pool's thread ---

    def _run(self) -> None:
        keep_to_one_core()
        while not (self._is_finishing and not self.pending):
            for descriptor, _ in self._poller.poll(_LOOK_S * 1000 if self._must_look else None):
                if descriptor == self._wake:
                    os.eventfd_read(self._wake)
                elif process := self._processes.get(descriptor):
                    self._receive(process)
            self._take_in()
            self._distribute()
            self._adjust()
        for process in list(self._processes.values()):
            self._end(process)
        self._parent.permits.stop_waiting()

    @property
    def _must_look(self) -> bool:
        """True if something may have to be done although no message arrives."""
        return bool(self._processes or self._lanes or self._parent.permits.is_waiting)

    def _take_in(self) -> None:
        while self._inbox:
            message = self._inbox[0]
            if message is None:
                self._is_finishing = True
            elif isinstance(message, bytes):
                self._load(message)
            else:
                self._pending += 1
                self._lanes.add(message, message.party, message.tier)
            # Removed only now, so that `pending` never misses a job.
            self._inbox.popleft()

    def _load(self, pickled: bytes) -> None:
        self.is_open = False
        for process in list(self._processes.values()):
            process.is_ending = True
        try:
            problem = self._parent.load(pickled)
        except ParentGoneError as error:
            problem = f"their parent has ended: {error}"
        self._loaded(problem)

    def _distribute(self) -> None:
        """Sends waiting jobs to processes with a free area, the least busy one first."""
        while self._lanes:
            free = [each for each in self._processes.values() if each.areas and _accepts(each)]
            if not free:
                return
            job = self._lanes.next()
            if job.is_done():
                self._pending -= 1
                continue
            self._give(job, min(free, key=lambda process: len(process.running)))

    def _give(self, job: PreparationJob, process: _PreparationProcess) -> None:
        area = process.areas[-1]
        memory = self._parent.memory.area(process.number, area)
        try:
            size = encode((job.item, job.parameters), memory[:_MOST_BYTES])
        except (NotTransferableError, TooLargeError):
            self._deliver(job, job.prepare)
            return
        process.areas.pop()
        process.running.append((job, area))
        try:
            process.connection.sendall(JOB.pack(area, size))
        except OSError:
            self._lost(process)

    def _receive(self, process: _PreparationProcess) -> None:
        try:
            message = process.connection.recv(OUTCOME.size)
        except OSError:
            message = b""
        if not message:
            self._lost(process)
        elif process.pid is None:
            (process.pid,) = HELLO.unpack(message)
            self._turnover.succeeded()
            self.is_open = True
        else:
            self._finish_job(process, message)

    def _finish_job(self, process: _PreparationProcess, message: bytes) -> None:
        area, kind, place, size, seconds = OUTCOME.unpack(message)
        job, _ = process.running.popleft()
        process.areas.append(area)
        self._demand.took(seconds)
        if kind == TOO_LARGE:
            self._deliver(job, job.prepare)
            return
        memory = self._parent.memory.area(process.number, area)[place : place + size]
        try:
            outcome = _outcome(kind, decode(memory, is_copied=True))
        except Exception as error:
            outcome = _raising(f"its samples cannot be read: {error!r}")
        self._deliver(job, outcome)

    def _deliver(self, job: PreparationJob, outcome: Prepared) -> None:
        job.deliver(outcome)
        self._pending -= 1
        self._pulse.stepped()

    def _lost(self, process: _PreparationProcess) -> None:
        """Replaces a process that ended. Its oldest job may be the cause and is retried once."""
        jobs = [job for job, _ in process.running]
        if process.pid is None:
            self._turnover.failed()
        if jobs:
            log.warning("preparation process ended during an item, pid %s", process.pid)
            jobs[0].tries += 1
        self._remove(process)
        self._pulse.stepped()
        for job in jobs:
            if job.tries < MOST_TRIES:
                self._lanes.add(job)
            else:
                self._deliver(job, _raising("processes ended while they prepared this item"))

    # --- the number of processes ---

    def _adjust(self) -> None:
        """Starts or ends a process, and returns jobs to the replica if there are no processes."""
        self._demand.saw(self._pending)
        lasting = [process for process in self._processes.values() if not process.is_ending]
        lasting.sort(key=lambda process: len(process.running))
        surplus = len(lasting) - self._demand.needed(len(lasting))
        is_wanted = bool(lasting) and self._parent.permits.is_wanted()
        if not surplus and len(lasting) > 1 and is_wanted and time.monotonic() >= self._yields_at:
            # The other replica asks again within this time.
            self._yields_at = time.monotonic() + _LOOK_S
            surplus = 1
        for process in lasting[:surplus]:
            process.is_ending = True
        for process in [each for each in self._processes.values() if each.is_ending]:
            if not process.running:
                self._end(process)
        is_starting = any(process.pid is None for process in self._processes.values())
        may_grow = self._is_hungry() and not is_wanted
        if self._lanes and not is_starting and (may_grow or not self._processes):
            self._grow()
        if self._lanes and not self._processes:
            self._give_up()
        elif time.monotonic() >= self._opens_at + _WANTED_S:
            # Other replicas would end processes for this one.
            self._parent.permits.stop_waiting()

    def _grow(self) -> bool:
        """Starts a process. Returns False if the machine's limit is reached or a start failed."""
        parent, used = self._parent, {process.number for process in self._processes.values()}
        number = next((n for n in range(parent.memory.processes) if n not in used), None)
        if number is None or not self._turnover.is_allowed:
            return False
        permit = parent.permits.take(parent.most)
        if permit is None:
            return False
        try:
            connection = parent.start(number)
        except ParentGoneError:
            self._turnover.failed()
            parent.permits.give(permit)
            return False
        self._processes[connection.fileno()] = _PreparationProcess(number, permit, connection)
        self._poller.register(connection, select.POLLIN)
        return True

    def _give_up(self) -> None:
        """Returns all waiting jobs to the replica. Fails jobs during which a process died."""
        self._opens_at = time.monotonic() + _LOOK_S
        while self._lanes:
            job = self._lanes.next()
            is_safe = not job.tries
            outcome = job.prepare if is_safe else _raising("no process is left for this item")
            self._deliver(job, outcome)

    def _end(self, process: _PreparationProcess) -> None:
        self._parent.memory.free(process.number)
        self._remove(process)

    def _remove(self, process: _PreparationProcess) -> None:
        self._poller.unregister(process.connection)
        del self._processes[process.connection.fileno()]
        process.connection.close()
        self._parent.permits.give(process.permit)
        self.is_open = any(_accepts(each) for each in self._processes.values())


def _accepts(process: _PreparationProcess) -> bool:
    return process.pid is not None and not process.is_ending


def _outcome(kind: int, value: Any) -> Prepared:
    if kind == PREPARED:
        samples: list[Sample] = value
        return lambda: samples
    if kind == REFUSED:
        message, name, of_item, code = value
        error = InputError(message, field=name, of_item=of_item, code=code)

        def refuse() -> list[Sample]:
            raise error

        return refuse
    return _raising(str(value))


def _raising(message: str) -> Prepared:
    def fail() -> list[Sample]:
        raise PreparationError(message)

    return fail
