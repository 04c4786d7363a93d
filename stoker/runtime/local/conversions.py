"""Which models are converted for OpenVINO and tried: in the background, one after another.

A conversion is made of files and libraries alone. How it may be run here is another question, which
a trial answers for each way (`Trials`): the first that passed is taken, and torch where none did.
"""

import hashlib
import importlib.metadata
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from stoker.engines.catalogue import is_conversion, may_convert
from stoker.ids import Prefix, new_id
from stoker.media.media_limits import MediaLimits
from stoker.runtime.interface import DeploymentSpec
from stoker.runtime.local.engine_host import EngineHost
from stoker.runtime.local.trials import Trials
from stoker.runtime.pool.exit_status import how_it_ended, is_crash
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Limits
from stoker.tasks.registry import GENERATING
from stoker.wire.protocol import (
    VERDICT,
    Conversion,
    Execution,
    Precision,
    Trial,
    WeightFormat,
    sign_of,
)

log = logging.getLogger(__name__)

_LIBRARIES = ("openvino", "torch", "transformers")
_FORMAT = 2
"""Of what a conversion's folder holds."""
_THREADS = 1
"""Of a conversion. A trial has those that it will serve with."""
_WEIGHTS_HELD = 4
"""How many times the weights lie in memory, at worst, while a model is converted."""
_DEQUANTIZED = 8
"""How much larger the weights of a GGUF file are in memory: four bits become 32."""
_CONVERSION_S = 3600.0
"""Longest time that a conversion may take."""
_WORTH = 1.05
"""How much faster than torch it has to be, where nobody asked for OpenVINO."""

_PRECISIONS: Mapping[str, Sequence[Precision]] = {
    "auto": ("bf16", "f32"),
    "bfloat16": ("bf16",),
    "float32": ("f32",),
}
"""A deployment's `dtype` → what a language model may be computed in, the preferred one first."""
_NAMES: Mapping[Precision, str] = {"bf16": "bfloat16", "f32": "float32"}

OnQuarantined = Callable[[str, str], None]
"""Hears that a deployment goes without something on OpenVINO, and why."""


@dataclass(eq=False)
class _Job:
    """A process at work."""

    id: str
    folder: Path
    began: float
    moved: float
    execution: Execution | None = None
    """That is tried; none: it is a conversion."""
    deployment_id: str = ""
    sign: int = 0
    late: str = ""
    """Why it is killed."""


