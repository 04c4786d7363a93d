"""Which models are converted for OpenVINO, and what replicas run on: a conversion, or torch.

A conversion is made of files and libraries alone. How it may be run here is another question, which
a trial answers for each way (`Trials`): the first that passed is taken, and torch where none did.
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
from stoker.runtime.local.conversions.trials import Trials, read_bounded
from stoker.runtime.local.memory.candidates import Candidate
from stoker.runtime.local.memory.memory import Memory
from stoker.runtime.local.memory.replica_table import Resident
from stoker.runtime.local.processes.engine_host import EngineHost
from stoker.runtime.local.processes.sandboxes import Sandboxes
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.launcher import Limits
from stoker.runtime.specification import DeploymentSpec
from stoker.wire.protocol import VERDICT, Execution, Precision, WeightFormat

_LIBRARIES = ("openvino", "torch", "transformers")
_FORMAT = 3
"""Of what a conversion's folder holds."""
_WORTH = 1.05
"""How much faster than torch it has to be, where nobody asked for OpenVINO."""

_ROUNDING = "nncf"
"""The library that rounds what is to have fewer bits."""

_PRECISIONS: Mapping[str, Sequence[Precision]] = {
    "bfloat16": ("bf16",),
    "float32": ("f32",),
    INT8: ("i8",),
}
"""A deployment's `dtype` → what its model may be computed in."""
_OF_SINGLE: Sequence[Precision] = ("f32",)
_OF_HALF: Sequence[Precision] = ("bf16", "f32")
"""Where `dtype` is `auto`, by what the weights are stored in, the preferred one first."""
_NAMES: Mapping[Precision, str] = {"bf16": "bfloat16", "f32": "float32", "i8": INT8}

OnQuarantined = Callable[[str, str], None]
"""Is notified of a deployment that goes without something on OpenVINO, and why."""


@dataclass
class Conversions:
    """Converted models, kept with the source and the pipeline that they were made of.

    A model is converted when its replica has spent `after_s` in forward passes: what is hardly used
    is not worth the half minute of a core. `engine="openvino"` asks for it at once, and so does a
    format of its weights.
    """

    folder: Path
    log_path: Path
    host: EngineHost
    cells: Sandboxes
    after_s: float
    media: MediaLimits
    threads: int
    limits: Limits
    memory: Memory
    on_quarantined: OnQuarantined
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._trials = Trials(self.threads)
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
        self._versions = [importlib.metadata.version(name) for name in _LIBRARIES]

    def place(self, spec: DeploymentSpec, model_dir: Path) -> Path:
        """Where the conversion of a model is kept. Other files, sizes or times: another place."""
        # No folders: their times change as the links in them do.
        files = sorted(
            (str(path.relative_to(model_dir)), path.stat())
            for path in model_dir.rglob("*")
            if path.is_file()
        )
        made_of = [
            *(spec.pipeline, *self._versions, f"format {_FORMAT}"),
            *_rounding(spec),
            *(f"{name} {found.st_size} {found.st_mtime_ns}" for name, found in files),
        ]
        return self._of_source(spec.source) / _digest("\n".join(made_of))

    def forget(self, source: str) -> None:
        """Remove what was made of a source that no deployment uses any more."""
        folder = self._of_source(source)
        self._jobs.forget(folder)
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
        if not is_conversion(spec.engine) and spec.dtype != INT8:
            return None
        if why := self._why_not_converted(folder):
            return f"It cannot be converted for OpenVINO. {why} {_otherwise(spec)}."
        if not _exportable(folder):
            return None
        found: list[str] = []
        for execution in self._executions(spec, folder):
            why = self._why_not(execution)
            if why is None:
                return None
            found.append(f"In {_NAMES[execution.precision]}: {why}")
        return f"OpenVINO cannot run it on this machine. {' '.join(found)} {_otherwise(spec)}."

    def in_turn(self, residents: Iterable[Resident]) -> list[Resident]:
        """First those of the account for which nothing has been converted or tried for longest."""
        return sorted(residents, key=lambda one: self._jobs.last_turn(one.spec.account_id))

    def offer(
        self, replica: ReplicaHandle, spec: DeploymentSpec, model_dir: Path, folder: Path
    ) -> None:
        """Give a ready replica the best that has passed its trial of a `folder` that `place` named
        when it was started, or have it made and tried where that is worth it.
        """
        if not replica.convertible or not may_convert(spec.engine):
            return
        if not self._jobs.is_busy and not (folder / VERDICT).exists():
            is_used = replica.vitals.busy_s >= self.after_s
            if is_used or _is_asked_for(spec):
                self._jobs.convert(
                    spec, model_dir, folder, _weight_format(spec), in_int8=spec.dtype == INT8
                )
        if not _exportable(folder):
            # Nothing to ask about again.
            replica.convertible = not self._why_not_converted(folder)
            return
        for execution in self._executions(spec, folder):
            if self._why_not(execution):
                continue
            verdict = self._trials.verdict(execution)
            if verdict is None and self._jobs.given_up(self._trials.path(execution)) is not None:
                replica.convertible = False
            elif verdict is None:
                self._jobs.try_out(spec, model_dir, execution)
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
        precisions = _by_itself(spec, folder) if spec.dtype == AUTO else _PRECISIONS.get(spec.dtype)
        return [self._trials.execution(folder, one) for one in precisions or ()]

    def _why_not(self, execution: Execution) -> str | None:
        """None: it has passed, or was not tried yet."""
        verdict = self._trials.verdict(execution)
        return verdict.reason if verdict and not verdict.passed else None

    def _why_not_converted(self, folder: Path) -> str | None:
        """None: it is, or was not tried yet."""
        if why := self._jobs.given_up(folder):
            return why
        found = _made(folder)
        return found["reason"] if found and not found["forms"] else None

    def _is_worth_it(self, spec: DeploymentSpec, speedup: float | None) -> bool:
        return _is_asked_for(spec) or speedup is None or speedup >= _WORTH

    # --- processes ---

    def kill_hung(self) -> None:
        self._jobs.kill_hung()

    def exited(self, process_id: str, status: int) -> None:
        """A process of the host has ended; nothing, where it was no conversion and no trial."""
        self._jobs.exited(process_id, status)

    # --- memory (see `Background`) ---

    def evictable(self) -> Iterable[Candidate]:
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
    """What to set where OpenVINO cannot run it, though it was asked for."""
    if spec.dtype == INT8:
        return "Set 'dtype' to 'auto'"
    other = "Set 'engine' to 'auto' or 'torch'"
    return other if spec.dtype == AUTO else f"{other}, or 'dtype' to 'auto'"


def _is_asked_for(spec: DeploymentSpec) -> bool:
    """And not only good to have, where it is faster."""
    return is_conversion(spec.engine) or bool(_rounding(spec))


def _weight_format(spec: DeploymentSpec) -> WeightFormat | None:
    return spec.config.get("weight_format")


def _rounding(spec: DeploymentSpec) -> list[str]:
    """What makes a conversion another one than the plain one: how it is rounded, and by what."""
    if spec.dtype == INT8:
        how = "in int8"
    elif (weight_format := _weight_format(spec)) is not None:
        how = weight_format
    else:
        return []
    try:
        return [how, importlib.metadata.version(_ROUNDING)]
    except importlib.metadata.PackageNotFoundError:
        return [how]


def _by_itself(spec: DeploymentSpec, folder: Path) -> Sequence[Precision]:
    """What a model is computed in where nobody says: see `engines.precision`."""
    stored = (_made(folder) or {}).get("stored", "")
    if _weight_format(spec) or not stored:
        # It is rounded anyway, or its weights were, as those of a GGUF file.
        return _OF_HALF if spec.pipeline in GENERATING else _OF_SINGLE
    return _OF_SINGLE if stored == "float32" else _OF_HALF


def _made(folder: Path) -> dict[str, Any] | None:
    """The verdict of a conversion: `forms`, or the `reason` that there are none."""
    try:
        return json.loads(read_bounded(folder / VERDICT))
    except (OSError, ValueError, RecursionError):
        return None


def _exportable(folder: Path) -> bool:
    return bool((_made(folder) or {}).get("forms"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
