"""Processes that convert models for OpenVINO and test the conversions, one at a time."""

import contextlib
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.base.errors import CapacityError
from stoker.base.ids import Prefix, new_id
from stoker.base.media_limits import MediaLimits
from stoker.runtime.amounts import in_words
from stoker.runtime.local.conversions.trials import TrialVerdicts
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.claims import Need
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.machine import computed, own_bytes
from stoker.runtime.local.processes.memory_watchdog import ALWAYS_TIMES, AT_ONCE_BYTES
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.pool.exit_status import how_it_ended, is_crash
from stoker.runtime.pool.launcher import Limits
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.conversions import Conversion, ConversionTrial, WeightFormat, sign_of
from stoker.wire.protocol import Cell, Execution

log = logging.getLogger(__name__)

_THREADS = 1
"""Threads of a conversion. A trial has as many threads as a replica will serve with."""
_WEIGHTS_HELD = 4
"""Copies of the weights in memory, at worst, while a model is converted."""
_ROUNDED_HELD = 2
"""Additional copies of the weights while they are rounded: NNCF keeps its measurements."""
_DEQUANTIZED = 8
"""Factor by which the weights of a GGUF file grow in memory: four bits become 32."""
_WORKING_BYTES = 128 << 20
"""Additional memory of a job in bytes."""
_TOTAL_S = 3600.0
"""Maximum duration of a conversion or a trial in seconds."""
_PUT_OFF_S = 60.0
"""Pause in seconds before the next job after a job that was evicted."""

OnGivenUp = Callable[[str, str], None]
"""Receives the deployment with a model that could not be converted, and the reason."""
OnRejected = Callable[[str, Execution, str], None]
"""Receives the deployment with a failed trial, the tested execution and the reason."""


@dataclass(eq=False)
class _Job:
    """The running process."""

    id: str
    cell: Cell
    folder: Path
    """Folder of the conversion that is made or tested."""
    deployment_id: str
    begun_at: float
    need: int
    """Claimed memory in bytes."""
    execution: Execution | None
    """Execution under test. None means that the job is a conversion."""
    sign_of_life: int = 0
    """Last sign of life. For a trial, a time in nanoseconds; 0 means that it has not begun to run
    the model. For a conversion, its computing time in ticks.
    """
    killed_because: str = ""
    inherited: int | None = None
    """Bytes of memory that the process inherited from the fork."""
    is_put_off: bool = False
    """True if the job was evicted for others and may start again."""

    def __post_init__(self) -> None:
        self.last_progress_at = self.begun_at