@dataclass
class Conversions:
    """Converted models, kept with the source and the pipeline that they were made of.

    A model is converted when its replica has spent `after_s` in forward passes: what is hardly used
    is not worth the half minute of a core. `engine="openvino"` asks for it at once, and so does a
    format of its weights.
    """

    folder: Path
    logs: Path
    host: EngineHost
    after_s: float
    media: MediaLimits
    threads: int
    limits: Limits
    on_quarantined: OnQuarantined
    clock: Callable[[], float] = time.monotonic
    _job: _Job | None = field(default=None, init=False)
    _given_up: dict[Path, str] = field(default_factory=dict[Path, str], init=False)
    """Conversions and trials that ended without a verdict → how, if it was of their own doing: not
    again by this server.
    """

    def __post_init__(self) -> None:
        self._trials = Trials(self.threads)
        self._versions = [importlib.metadata.version(name) for name in _LIBRARIES]

    def place(self, spec: DeploymentSpec, model_dir: Path) -> Path:
        """Where the conversion of a model is kept. Other files, sizes or times: another place."""
        files = sorted((path.name, path.stat()) for path in model_dir.iterdir())
        made_of = [
            *(spec.pipeline, *self._versions, f"format {_FORMAT}"),
            *filter(None, [_weight_format(spec)]),
            *(f"{name} {found.st_size} {found.st_mtime_ns}" for name, found in files),
        ]
        return self._of_source(spec.source) / _digest("\n".join(made_of))

    def forget(self, source: str) -> None:
        """Remove what was made of a source that no deployment uses any more."""
        folder = self._of_source(source)
        if self._job and self._job.folder.parent == folder:
            self.host.kill(self._job.id)
        self._given_up = {
            path: why for path, why in self._given_up.items() if folder not in path.parents
        }
        shutil.rmtree(folder, ignore_errors=True)

    # --- what replicas are to run on ---

    def chosen(self, spec: DeploymentSpec, folder: Path) -> Execution | None:
        """What a replica that starts now should run on; none: torch."""
        if not may_convert(spec.engine) or not _exportable(folder):
            return None
        for execution in self._executions(spec, folder):
            verdict = self._trials.verdict(execution)
            if verdict is None:
                return None
            if verdict.passed:
                return execution if self._is_worth_it(spec, verdict.speedup) else None
        return None

    def problem(self, spec: DeploymentSpec, folder: Path) -> str | None:
        """Why a deployment that asks for OpenVINO cannot have it, and what to set; none: it can,
        or nobody knows yet.
        """
        if not is_conversion(spec.engine):
            return None
        if why := self._why_not_converted(folder):
            return f"It cannot be converted for OpenVINO. {why} {_OTHER_ENGINE}."
        if not _exportable(folder):
            return None
        found: list[str] = []
        for execution in self._executions(spec, folder):
            why = self._why_not(execution)
            if why is None:
                return None
            found.append(f"In {_NAMES[execution.precision]}: {why}")
        other = f"{_OTHER_ENGINE}, or 'dtype' to 'auto'" if len(found) == 1 else _OTHER_ENGINE
        other = other if spec.pipeline in GENERATING else _OTHER_ENGINE
        return f"OpenVINO cannot run it on this machine. {' '.join(found)} {other}."

    def offer(
        self, replica: ReplicaHandle, spec: DeploymentSpec, model_dir: Path, folder: Path
    ) -> None:
        """Give a ready replica the best that has passed its trial of a `folder` that `place` named
        when it was started, or have it made and tried where that is worth it.
        """
        if not replica.convertible or not may_convert(spec.engine):
            return
        if self._job is None and not (folder / VERDICT).exists():
            self._convert(replica, spec, model_dir, folder)
        if not _exportable(folder):
            # Nothing to ask about again.
            replica.convertible = not self._why_not_converted(folder)
            return
        for execution in self._executions(spec, folder):
            if self._why_not(execution):
                continue
            verdict = self._trials.verdict(execution)
            if verdict is None and self._trials.path(execution) in self._given_up:
                replica.convertible = False
            elif verdict is None:
                self._try(spec, model_dir, execution)
            elif self._is_worth_it(spec, verdict.speedup):
                replica.adopt(execution)
            else:
                replica.convertible = False
            return
        replica.convertible = False

    def quarantine(self, execution: Execution, reason: str) -> str:
        """Have later replicas go without it. Returns that in words."""
        self._trials.fail(execution, reason)
        return (
            f"{reason} OpenVINO in {_NAMES[execution.precision]} is set aside on this machine: the "
            "next start goes without it."
        )

    def _executions(self, spec: DeploymentSpec, folder: Path) -> list[Execution]:
        """All that it may be run on, the preferred one first."""
        generates = spec.pipeline in GENERATING
        precisions = _PRECISIONS.get(spec.dtype, ()) if generates else ("f32",)
        return [self._trials.execution(folder, one) for one in precisions]

    def _why_not(self, execution: Execution) -> str | None:
        """None: it has passed, or was not tried yet."""
        verdict = self._trials.verdict(execution)
        return verdict.reason if verdict and not verdict.passed else None

    def _why_not_converted(self, folder: Path) -> str | None:
        """None: it is, or was not tried yet."""
        if why := self._given_up.get(folder):
            return why
        found = _made(folder)
        return found["reason"] if found and not found["forms"] else None

    def _is_worth_it(self, spec: DeploymentSpec, speedup: float | None) -> bool:
        return _is_asked_for(spec) or speedup is None or speedup >= _WORTH

    # --- processes ---

    def _convert(
        self, replica: ReplicaHandle, spec: DeploymentSpec, model_dir: Path, folder: Path
    ) -> None:
        is_worth_it = _is_asked_for(spec) or replica.vitals.busy_s >= self.after_s
        if folder in self._given_up or not is_worth_it or not _fits(model_dir):
            return
        shutil.rmtree(folder, ignore_errors=True)
        job = self._begin(folder, spec)
        log.info("converting a model for OpenVINO", extra={"deployment": spec.id})
        self.host.convert(
            Conversion(
                id=job.id,
                pipeline=spec.pipeline,
                model_dir=str(model_dir),
                folder=str(folder),
                log_path=str(self.logs / "conversions.log"),
                threads=_THREADS,
                limits=self.media,
                weight_format=_weight_format(spec),
            )
        )

    def _try(self, spec: DeploymentSpec, model_dir: Path, execution: Execution) -> None:
        if self._job or not _fits(model_dir):
            return
        job = self._begin(Path(execution.folder), spec, execution)
        log.info(
            "trying a converted model",
            extra={"deployment": spec.id, "precision": execution.precision},
        )
        self.host.try_out(
            Trial(
                id=job.id,
                pipeline=spec.pipeline,
                model_dir=str(model_dir),
                execution=execution,
                verdict_path=str(self._trials.path(execution)),
                log_path=str(self.logs / "conversions.log"),
                threads=self.threads,
                limits=self.media,
            )
        )

    def _begin(
        self, folder: Path, spec: DeploymentSpec, execution: Execution | None = None
    ) -> _Job:
        now = self.clock()
        self._job = _Job(new_id(Prefix.REPLICA), folder, now, now, execution, spec.id)
        return self._job

    def kill_hung(self) -> None:
        """End what hangs."""
        job = self._job
        if job is None or job.late:
            return
        now = self.clock()
        limit_s = _CONVERSION_S
        if job.execution:
            sign = _touched(self._sign(job.execution))
            if sign != job.sign:
                job.sign, job.moved = sign, now
            limit_s = self.limits.stall_timeout_s if job.sign else self.limits.load_timeout_s
        if now - job.moved > limit_s:
            job.late = f"It hung: there was no progress for {limit_s:g} s."
            self.host.kill(job.id)

    def exited(self, job_id: str, status: int) -> None:
        job = self._job
        if job is None or job.id != job_id:
            return
        self._job = None
        if job.execution:
            self._tried(job, job.execution, status)
        elif status:
            log.warning("a conversion ended early", extra={"status": status})
            shutil.rmtree(job.folder, ignore_errors=True)
            self._given_up[job.folder] = job.late or _why(status)

    def _tried(self, job: _Job, execution: Execution, status: int) -> None:
        self._sign(execution).unlink(missing_ok=True)
        if why := job.late or _why(status):
            self._trials.fail(execution, why)
        verdict = self._trials.verdict(execution)
        if verdict is None:
            self._given_up[self._trials.path(execution)] = ""
        elif not verdict.passed:
            self.on_quarantined(
                job.deployment_id,
                f"OpenVINO in {_NAMES[execution.precision]} is not used on this machine. "
                f"{verdict.reason}",
            )

    def _sign(self, execution: Execution) -> Path:
        return Path(sign_of(str(self._trials.path(execution))))

    def _of_source(self, source: str) -> Path:
        return self.folder / _digest(source)


_OTHER_ENGINE = "Set 'engine' to 'auto' or 'torch'"


def _is_asked_for(spec: DeploymentSpec) -> bool:
    """And not only good to have, where it is faster."""
    return is_conversion(spec.engine) or _weight_format(spec) is not None


def _weight_format(spec: DeploymentSpec) -> WeightFormat | None:
    return spec.config.get("weight_format")


def _why(status: int) -> str:
    """What an early end tells of a model: nothing where it was somebody else's doing, such as the
    kernel's for want of memory.
    """
    return f"It ended by {how_it_ended(status)}." if is_crash(status) else ""


def _made(folder: Path) -> dict[str, Any] | None:
    """The verdict of a conversion: `forms`, or the `reason` that there are none."""
    try:
        return json.loads((folder / VERDICT).read_bytes())
    except OSError:
        return None


def _exportable(folder: Path) -> bool:
    return bool((_made(folder) or {}).get("forms"))


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


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
