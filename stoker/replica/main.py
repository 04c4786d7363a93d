"""A replica: one process with one model. Runs in the child that the engine host forked."""

import logging
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stoker import sandbox
from stoker.models.engines.record import AUTO
from stoker.replica import allocator, graphics, walls
from stoker.replica.counters import Stalls
from stoker.replica.failures import load_failure
from stoker.replica.link import Link
from stoker.replica.passes import Passes
from stoker.replica.serving import Serving, SleepingServing, serving
from stoker.replica.shared_lock import SharedLock
from stoker.wire.flight import FlightRecord
from stoker.wire.notices import PRECISION, Notice, bounded
from stoker.wire.protocol import (
    Adopt,
    Calibrated,
    Cancel,
    Generate,
    Heartbeat,
    Loaded,
    Loading,
    ReplicaSpec,
    Shutdown,
    ToReplica,
    Work,
)
from stoker.wire.sleep import Sleep, Wake

if TYPE_CHECKING:
    from stoker.replica.preparation.parent import PreparationParent
    from stoker.replica.preparation.permits import Permits

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
WEIGHING_S, IDLE_WEIGHING_S = 5.0, 60.0
"""Seconds between measurements of memory: after work and while idle.

The kernel walks every page, which takes 12 ms of a core for BERT-base. Fifty idle models would need
that all the time.
"""


def run(spec: ReplicaSpec, lock: SharedLock | None = None, permits: "Permits | None" = None) -> int:
    """Loads the model and serves until a shutdown message. Returns the process's exit code.

    Args:
        lock: lock that replicas hold while they compute, so that only one of them computes at a
            time.
        permits: permits for preparation processes. None: the replica has none.
    """
    configure_log(spec.id, spec.log_path)
    secret = _taken(Path(spec.secret_path))
    graphics.restrict(spec)
    walls.around_replica(spec)
    return _run(spec, secret, _preparation(spec, permits), lock)


def take_over(
    spec: ReplicaSpec, log_descriptor: int, preparation: "PreparationParent | None"
) -> int:
    """Does the same as `run` in a process that has its walls and its CUDA context.

    Args:
        log_descriptor: the replica's log file, which the process may not open any more.
        preparation: parent of preparation processes. It ends if the replica needs none.
    """
    if preparation and _may_prepare(spec):
        preparation.log_to(log_descriptor)
    elif preparation:
        preparation.connection.close()
        preparation = None
    log_to(log_descriptor, spec.id)
    log.info("starting in a prepared worker")
    walls.limit_files(spec)
    return _run(spec, _taken(Path(spec.secret_path)), preparation)


def _run(
    spec: ReplicaSpec,
    secret: bytes,
    preparation: "PreparationParent | None",
    lock: SharedLock | None = None,
) -> int:
    # Threads switch more often than every 5 ms, because requests are that short.
    sys.setswitchinterval(0.001)
    link = Link(spec.address, secret)
    try:
        problem = graphics.problem(spec)
        if problem and spec.device != AUTO:
            link.send(graphics.refusal(problem))
            return 0
        if problem:
            log.warning("the model runs on the CPU: %s", problem)
            spec = msgspec.structs.replace(spec, device="cpu")
        if not spec.environment and not walls.may_use_gpu(spec):
            # Libraries for GPUs and the model's child processes may need their own sockets.
            sandbox.seal()
        # Passes on a GPU need no turns.
        passes = Passes(None if walls.may_use_gpu(spec) else lock)
        return _serve(spec, link, passes, problem, preparation)
    finally:
        link.close()


def _preparation(spec: ReplicaSpec, permits: "Permits | None") -> "PreparationParent | None":
    """Forks the parent of preparation processes, if the replica may have some.

    Must be called inside the walls, before CUDA is used and before threads start.
    """
    from stoker.replica.preparation.parent import fork_parent

    if permits is None or not _may_prepare(spec):
        return None
    return fork_parent(spec.preparation_processes, permits)


def _may_prepare(spec: ReplicaSpec) -> bool:
    """Returns True if other processes may prepare inputs."""
    from stoker.models.tasks.registry import GENERATING

    return bool(spec.preparation_processes) and spec.pipeline not in GENERATING


def _notices(spec: ReplicaSpec, worker: Serving) -> list[Notice]:
    """Returns the notices for the model's owner."""
    from stoker.models.engines.precision import emulated
    from stoker.models.engines.torch import device_of

    message = emulated(spec.dtype, device_of(spec.device))
    dtype_notices = [Notice("emulated_dtype", message)] if message else []
    if worker.precision:
        dtype_notices.append(Notice(PRECISION, worker.precision.message))
    return bounded([*dtype_notices, *worker.notices])


