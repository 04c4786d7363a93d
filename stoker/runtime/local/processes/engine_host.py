"""Gateway side of an engine host: starts it, requests forks and receives exits."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stoker.base.module_command import module_command
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

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(HostEvent).decode
_encode = msgspec.json.Encoder().encode

# A replica is not trusted: it gets no database URL and no keys, only the variables that libraries
# need.
_KEPT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "OMP_", "GOMP_", "PYTHON")
SPINS = {"GOMP_SPINCOUNT": "5000"}
"""Number of times that a torch thread polls the other threads before it sleeps: a quarter of a
millisecond. Measured on two cores with a BERT-base in bfloat16: 36 ms without spinning, 24 ms with
this value, 21 ms with the library's default of 300,000. Next to a process that is always busy: 37,
54 and 320 ms.
"""
_MOST_PRELOADS = 1000
"""Maximum number of preloads. Names come from models' files, and only some hundreds are valid."""
_PING_S = 10.0
"""Interval between heartbeat requests in seconds."""
_SILENCE_S = 120.0
"""Heartbeat timeout in seconds. Importing an architecture takes ten seconds."""
_IMPORTS_S = 300.0
"""Timeout of the host's own imports in seconds."""
OnSkipped = Callable[[Preload, str], None]
"""Receives a preload that the host did not run, and the reason."""

