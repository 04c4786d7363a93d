"""Which models are converted for OpenVINO, and when: in the background, one after another."""

import hashlib
import importlib.metadata
import json
import logging
import shutil
from pathlib import Path

import psutil

from stoker.ids import Prefix, new_id
from stoker.media.limits import MediaLimits
from stoker.replica.protocol import VERDICT, Conversion, WeightFormat
from stoker.runtime.interface import DeploymentSpec
from stoker.runtime.local.host import EngineHost
from stoker.runtime.local.replica import Replica

log = logging.getLogger(__name__)

_LIBRARIES = ("openvino", "torch", "transformers")
_THREADS = 1
_WEIGHTS_HELD = 4
"""How many times the weights lie in memory, at worst, while a model is converted."""
_DEQUANTIZED = 8
"""How much larger the weights of a GGUF file are in memory: four bits become 32."""


class Conversions:
    """Converted models, kept with the source and the pipeline that they were made of.

    A model is converted when its replica has spent `after_s` in forward passes: what is hardly used
    is not worth the half minute of a core. `engine="openvino"` asks for it at once, and so does a
    format of its weights.
    """

    def __init__(
        self, folder: Path, logs: Path, host: EngineHost, after_s: float, limits: MediaLimits
    ) -> None:
        self._folder = folder
        self._log_path = logs / "conversions.log"
        self._host = host
        self._after_s = after_s
        self._limits = limits
        self._versions = [importlib.metadata.version(name) for name in _LIBRARIES]
        self._running: Conversion | None = None
        self._tried: set[Path] = set()

    def place(self, spec: DeploymentSpec, model_dir: Path) -> Path:
        """Where the conversion of a model is kept. Other files, sizes or times: another place."""
        files = sorted((path.name, path.stat()) for path in model_dir.iterdir())
        made_of = [
            *(spec.pipeline, *self._versions),
            *filter(None, [_weight_format(spec)]),
            *(f"{name} {found.st_size} {found.st_mtime_ns}" for name, found in files),
        ]
        return self._of_source(spec.source) / _digest("\n".join(made_of))

    def done(self, spec: DeploymentSpec, folder: Path) -> str:
        """The folder, where a replica that starts now should use what is in it; else nothing."""
        return str(folder) if spec.engine != "torch" and self._usable(spec, folder) else ""

    def forget(self, source: str) -> None:
        """Remove what was made of a source that no deployment uses any more."""
        folder = self._of_source(source)
        if self._running and Path(self._running.folder).parent == folder:
            self._host.kill(self._running.id)
        self._tried = {path for path in self._tried if path.parent != folder}
        shutil.rmtree(folder, ignore_errors=True)

    def offer(self, replica: Replica, spec: DeploymentSpec, model_dir: Path, folder: Path) -> None:
        """Give a ready replica the converted model of a `folder` that `place` named when it was
        started, or have it made where it is worth it.
        """
        if not replica.convertible or spec.engine == "torch":
            return
        if self._usable(spec, folder):
            replica.adopt(folder)
        elif (folder / VERDICT).exists():
            # Torch is faster: nothing to ask about again.
            replica.convertible = False
        elif (
            self._running is None
            and folder not in self._tried
            and self._worth(replica, spec)
            and _fits(model_dir)
        ):
            self._tried.add(folder)
            shutil.rmtree(folder, ignore_errors=True)
            self._running = Conversion(
                id=new_id(Prefix.REPLICA),
                pipeline=spec.pipeline,
                model_dir=str(model_dir),
                folder=str(folder),
                log_path=str(self._log_path),
                threads=_THREADS,
                limits=self._limits,
                weight_format=_weight_format(spec),
            )
            log.info("converting a model for OpenVINO", extra={"deployment": spec.id})
            self._host.convert(self._running)

    def exited(self, job_id: str, status: int) -> None:
        job = self._running
        if job is None or job.id != job_id:
            return
        self._running = None
        if status:
            log.warning("a conversion ended early", extra={"status": status})
            shutil.rmtree(job.folder, ignore_errors=True)

    def _worth(self, replica: Replica, spec: DeploymentSpec) -> bool:
        return _is_asked_for(spec) or replica.busy_s >= self._after_s

    def _usable(self, spec: DeploymentSpec, folder: Path) -> bool:
        """Whether a folder holds what replicas of a deployment should run on."""
        path = folder / VERDICT
        if not path.exists():
            return False
        return _is_asked_for(spec) or json.loads(path.read_text())["faster"]

    def _of_source(self, source: str) -> Path:
        return self._folder / _digest(source)


def _is_asked_for(spec: DeploymentSpec) -> bool:
    """And not only good to have, where it is faster."""
    return spec.engine == "openvino" or _weight_format(spec) is not None


def _weight_format(spec: DeploymentSpec) -> WeightFormat | None:
    return spec.config.get("weight_format")


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