class ConversionJobs:
    def __init__(
        self,
        host: EngineHost,
        cells: Sandboxes,
        trials: TrialVerdicts,
        *,
        log_path: Path,
        media: MediaLimits,
        threads: int,
        limits: Limits,
        memory: MemoryAllocator,
        on_given_up: OnGivenUp,
        on_rejected: OnRejected,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            threads: number of threads of a trial.
        """
        self._host = host
        self._cells = cells
        self._trials = trials
        self._log_path = log_path
        self._media = media
        self._threads = threads
        self._limits = limits
        self._memory = memory
        self._on_given_up = on_given_up
        self._on_rejected = on_rejected
        self._not_before = 0.0
        self._clock = clock
        self._job: _Job | None = None
        self._given_up: dict[Path, str] = {}
        self._begun: dict[str, int] = {}
        """Maps an account to the number of the last job that was started for it."""

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    def last_turn(self, account_id: str) -> int:
        """Returns the number of the account's last job. A lower number means a longer wait."""
        return self._begun.get(account_id, 0)

    def given_up(self, path: Path) -> str | None:
        """Returns why this server does not repeat a failed conversion (its folder) or trial (its
        verdict).

        Empty if the process was not at fault. None if it may be tried.
        """
        return self._given_up.get(path)

    def convert(
        self,
        spec: DeploymentSpec,
        model_dir: Path,
        folder: Path,
        weight_format: WeightFormat | None,
        *,
        in_int8: bool = False,
    ) -> None:
        """Starts a conversion into the folder if memory is free and no other job runs."""
        if folder in self._given_up:
            return
        rounding = _ROUNDED_HELD if in_int8 or weight_format else 0
        if not (job := self._begin(folder, spec, model_dir, more=rounding)):
            return
        shutil.rmtree(folder, ignore_errors=True)
        log.info("converting a model for OpenVINO", extra={"deployment": spec.id})
        self._host.convert(
            Conversion(
                id=job.id,
                pipeline=spec.pipeline,
                model_dir=str(model_dir),
                folder=str(folder),
                log_path=str(self._log_path),
                threads=_THREADS,
                limits=self._media,
                cell=job.cell,
                weight_format=weight_format,
                in_int8=in_int8,
            )
        )

    def try_out(self, spec: DeploymentSpec, model_dir: Path, execution: Execution) -> None:
        """Starts a trial if memory is free and no other job runs."""
        if not (job := self._begin(Path(execution.folder), spec, model_dir, execution)):
            return
        log.info(
            "testing a converted model",
            extra={"deployment": spec.id, "precision": execution.precision},
        )
        self._host.try_out(
            ConversionTrial(
                id=job.id,
                pipeline=spec.pipeline,
                model_dir=str(model_dir),
                execution=execution,
                verdict_path=str(self._trials.path(execution)),
                log_path=str(self._log_path),
                threads=self._threads,
                limits=self._media,
                cell=job.cell,
            )
        )

    def forget(self, folder: Path) -> None:
        """Stops the job in a folder with the conversions of one source. The folder is about to be
        removed.
        """
        if self._job and self._job.folder.parent == folder:
            self._host.kill(self._job.id)
        self._given_up = {
            path: why for path, why in self._given_up.items() if folder not in path.parents
        }

    def evictable(self) -> list[EvictionCandidate]:
        """Returns the running job as a cold model of its account that was never used."""
        job = self._job
        return [EvictionCandidate(job.id, is_warm=False, since=-math.inf)] if job else []

    def evict(self, job_id: str) -> None:
        """Ends the job to free its memory for others. It starts again when memory is available."""
        if self._job and self._job.id == job_id:
            self._job.is_put_off = True
            self._not_before = self._clock() + _PUT_OFF_S
            self._host.kill(job_id)

    def kill_hung(self) -> None:
        """Kills a job that makes no progress, exceeds the total time or uses far too much
        memory.
        """
        job = self._job
        if job is None or job.killed_because or job.is_put_off:
            return
        job.killed_because = self._why_hung(job) or self._why_too_large(job)
        if job.killed_because:
            self._host.kill(job.id)

    def _why_hung(self, job: _Job) -> str:
        now, limits = self._clock(), self._limits
        limit_s = limits.stall_timeout_s
        if job.execution:
            sign_of_life = _touched(self._sign_path(job.execution))
            if not sign_of_life:
                # The trial compiles and gives no sign of life meanwhile.
                limit_s = limits.load_timeout_s
        else:
            # The libraries that do the work report nothing, but they compute.
            sign_of_life = computed(self._host.pid(job.id) or 0)
        if sign_of_life != job.sign_of_life:
            job.sign_of_life, job.last_progress_at = sign_of_life, now
        if now - job.last_progress_at > limit_s:
            return f"It hung: there was no progress for {limit_s:g} s."
        if now - job.begun_at > _TOTAL_S:
            return f"It did not finish within {_TOTAL_S:g} s."
        return ""

    def _why_too_large(self, job: _Job) -> str:
        pid = self._host.pid(job.id)
        process_bytes = own_bytes(pid) if pid else None
        if process_bytes is None:
            return ""
        if job.inherited is None:
            job.inherited = min(process_bytes, own_bytes(self._host.own_pid) or 0)
        used = max(0, process_bytes - job.inherited)
        most = max(job.need * ALWAYS_TIMES + AT_ONCE_BYTES, self._memory.main.room_of(job.id))
        if used > most:
            return (
                f"It held {in_words(used)} of memory, with a claim of {in_words(job.need)} "
                f"and a limit of {in_words(most)}."
            )
        self._memory.resize(job.id, max(job.need, used))
        return ""

    def exited(self, job_id: str, status: int) -> None:
        """Handles the end of one of the host's processes. Ignores processes that are not jobs."""
        job = self._job
        if job is None or job.id != job_id:
            return
        self._job = None
        self._cells.remove(job.id)
        self._memory.release(job.id)
        if job.is_put_off:
            log.info("conversion postponed", extra={"deployment": job.deployment_id})
        elif job.execution:
            self._tried(job, job.execution, status)
        elif status:
            log.warning("conversion was interrupted", extra={"status": status})
            shutil.rmtree(job.folder, ignore_errors=True)
            self._given_up[job.folder] = why = job.killed_because or _why(status)
            if why:
                self._on_given_up(job.deployment_id, why)

    def _tried(self, job: _Job, execution: Execution, status: int) -> None:
        with contextlib.suppress(OSError):
            self._sign_path(execution).unlink(missing_ok=True)
        if why := job.killed_because or _why(status):
            self._trials.fail(execution, why)
        verdict = self._trials.verdict(execution)
        if verdict is None:
            self._given_up[self._trials.path(execution)] = ""
        elif not verdict.passed:
            self._on_rejected(job.deployment_id, execution, verdict.reason)

    def _begin(
        self,
        folder: Path,
        spec: DeploymentSpec,
        model_dir: Path,
        execution: Execution | None = None,
        *,
        more: int = 0,
    ) -> _Job | None:
        """Starts a job. Returns None if another job runs or no memory is free now.

        Args:
            more: additional copies of the weights in memory, on top of those of every job.
        """
        if self._job or self._clock() < self._not_before:
            return None
        need = _needed(model_dir, _WEIGHTS_HELD + more)
        name = new_id(Prefix.REPLICA)
        try:
            # Not in the deployment's name: memory reserved for a hot deployment is kept for its
            # replicas.
            has_memory = need < psutil.virtual_memory().available and self._memory.take(
                name, Need(name, need, spec.account_id)
            )
        except CapacityError:
            return None
        if has_memory:
            try:
                cell = self._cells.make(name)
            except OSError:
                self._memory.release(name)
                self._not_before = self._clock() + _PUT_OFF_S
                log.warning("conversion has no folder; it starts later", exc_info=True)
                return None
            self._job = _Job(name, cell, folder, spec.id, self._clock(), need, execution)
            self._begun[spec.account_id] = max(self._begun.values(), default=0) + 1
        return self._job

    def _sign_path(self, execution: Execution) -> Path:
        return Path(sign_of(str(self._trials.path(execution))))


def _why(status: int) -> str:
    """Returns the reason for an early end. Empty if the process was not at fault, such as a kill by
    the kernel for lack of memory.
    """
    return f"It ended with {how_it_ended(status)}." if is_crash(status) else ""


def _touched(path: Path) -> int:
    """Returns the time of the last change in nanoseconds, in the epoch of the file system. 0 means
    never.
    """
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _needed(model_dir: Path, held: int) -> int:
    """Returns the bytes of memory that a job may use, with `held` copies of the weights."""
    weights = sum(
        path.stat().st_size * times
        for suffix, times in (("safetensors", 1), ("gguf", _DEQUANTIZED))
        for path in model_dir.glob(f"*.{suffix}")
    )
    return weights * held + _WORKING_BYTES