_RESTART_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class EngineHost:
    """Keeps one host process alive. Calls `on_exit(replica_id, status)` on the event loop."""

    def __init__(
        self,
        log_path: Path,
        on_exit: Callable[[str, int], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        on_skipped: OnSkipped = lambda _preload, _why: None,
    ) -> None:
        self._clock = clock
        self._started_at = 0.0
        self._asked_at: float | None = None
        """Time of the unanswered heartbeat request. None if none is pending."""
        self._heard_at = 0.0
        self._log_path = log_path
        self._on_exit = on_exit
        self._on_skipped = on_skipped
        self._on_prepared: Callable[[WorkerReport], None] = lambda _event: None
        self._on_preloaded: Callable[[], None] = lambda: None
        self.cuda_problem = ""
        """Reason that forks of the host cannot use CUDA. Empty if they can."""
        self._skipped: dict[Preload, str] = {}
        """Maps each preload that the host did not run to the reason."""
        self._process: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._pids: dict[str, int] = {}
        self._preloads: dict[Preload, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._failures = 0

    @property
    def ready(self) -> bool:
        return self._ready.is_set()

    @property
    def problem(self) -> str | None:
        if self._failures < 3:
            return None
        return "The engine host keeps exiting. See host.log in the data folder's logs."

    def look(self) -> None:
        """Requests a heartbeat periodically, and kills the process if none arrives in time.

        The host forks and reaps. If it hangs, no replica starts and no exit is reported. All
        replicas end with it, and a new host is started.
        """
        if self._process is None or self._process.returncode is not None:
            return
        now = self._clock()
        if not self.ready:
            self._end_if(now - self._started_at > _IMPORTS_S, "its imports take too long")
        elif self._asked_at is not None:
            self._end_if(now - self._asked_at > _SILENCE_S, "it sends no heartbeat")
        elif now - self._heard_at >= _PING_S:
            self._asked_at = now
            self._send(Ping())

    def _end_if(self, is_due: bool, why: str) -> None:
        if is_due and self._process:
            log.error("stopping the engine host", extra={"why": why})
            self._asked_at = None
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def start(self) -> None:
        """Starts the process if it was not started before."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_running())

    def listen(
        self, on_prepared: Callable[[WorkerReport], None], on_preloaded: Callable[[], None]
    ) -> None:
        """Passes on the reports of workers, and of imported code."""
        self._on_prepared, self._on_preloaded = on_prepared, on_preloaded

    @property
    def started(self) -> bool:
        return self._task is not None

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if process := self._process:
            if process.stdin:
                # Closing its input ends the host. PR_SET_PDEATHSIG ends the processes that it
                # forked.
                process.stdin.close()
            if not self.ready and process.returncode is None:
                # A host that is busy importing would not notice for seconds. It has no children
                # yet.
                process.kill()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def fork(self, spec: ReplicaSpec) -> None:
        """Forks a replica. Its end, however early, is reported through `on_exit`."""
        self._pids[spec.id] = 0
        self._send(Fork(spec))

    def prepare(self, worker: WorkerSpec) -> None:
        """Forks a prepared worker. Its end is reported through `on_exit` with the worker's id."""
        self._pids[worker.id] = 0
        self._send(Prepare(worker))

    def assign(self, worker_id: str, spec: ReplicaSpec) -> None:
        """Starts a replica in a prepared worker, or forks it if the worker has ended."""
        self._pids[spec.id] = 0
        self._send(Fork(spec, worker_id))

    def convert(self, job: Conversion) -> None:
        """Converts a model for OpenVINO. Its end is reported through `on_exit` with the job's
        id.
        """
        self._pids[job.id] = 0
        self._send(Convert(job))

    def try_out(self, job: ConversionTrial) -> None:
        """Tests a converted model. Its end is reported through `on_exit` with the job's id."""
        self._pids[job.id] = 0
        self._send(Try(job))

    def preload(self, wanted: Preload) -> None:
        """Has the host import an architecture's code before the first fork that needs it."""
        if why := self._skipped.get(wanted):
            self._on_skipped(wanted, why)
        if wanted not in self._preloads and len(self._preloads) < _MOST_PRELOADS:
            self._preloads[wanted] = None
            if self.ready:
                self._send(wanted)

    def kill(self, replica_id: str) -> None:
        if replica_id in self._pids:
            self._send(Signal(replica_id, signal.SIGKILL))

    @property
    def own_pid(self) -> int:
        """Process id of the host that forks. 0 means that it does not run."""
        return self._process.pid if self._process else 0

    def pid(self, replica_id: str) -> int | None:
        return self._pids.get(replica_id) or None

    def _send(self, command: HostCommand) -> None:
        if self._process and self._process.stdin and not self._process.stdin.is_closing():
            self._process.stdin.write(_encode(command) + b"\n")

    async def _keep_running(self) -> None:
        while True:
            try:
                await self._run_once()
            except Exception:
                log.exception("engine host could not be started")
            self._ready.clear()
            for replica_id in list(self._pids):
                self._ended(replica_id, -signal.SIGKILL)
            delay = _RESTART_S[min(self._failures, len(_RESTART_S) - 1)]
            self._failures += 1
            log.error("engine host exited; restarting it", extra={"in_s": delay})
            await asyncio.sleep(delay)

    async def _run_once(self) -> None:
        self._started_at, self._asked_at = self._clock(), None
        with self._log_path.open("ab") as host_log:
            self._process = await asyncio.create_subprocess_exec(
                *module_command("stoker.replica.host"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=host_log,
                env=environment(),
                # Keep it out of the terminal's process group: the gateway handles Ctrl-C.
                start_new_session=True,
            )
        output = self._process.stdout
        if output is None:
            return
        while line := await output.readline():
            self._handle(_decode(line))
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _handle(self, event: HostEvent) -> None:
        self._heard_at, self._asked_at = self._clock(), None
        match event:
            case HostReady():
                _warn_of_threads(event.threads)
                if event.cuda_problem:
                    log.warning(
                        "forks cannot use CUDA: replicas on GPUs start as fresh processes",
                        extra={"why": event.cuda_problem},
                    )
                self._failures = 0
                self.cuda_problem = event.cuda_problem
                self._ready.set()
                for preload in self._preloads:
                    self._send(preload)
            case Preloaded():
                _warn_of_threads(event.threads)
                if event.cuda_problem:
                    log.warning(
                        "code is not preloaded, because forks could not use CUDA after it",
                        extra={"preload": event.name, "why": event.cuda_problem},
                    )
                    self._skip(event)
                if event.is_new:
                    _report(self._on_preloaded)
            case Pong():
                # Any event is a sign of life.
                pass
            case Forked():
                self._pids[event.replica_id] = event.pid
                self._pids.pop(event.worker, None)
            case WorkerReport():
                _report(lambda: self._on_prepared(event))
            case Exited():
                self._ended(event.replica_id, event.status)

    def _skip(self, event: Preloaded) -> None:
        """Reports a skipped preload once, also if the host is restarted and skips it again."""
        for preload in [preload for preload in self._preloads if preload.name == event.name]:
            if preload not in self._skipped:
                self._skipped[preload] = event.cuda_problem
                self._on_skipped(preload, event.cuda_problem)

    def _ended(self, replica_id: str, status: int) -> None:
        if self._pids.pop(replica_id, None) is not None:
            _report(lambda: self._on_exit(replica_id, status))


def _report(call: Callable[[], None]) -> None:
    """Reports an event. An error raised from here would end the host and all replicas with it."""
    try:
        call()
    except Exception:
        log.exception("event of the engine host could not be handled")


def _warn_of_threads(count: int) -> None:
    if count > 1:
        log.warning("engine host has threads: forks may hang", extra={"threads": count})


def environment() -> dict[str, str]:
    """Returns the environment variables of the engine host and of all replicas."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENV or name.startswith(_KEPT_PREFIXES)
    }
    # An operator's own setting takes precedence over `SPINS`.
    return (
        ({} if "OMP_WAIT_POLICY" in inherited else SPINS)
        | inherited
        | {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            # NNCF would also report its use, and has no other switch.
            "NNCF_CI": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TOKENIZERS_PARALLELISM": "false",
            # numpy's OpenBLAS would start threads on import; torch sets its own in the replica.
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )
