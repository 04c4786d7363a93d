"""The gateway's end of an engine host: starts it, has it fork, is notified of exits."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from stoker.wire.protocol import (
    Conversion,
    Convert,
    Exited,
    Fork,
    Forked,
    HostCommand,
    HostEvent,
    HostReady,
    Preload,
    Preloaded,
    ReplicaSpec,
    Signal,
    Trial,
    Try,
)

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(HostEvent).decode
_encode = msgspec.json.Encoder().encode

# A replica is not trusted: it gets no database URL, no keys, nothing but what libraries need.
_KEPT_ENV = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("CUDA_", "NVIDIA_", "OMP_", "PYTHON")
_RESTART_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class EngineHost:
    """Keeps one host process alive. `on_exit(replica_id, status)` is called on the event loop."""

    def __init__(self, log_path: Path, on_exit: Callable[[str, int], None]) -> None:
        self._log_path = log_path
        self._on_exit = on_exit
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
        return "The engine host keeps ending; its log is host.log in the data folder's logs."

    def start(self) -> None:
        """Start the process where it was not started before."""
        if self._task is None:
            self._task = asyncio.create_task(self._keep_running())

    @property
    def started(self) -> bool:
        return self._task is not None

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if process := self._process:
            if process.stdin:
                # The end of its input ends the host; PR_SET_PDEATHSIG ends what it forked.
                process.stdin.close()
            if not self.ready and process.returncode is None:
                # Busy importing, it would not notice for seconds, and has no children yet.
                process.kill()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def fork(self, spec: ReplicaSpec) -> None:
        """Fork a replica. Its end, however soon, is reported through `on_exit`."""
        self._pids[spec.id] = 0
        self._send(Fork(spec))

    def convert(self, job: Conversion) -> None:
        """Convert a model for OpenVINO. Its end is reported through `on_exit`, by the job's id."""
        self._pids[job.id] = 0
        self._send(Convert(job))

    def try_out(self, job: Trial) -> None:
        """Try a converted model. Its end is reported through `on_exit`, by the job's id."""
        self._pids[job.id] = 0
        self._send(Try(job))

    def preload(self, wanted: Preload) -> None:
        """Have an architecture's code imported before the first fork that needs it."""
        if wanted not in self._preloads:
            self._preloads[wanted] = None
            if self.ready:
                self._send(wanted)

    def kill(self, replica_id: str) -> None:
        if replica_id in self._pids:
            self._send(Signal(replica_id, signal.SIGKILL))

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
                log.exception("the engine host could not be run")
            self._ready.clear()
            for replica_id in list(self._pids):
                self._ended(replica_id, -signal.SIGKILL)
            delay = _RESTART_S[min(self._failures, len(_RESTART_S) - 1)]
            self._failures += 1
            log.error("the engine host ended; starting it again", extra={"in_s": delay})
            await asyncio.sleep(delay)

    async def _run_once(self) -> None:
        with self._log_path.open("ab") as host_log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "stoker.replica.host",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=host_log,
                env=_environment(),
                # Out of the terminal's process group: Ctrl-C is the gateway's business.
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
        match event:
            case HostReady():
                _warn_of_threads(event.threads)
                self._failures = 0
                self._ready.set()
                for wanted in self._preloads:
                    self._send(wanted)
            case Preloaded():
                _warn_of_threads(event.threads)
            case Forked():
                self._pids[event.replica_id] = event.pid
            case Exited():
                self._ended(event.replica_id, event.status)

    def _ended(self, replica_id: str, status: int) -> None:
        if self._pids.pop(replica_id, None) is not None:
            self._on_exit(replica_id, status)


def _warn_of_threads(count: int) -> None:
    if count > 1:
        log.warning("the engine host has threads: forks may hang", extra={"threads": count})


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT_ENV or name.startswith(_KEPT_PREFIXES)
    }
    # Threads that wait for one another must not spin: with as many models as cores, or one busy
    # neighbour, spinning made a forward pass six times slower. An operator's own setting wins.
    return (
        {"OMP_WAIT_POLICY": "PASSIVE"}
        | kept
        | {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TOKENIZERS_PARALLELISM": "false",
            # numpy's OpenBLAS would start threads on import; torch sets its own in the replica.
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )
