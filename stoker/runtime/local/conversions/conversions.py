"""Decides which models are converted for OpenVINO, and whether replicas run on a conversion or
torch.

A conversion depends only on files and libraries. A trial (`TrialVerdicts`) finds out for each
execution whether it runs on this machine. The first execution that passed is used, and torch if
none did.
"""

import hashlib
import importlib.metadata
import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.base.media_limits import MediaLimits
from stoker.models.engines.catalogue import is_conversion, may_convert
from stoker.models.engines.record import AUTO, INT8
from stoker.models.tasks.registry import GENERATING
from stoker.runtime.local.conversions.conversion_jobs import ConversionJobs
from stoker.runtime.local.conversions.trials import TrialVerdicts, read_bounded
from stoker.runtime.local.memory.candidates import EvictionCandidate
from stoker.runtime.local.memory.memory import MemoryAllocator
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Limits
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.conversions import VERDICT, WeightFormat
from stoker.wire.protocol import Execution, Precision

_LIBRARIES = ("openvino", "torch", "transformers")
_FORMAT = 4
"""Format version of a conversion's folder."""
_WORTH = 1.05
"""Minimum speedup over torch if OpenVINO was not requested."""

_ROUNDING = "nncf"
"""The library that rounds weights to fewer bits."""

_PRECISIONS: Mapping[str, Sequence[Precision]] = {
    "bfloat16": ("bf16",),
    "float32": ("f32",),
    INT8: ("i8",),
}
"""Maps a deployment's `dtype` to the precisions that its model may be computed in."""
_OF_SINGLE: Sequence[Precision] = ("f32",)
_OF_HALF: Sequence[Precision] = ("bf16", "f32")
"""Precisions if `dtype` is `auto`, by the stored weights, the preferred one first."""
_NAMES: Mapping[Precision, str] = {"bf16": "bfloat16", "f32": "float32", "i8": INT8}

OnQuarantined = Callable[[str, str], None]
"""Receives a deployment that does not use a form of OpenVINO, and the reason."""


@dataclass
class Conversions:
    """Converted models, stored by the source and the pipeline that they were made from.

    A model is converted after its replica has spent `after_s` in forward passes: a rarely used
    model is not worth half a minute of a core. `engine="openvino"` or a weight format requests the
    conversion at once.
    """

    folder: Path
    log_path: Path
    host: EngineHost
    cells: Sandboxes
    after_s: float
    media: MediaLimits
    threads: int
    limits: Limits
    memory: MemoryAllocator
    on_quarantined: OnQuarantined
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._trials = TrialVerdicts(self.threads)
        self._jobs = ConversionJobs(
            self.host,
            self.cells,
            self._trials,
            log_path=self.log_path,
            media=self.media,
            threads=self.threads,
            limits=self.limits,
            memory=self.memory,
            on_given_up=self._given_up,
            on_rejected=self._rejected,
            clock=self.clock,
        )
        self._versions = [_version(name) for name in _LIBRARIES]

    def place(self, spec: DeploymentSpec, model_dir: Path) -> Path:
        """Returns the folder of a model's conversion. Other files, sizes or times result in another
        folder.
        """
        # Skip folders: their times change with the links in them.
        files = sorted(
            (str(path.relative_to(model_dir)), path.stat())
            for path in model_dir.rglob("*")
            if path.is_file()
        )
        made_of = [
            *(spec.pipeline, *self._versions, f"format {_FORMAT}"),
            *_rounding(spec),
            *(f"{name} {file_stat.st_size} {file_stat.st_mtime_ns}" for name, file_stat in files),
        ]
        return self._of_source(spec.source) / _digest("\n".join(made_of))

    def forget(self, source: str) -> None:
        """Removes the conversions of a source that no deployment uses any more."""
        folder = self._of_source(source)
        self._jobs.forget(folder)
        shutil.rmtree(folder, ignore_errors=True)

    # --- executions of replicas ---

    def chosen(self, spec: DeploymentSpec, folder: Path) -> Execution | None:
        """Returns the execution for a replica that starts now. None means torch."""
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
        """Returns why a deployment that requests OpenVINO cannot use it, and which setting to
        change. None if it can, or if that is not known yet.
        """
        if not is_conversion(spec.engine) and spec.dtype != INT8:
            return None
        if why := self._why_not_converted(folder):
            return f"It cannot be converted for OpenVINO. {why} {_otherwise(spec)}."
        if not _exportable(folder):
            return None
        reasons: list[str] = []
        for execution in self._executions(spec, folder):
            why = self._why_not(execution)
            if why is None:
                return None
            reasons.append(f"In {_NAMES[execution.precision]}: {why}")
        return f"OpenVINO cannot run it on this machine. {' '.join(reasons)} {_otherwise(spec)}."

    def in_turn(self, residents: Iterable[Resident]) -> list[Resident]:
        """Sorts residents by their accounts' last conversion or trial, the longest ago first."""
        return sorted(
            residents, key=lambda resident: self._jobs.last_turn(resident.spec.account_id)
        )

    def offer(
        self, replica: ReplicaHandle, spec: DeploymentSpec, model_dir: Path, folder: Path
    ) -> None:
        """Offers a ready replica the best execution that passed its trial, or starts a conversion
        or trial if worthwhile.

        `folder` is the result of `place` when the replica was started.
        """
        if not replica.conversion.is_possible or not may_convert(spec.engine):
            return
        if not self._jobs.is_busy and not (folder / VERDICT).exists():
            is_used = replica.vitals.busy_s >= self.after_s
            if is_used or _is_asked_for(spec):
                self._jobs.convert(
                    spec, model_dir, folder, _weight_format(spec), in_int8=spec.dtype == INT8
                )
        if not _exportable(folder):
            if self._why_not_converted(folder):
                replica.conversion.forbid()
            return
        for execution in self._executions(spec, folder):
            if self._why_not(execution):
                continue
            verdict = self._trials.verdict(execution)
            if verdict is None and self._jobs.given_up(self._trials.path(execution)) is not None:
                replica.conversion.forbid()
            elif verdict is None:
                self._jobs.try_out(spec, model_dir, execution)
            elif self._is_worth_it(spec, verdict.speedup):
                replica.adopt(execution)
            else:
                replica.conversion.forbid()
            return
        replica.conversion.forbid()

    def quarantine(self, execution: Execution, reason: str) -> str:
        """Excludes the execution for later replicas. Returns a message that says so."""
        self._trials.fail(execution, reason)
        return (
            f"{reason} OpenVINO in {_NAMES[execution.precision]} is disabled on this machine. "
            "The next start does not use it."
        )

    def _executions(self, spec: DeploymentSpec, folder: Path) -> list[Execution]:
        """Returns all executions that the deployment may run on, the preferred one first."""
        precisions = _by_itself(spec, folder) if spec.dtype == AUTO else _PRECISIONS.get(spec.dtype)
        return [self._trials.execution(folder, precision) for precision in precisions or ()]

    def _why_not(self, execution: Execution) -> str | None:
        """Returns why the trial failed. None if it passed or was not run yet."""
        verdict = self._trials.verdict(execution)
        return verdict.reason if verdict and not verdict.passed else None

    def _why_not_converted(self, folder: Path) -> str | None:
        """Returns why the conversion failed. None if it exists or was not tried yet."""
        if why := self._jobs.given_up(folder):
            return why
        verdict = _made(folder)
        return verdict["reason"] if verdict and not verdict["forms"] else None

    def _is_worth_it(self, spec: DeploymentSpec, speedup: float | None) -> bool:
        return _is_asked_for(spec) or speedup is None or speedup >= _WORTH

    # --- processes ---

    @property
    def is_busy(self) -> bool:
        """True while a conversion or a trial runs."""
        return self._jobs.is_busy

    def kill_hung(self) -> None:
        self._jobs.kill_hung()

    def exited(self, process_id: str, status: int) -> None:
        """Handles the end of one of the host's processes. Ignores processes that are not
        conversions or trials.
        """
        self._jobs.exited(process_id, status)

    # --- memory (see `BackgroundWork`) ---

    def evictable(self) -> Iterable[EvictionCandidate]:
        return self._jobs.evictable()

    def evict(self, job_id: str) -> None:
        self._jobs.evict(job_id)

    def _given_up(self, deployment_id: str, reason: str) -> None:
        self.on_quarantined(deployment_id, f"It is not converted for OpenVINO. {reason}")

    def _rejected(self, deployment_id: str, execution: Execution, reason: str) -> None:
        name = _NAMES[execution.precision]
        self.on_quarantined(
            deployment_id, f"OpenVINO in {name} is not used on this machine. {reason}"
        )

    def _of_source(self, source: str) -> Path:
        return self.folder / _digest(source)


