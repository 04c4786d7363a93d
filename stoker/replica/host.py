"""The engine host: a single-threaded process that imports heavy libraries and forks replicas.

A forked replica has torch and transformers imported already and shares their memory. Nothing here
may start a thread, an OpenMP pool or a CUDA context before the fork (see `cuda_guard`).
`gc.freeze()` keeps the collector from touching, and so copying, the shared pages.

Commands arrive as JSON lines on standard input. Events go to the original standard output. The
input ends with the gateway. Then the host ends, and its parent-death signal ends all replicas.
"""

import gc
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from stoker import sandbox
from stoker.replica import allocator, fresh, huge_pages, prepared, walls
from stoker.replica import main as replica
from stoker.replica.host_imports import IMPORTERS, import_libraries
from stoker.replica.preparation.permits import Permits
from stoker.replica.shared_lock import SharedLock, UnsupportedError
from stoker.replica.worker_sockets import WorkerSockets
from stoker.sandbox import places, priority
from stoker.wire.conversions import Conversion, ConversionTrial
from stoker.wire.host_messages import (
    Convert,
    Exited,
    Fork,
    Forked,
    HostCommand,
    HostEvent,
    HostReady,
    Ping,
    Pong,
    Preload,
    Preloaded,
    Prepare,
    Signal,
    Try,
    WorkerReport,
)
from stoker.wire.protocol import ReplicaSpec, WorkerSpec

if TYPE_CHECKING:
    from stoker.replica.cuda_guard import CudaGuard

log = logging.getLogger(__name__)

MOST_DESCRIPTORS = 1 << 20

_decode = msgspec.json.Decoder(HostCommand).decode
_encode = msgspec.json.Encoder().encode


_ORPHANS_S = 1.0
"""Maximum lifetime in seconds of a process that a replica's child left behind."""


class Host:
    """Executes commands until its input ends.

    Args:
        events: descriptor for events.
        guard: guard that forked children remove.
        cuda_problem: why forks cannot use CUDA. Empty if they can.
    """

    def __init__(self, events: int, guard: "CudaGuard", cuda_problem: str) -> None:
        self._events = events
        self._guard = guard
        self._cuda_problem = cuda_problem
        self._children: dict[str, int] = {}
        self._locks = Locks()
        self._workers = WorkerSockets()
        self._pages = huge_pages.QuietCollapse(stop_at=0)
        self._permits = Permits.create()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)
        sandbox.adopt_orphans()
        replica.ignore_interrupts()
        gc.freeze()
        self._emit(HostReady(threads=_thread_count(), cuda_problem=self._cuda_problem))
        commands = LineReader(0)
        while True:
            sources = [0, self._wake_read, *self._workers]
            readable, _, _ = select.select(sources, [], [], _ORPHANS_S)
            if not readable:
                # No signal reports an orphan: a process with an ended parent that was a replica's
                # child.
                self._end_orphans()
                self._pages.rest(has_children=bool(self._children))
            if self._wake_read in readable:
                os.read(self._wake_read, 4096)
                self._reap()
            for descriptor in self._workers:
                if descriptor in readable and (event := self._workers.read(descriptor)):
                    self._emit(event)
            if 0 in readable:
                lines = commands.read()
                if lines is None:
                    return
                for line in lines:
                    self._obey(_decode(line))

    def _obey(self, command: HostCommand) -> None:
        match command:
            case Fork(replica=spec, worker=worker):
                if not (worker and self._assign(worker, spec)):
                    self._fork_replica(spec)
            case Prepare(worker=spec):
                self._prepare(spec)
            case Convert(job=job):
                self._fork(job.id, lambda: _convert(job))
            case Try(job=job):
                self._fork(job.id, lambda: _try_out(job))
            case Signal():
                # Only a child that has not been reaped: its process id cannot have been reused.
                if pid := self._children.get(command.replica_id):
                    self._workers.forget(command.replica_id)
                    os.kill(pid, command.signal)
            case Ping():
                self._emit(Pong())
            case Preload():
                self._preload(command)

    def _fork_replica(self, spec: ReplicaSpec) -> None:
        if self._cuda_problem and walls.may_use_gpu(spec):
            self._fork(spec.id, lambda: fresh.execute(spec, self._permits))
            return
        lock = self._locks.of(spec)
        self._fork(spec.id, lambda: replica.run(spec, lock, self._permits), lock)

    def _prepare(self, spec: WorkerSpec) -> None:
        if self._cuda_problem and spec.device != "cpu":
            self._emit(WorkerReport(spec.id, self._cuda_problem))
            self._emit(Exited(spec.id, 0))
            return
        channel = self._workers.add(spec.id)
        self._fork(spec.id, lambda: prepared.run(spec, channel, self._permits))
        channel.close()

    def _assign(self, worker: str, spec: ReplicaSpec) -> bool:
        """Makes a prepared worker a replica. Returns False if the worker cannot become it."""
        pid = self._children.get(worker)
        if pid is None:
            return False
        if not self._workers.assign(worker, spec, replica.open_log):
            os.kill(pid, signal.SIGKILL)
            return False
        self._children[spec.id] = self._children.pop(worker)
        self._emit(Forked(spec.id, pid, worker))
        return True

    def _preload(self, command: Preload) -> None:
        """Imports an architecture's code, unless an attempt shows that forks could not use CUDA
        after it.
        """
        from stoker.replica.cuda_guard import problem_of_import

        def run() -> None:
            IMPORTERS[command.library](command.name)

        # If forks cannot use CUDA anyway, the import makes nothing worse.
        problem = "" if self._cuda_problem else problem_of_import(run)
        count = len(sys.modules)
        if not problem:
            run()
            gc.freeze()
        is_new = len(sys.modules) > count
        self._emit(Preloaded(_thread_count(), command.name, problem, is_new))

    def _fork(self, name: str, run: Callable[[], int], lock: SharedLock | None = None) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            # For lack of memory or processes. All other children continue.
            log.error("no process can be started for %s: %s", name, error)
            self._workers.forget(name)
            self._locks.ended(name)
            self._emit(Exited(name, os.EX_OSERR))
            return
        if pid == 0:
            self._be_child(run, lock)
        self._children[name] = pid
        self._emit(Forked(name, pid))

    def _be_child(self, run: Callable[[], int], lock: SharedLock | None) -> None:
        code = 70
        try:
            sandbox.die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self._events, self._wake_read, self._wake_write):
                os.close(descriptor)
            self._locks.forget_all_but(lock)
            self._workers.close_all()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            allocator.keep_freed()
            self._guard.remove()
            code = run()
        except BaseException:
            logging.getLogger(__name__).exception("the child failed")
        finally:
            # Not sys.exit: the host's own cleanup must not run in the child.
            logging.shutdown()
            os._exit(code)

    def _reap(self) -> None:
        for replica_id, pid in list(self._children.items()):
            reaped, status = os.waitpid(pid, os.WNOHANG)
            if reaped:
                del self._children[replica_id]
                if spec := self._workers.forget(replica_id):
                    log.warning("prepared worker ended early; forking %s", spec.id)
                    self._fork_replica(spec)
                    continue
                self._locks.ended(replica_id)
                self._emit(Exited(replica_id, os.waitstatus_to_exitcode(status)))
        self._end_orphans()

    def _end_orphans(self) -> None:
        """Kills processes that an ended replica started and left behind."""
        for pid in sandbox.children():
            if pid not in self._children.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)

    def _emit(self, event: HostEvent) -> None:
        data = _encode(event) + b"\n"
        while data:
            data = data[os.write(self._events, data) :]


class Locks:
    """Locks by which replicas take turns (`stoker.replica.passes`), by the name that they share."""

    def __init__(self) -> None:
        self._locks: dict[str, SharedLock] = {}
        self._names: dict[str, str] = {}
        """Maps a replica's id to the name of its lock."""

    def of(self, spec: ReplicaSpec) -> SharedLock | None:
        """Returns the lock for a replica that is about to be forked. None if it takes no turns."""
        name = spec.turns_with
        if not name:
            return None
        if name not in self._locks:
            try:
                self._locks[name] = SharedLock()
            except UnsupportedError:
                return None
        self._names[spec.id] = name
        return self._locks[name]

    def forget_all_but(self, lock: SharedLock | None) -> None:
        """Closes all other locks in a fork."""
        for other in self._locks.values():
            if other is not lock:
                other.close()

    def ended(self, replica_id: str) -> None:
        """Closes a lock after the last replica that uses it."""
        name = self._names.pop(replica_id, None)
        if name and name not in self._names.values():
            self._locks.pop(name).close()


def _convert(job: Conversion) -> int:
    from stoker.replica import conversion

    replica.configure_log(job.id, job.log_path)
    return conversion.run(job)


def _try_out(job: ConversionTrial) -> int:
    from stoker.replica import trial

    replica.configure_log(job.id, job.log_path)
    return trial.run(job)


def _noted(_signal: int, _frame: FrameType | None) -> None:
    """Does nothing. Python writes to the wake-up descriptor only if a handler is installed."""


class LineReader:
    """Splits a descriptor's input into lines."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Returns the lines that arrived, or None at the end of the input."""
        data = os.read(self._descriptor, 65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def _thread_count() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Threads:"):
            return int(line.split()[1])
    return 1


def main() -> None:
    # Libraries print, so standard output becomes the log. A copy of its descriptor is kept for
    # events.
    events = os.dup(1)
    os.set_inheritable(events, False)
    # The parent process may have left descriptors open. Replicas must not find them.
    os.closerange(3, events)
    os.closerange(events + 1, MOST_DESCRIPTORS)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    priority.share_cores()
    sandbox.die_with_parent()
    sandbox.keep_to_itself()
    sandbox.tell_nobody()
    # Imported objects stay, and searching them for garbage takes a tenth of the time.
    gc.disable()
    # Not at the top, because it imports torch.
    from stoker.replica.cuda_guard import CudaGuard, CudaRefusedError, problem_of_forks

    guard = CudaGuard()
    guard.install()
    try:
        import_libraries()
    except CudaRefusedError:
        log.warning("a preloaded module initialises CUDA", exc_info=True)
        guard.remove()
        import_libraries()
    # Searched once, instead of in every fork.
    places.libraries()
    places.listed()
    gc.enable()
    Host(events, guard, problem_of_forks()).run()


if __name__ == "__main__":
    main()
