"""The processes that convert models for OpenVINO and try what was converted, one at a time."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.ids import Prefix, new_id
from stoker.media.media_limits import MediaLimits
from stoker.runtime.interface import DeploymentSpec
from stoker.runtime.local.engine_host import EngineHost
from stoker.runtime.local.trials import Trials
from stoker.runtime.pool.exit_status import how_it_ended, is_crash
from stoker.runtime.pool.launcher import Limits
from stoker.wire.protocol import Conversion, Execution, Trial, WeightFormat, sign_of

log = logging.getLogger(__name__)

_THREADS = 1
"""Of a conversion. A trial has as many as it will serve with."""
_WEIGHTS_HELD = 4
"""How many times the weights lie in memory, at worst, while a model is converted."""
_DEQUANTIZED = 8
"""How much larger the weights of a GGUF file are in memory: four bits become 32."""
_CONVERSION_S = 3600.0
"""Longest time that a conversion may take."""

OnRejected = Callable[[str, Execution, str], None]
"""Is notified of the deployment whose trial was not passed, of what was tried, and why."""


@dataclass(eq=False)
class _Job:
    """The process at work."""

    id: str
    folder: Path
    """Of the conversion that is made or tried."""
    deployment_id: str
    last_progress_at: float
    execution: Execution | None
    """What is tried; None: it is a conversion."""
    sign_of_life: int = 0
    """When a trial last gave one, nanoseconds; 0: it has not begun to run the model."""
    killed_because: str = ""


class ConversionJobs:
    def __init__(
        self,
        host: EngineHost,
        trials: Trials,
        *,
        log_path: Path,
        media: MediaLimits,
        threads: int,
        limits: Limits,
        on_rejected: OnRejected,
        clock: Callable[[], float],
    ) -> None:
        """
        Args:
            threads: of a trial.
        """
        self._host = host
        self._trials = trials
        self._log_path = log_path
        self._media = media
        self._threads = threads
        self._limits = limits
        self._on_rejected = on_rejected
        self._clock = clock
        self._job: _Job | None = None
        self._given_up: dict[Path, str] = {}

    @property
    def is_busy(self) -> bool:
        return self._job is not None

    def given_up(self, path: Path) -> str | None:
        """How a conversion's folder or a trial's verdict came to nothing: not again by this server.

        Empty where that was not of the process' own doing, and None for one that may be tried.
        """
        return self._given_up.get(path)

    def convert(
        self,
        spec: DeploymentSpec,
        model_dir: Path,
        folder: Path,
        weight_format: WeightFormat | None,
    ) -> None:
        """Begin a conversion into the folder, where there is memory and no other job."""
        if self._job or folder in self._given_up or not _fits(model_dir):
            return
        shutil.rmtree(folder, ignore_errors=True)
        job = self._begin(folder, spec)
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
                weight_format=weight_format,
            )
        )

    def try_out(self, spec: DeploymentSpec, model_dir: Path, execution: Execution) -> None:
        """Begin a trial, where there is memory and no other job."""
        if self._job or not _fits(model_dir):
            return
        job = self._begin(Path(execution.folder), spec, execution)
        log.info(
            "trying a converted model",
            extra={"deployment": spec.id, "precision": execution.precision},
        )
        self._host.try_out(
            Trial(
                id=job.id,
                pipeline=spec.pipeline,
                model_dir=str(model_dir),
                execution=execution,
                verdict_path=str(self._trials.path(execution)),
                log_path=str(self._log_path),
                threads=self._threads,
                limits=self._media,
            )
        )

    def forget(self, folder: Path) -> None:
        """The folder, in which conversions of one source lie, is about to be removed."""
        if self._job and self._job.folder.parent == folder:
            self._host.kill(self._job.id)
        self._given_up = {
            path: why for path, why in self._given_up.items() if folder not in path.parents
        }

    def kill_hung(self) -> None:
        job = self._job
        if job is None or job.killed_because:
            return
        now = self._clock()
        limit_s = _CONVERSION_S
        if job.execution:
            sign_of_life = _touched(self._sign_path(job.execution))
            if sign_of_life != job.sign_of_life:
                job.sign_of_life, job.last_progress_at = sign_of_life, now
            limits = self._limits
            limit_s = limits.stall_timeout_s if job.sign_of_life else limits.load_timeout_s
        if now - job.last_progress_at > limit_s:
            job.killed_because = f"It hung: there was no progress for {limit_s:g} s."
            self._host.kill(job.id)

    def exited(self, job_id: str, status: int) -> None:
        """A process of the host has ended; nothing, where it was none of these."""
        job = self._job
        if job is None or job.id != job_id:
            return
        self._job = None
        if job.execution:
            self._tried(job, job.execution, status)
        elif status:
            log.warning("a conversion ended early", extra={"status": status})
            shutil.rmtree(job.folder, ignore_errors=True)
            self._given_up[job.folder] = job.killed_because or _why(status)

    def _tried(self, job: _Job, execution: Execution, status: int) -> None:
        self._sign_path(execution).unlink(missing_ok=True)
        if why := job.killed_because or _why(status):
            self._trials.fail(execution, why)
        verdict = self._trials.verdict(execution)
        if verdict is None:
            self._given_up[self._trials.path(execution)] = ""
        elif not verdict.passed:
            self._on_rejected(job.deployment_id, execution, verdict.reason)

    def _begin(
        self, folder: Path, spec: DeploymentSpec, execution: Execution | None = None
    ) -> _Job:
        self._job = _Job(new_id(Prefix.REPLICA), folder, spec.id, self._clock(), execution)
        return self._job

    def _sign_path(self, execution: Execution) -> Path:
        return Path(sign_of(str(self._trials.path(execution))))


def _why(status: int) -> str:
    """What an early end says of a model: nothing where it was somebody else's doing, such as the
    kernel's for want of memory.
    """
    return f"It ended by {how_it_ended(status)}." if is_crash(status) else ""


def _touched(path: Path) -> int:
    """When, in nanoseconds of whatever epoch; 0: never."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _fits(model_dir: Path) -> bool:
    """Whether there is memory for a conversion now."""
    weights = sum(
        path.stat().st_size * times
        for suffix, times in (("safetensors", 1), ("gguf", _DEQUANTIZED))
        for path in model_dir.glob(f"*.{suffix}")
    )
    return weights * _WEIGHTS_HELD < psutil.virtual_memory().available