def _serve(
    spec: ReplicaSpec,
    link: Link,
    passes: Passes,
    device_problem: str,
    preparation: "PreparationParent | None",
) -> int:
    started = time.perf_counter()
    try:
        worker = _load(spec, link, passes, preparation)
    except Exception as error:
        log.exception("model could not be loaded")
        link.send(load_failure(error, spec.model_dir))
        return 0
    # Loading leaves memory behind, for example of weights in their stored type. The first
    # measurement would count it as the model's need.
    graphics.release_cache()
    allocator.give_back()
    worker.start()
    seconds = time.perf_counter() - started
    notices = _notices(spec, worker)
    link.send(
        Loaded(
            seconds,
            worker.convertible,
            worker.sharing,
            notices,
            worker.precision,
            worker.device,
            device_problem,
            worker.sleep_bytes if isinstance(worker, SleepingServing) else None,
        )
    )
    next_beat, last_beat, is_at_rest = 0.0, None, False
    scales, stalls = Scales(), Stalls()
    stopping: Stopping | None = None
    while True:
        messages = link.receive(timeout_s=max(0.0, next_beat - time.monotonic()))
        is_lost = worker.is_lost or not (worker.alive or worker.accepted)
        if messages and is_lost and not stopping:
            # The gateway sends these calls to another replica.
            return 1
        if messages and is_at_rest:
            # Work that begins now does not count from the last heartbeat.
            stalls.look(worker.counters.pulses)
            next_beat, is_at_rest = min(next_beat, time.monotonic() + HEARTBEAT_S), False
        for message in messages:
            if not isinstance(message, Shutdown):
                _pass_on(message, worker)
            elif not stopping:
                stopping = Stopping(worker, link.wake)
                stopping.start()
        if stopping and stopping.is_done:
            link.send(_heartbeat(spec, worker, scales.weight, 0.0))
            return 0
        if worker.is_lost or not (worker.alive or worker.accepted):
            # The gateway starts another replica, which computes the calls that were not begun.
            return 1
        if time.monotonic() >= next_beat:
            scales.look(worker)
            stuck_s = stalls.look(worker.counters.pulses)
            beat = _heartbeat(spec, worker, scales.weight, stuck_s)
            link.send(beat)
            is_at_rest = beat == last_beat and beat.is_settled and not beat.accepted
            next_beat = time.monotonic() + (spec.idle_heartbeat_s if is_at_rest else HEARTBEAT_S)
            last_beat = beat
            if news := worker.measured():
                link.send(Calibrated(*news))


def _pass_on(message: ToReplica, worker: Serving) -> None:
    match message:
        case Work() | Generate():
            worker.submit(message)
        case Cancel():
            worker.cancel(message.id)
        case Adopt():
            worker.adopt(message.execution)
        case Sleep() | Wake() if isinstance(worker, SleepingServing):
            worker.move(message)
        case _:
            log.warning("unexpected message")


class Stopping(threading.Thread):
    """Thread that stops the worker while the loop continues, so that a hang is still detected."""

    def __init__(self, worker: Serving, wake: Callable[[], None]) -> None:
        super().__init__(name="stop", daemon=True)
        self._worker = worker
        self._wake = wake
        self.is_done = False

    def run(self) -> None:
        self._worker.stop()
        # Not `is_alive`: the woken loop checks once, while this thread still lives a little longer.
        self.is_done = True
        self._wake()


def _heartbeat(spec: ReplicaSpec, worker: Serving, memory: "Weight", stuck_s: float) -> Heartbeat:
    return Heartbeat(
        worker.counters.progress,
        worker.accepted + worker.counters.at_work,
        memory.proportional,
        memory.own,
        worker.counters.busy_s,
        worker.engine,
        worker.cache_usage,
        worker.counters.batches,
        stuck_s,
        worker.is_settled,
        graphics.held(spec),
        worker.recorded,
    )


def _load(
    spec: ReplicaSpec, link: Link, passes: Passes, preparation: "PreparationParent | None"
) -> Serving:
    def progress(fraction: float, stage: str) -> None:
        link.send(Loading(fraction, stage))

    flight = FlightRecord(Path(spec.flight_path))
    return serving(spec, link.send, flight, passes, progress, preparation=preparation)


def _taken(path: Path) -> bytes:
    """Returns the content of a private file and deletes the file."""
    content = path.read_bytes()
    path.unlink()
    return content


def configure_log(name: str, path: str) -> None:
    """Redirects this process's output and log to a file."""
    log_to(open_log(path), name)


def open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def log_to(descriptor: int, name: str) -> None:
    """Redirects this process's output and log to an open file, and closes the descriptor."""
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    logging.basicConfig(
        level=logging.INFO,
        force=True,
        stream=sys.stderr,
        format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s",
    )
    logging.info("starting, pid %d", os.getpid())


class Weight(NamedTuple):
    """Memory use in bytes."""

    proportional: int = 0
    """Bytes in pages, with shared pages divided among the processes that share them."""
    own: int = 0
    """Bytes in pages that no other process shares. 0 if not measured yet."""


class Scales:
    """Measures a replica's memory, again after its first pass, and less often while it is idle.
    Returns its freed memory to the kernel.
    """

    def __init__(self) -> None:
        self.weight = Weight()
        self._last = -math.inf
        self._seen = ("", -1)
        self._has_rested = False
        self._has_computed = False

    def look(self, worker: Serving) -> None:
        now, state = time.monotonic(), (worker.engine, worker.counters.progress)
        is_idle = state == self._seen and not worker.accepted
        rests = is_idle and self._has_rested
        is_first = worker.counters.busy_s > 0 and not self._has_computed
        if is_first or now - self._last >= (IDLE_WEIGHING_S if rests else WEIGHING_S):
            self._has_computed = worker.counters.busy_s > 0
            if is_idle and not rests:
                allocator.give_back()
                graphics.release_cache(least=graphics.IDLE_CACHE_BYTES)
            self._has_rested = is_idle
            weight = weigh((os.getpid(), *worker.children))
            # Passes map the weights, so a replica's need is unknown before the first pass.
            self.weight = weight if self._has_computed else weight._replace(own=0)
            self._last, self._seen = now, state


def weigh(processes: Iterable[int]) -> Weight:
    """Returns the memory of all processes together. Ended processes count as zero."""
    sizes: Counter[str] = Counter()
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            log.debug("no smaps_rollup")
            continue
        for line in lines[1:]:
            name, size, *_ = line.split()
            sizes[name] += int(size) * 1024
    return Weight(sizes["Pss:"], sizes["Private_Clean:"] + sizes["Private_Dirty:"])


def ignore_interrupts() -> None:
    """Ignores Ctrl-C, which a terminal sends to the whole group. The gateway decides when replicas
    end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