def _otherwise(spec: DeploymentSpec) -> str:
    """Returns the setting to change if OpenVINO was requested but cannot run the deployment."""
    if spec.dtype == INT8:
        return "Set 'dtype' to 'auto'"
    other = "Set 'engine' to 'auto' or 'torch'"
    return other if spec.dtype == AUTO else f"{other}, or 'dtype' to 'auto'"


def _is_asked_for(spec: DeploymentSpec) -> bool:
    """Returns True if OpenVINO was requested, so it is used even if it is not faster."""
    return is_conversion(spec.engine) or bool(_rounding(spec))


def _weight_format(spec: DeploymentSpec) -> WeightFormat | None:
    return spec.config.get("weight_format")


def _rounding(spec: DeploymentSpec) -> list[str]:
    """Returns how weights are rounded and by which version. Empty for a plain conversion."""
    if spec.dtype == INT8:
        how = "in int8"
    elif (weight_format := _weight_format(spec)) is not None:
        how = weight_format
    else:
        return []
    version = _version(_ROUNDING)
    return [how, version] if version else [how]


def _version(library: str) -> str:
    """Returns a library's version. Empty if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _by_itself(spec: DeploymentSpec, folder: Path) -> Sequence[Precision]:
    """Returns the precisions for an `auto` dtype: see `engines.precision`."""
    stored = (_made(folder) or {}).get("stored", "")
    if _weight_format(spec) or not stored:
        # The model is rounded anyway, or its weights were, such as those of a GGUF file.
        return _OF_HALF if spec.pipeline in GENERATING else _OF_SINGLE
    return _OF_SINGLE if stored == "float32" else _OF_HALF


def _made(folder: Path) -> dict[str, Any] | None:
    """Returns the verdict of a conversion: `forms`, or the `reason` that it has none."""
    try:
        return json.loads(read_bounded(folder / VERDICT))
    except (OSError, ValueError, RecursionError):
        return None


def _exportable(folder: Path) -> bool:
    return bool((_made(folder) or {}).get("forms"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
