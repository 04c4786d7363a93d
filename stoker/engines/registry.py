"""Engine by name. A new engine is a new file in this folder and a line here."""

from collections.abc import Callable, Mapping

from stoker.engines.interface import Engine
from stoker.stages.base import Stages
from stoker.wire.protocol import ReplicaSpec


def _torch(spec: ReplicaSpec) -> Engine:
    from stoker.engines.torch import TorchEngine

    return TorchEngine(spec.device, spec.dtype, spec.threads)


def _openvino(spec: ReplicaSpec) -> Engine:
    from stoker.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(spec.device, spec.dtype, spec.threads)


def _diffusers(spec: ReplicaSpec) -> Engine:
    from stoker.engines.diffusers import DiffusersEngine

    return DiffusersEngine(spec.device, spec.dtype, spec.threads)


ENGINES: Mapping[str, Callable[[ReplicaSpec], Engine]] = {
    "openvino": _openvino,
    "torch": _torch,
    "diffusers": _diffusers,
}


def create(spec: ReplicaSpec, stages: Stages) -> Engine:
    """The engine that a replica's specification names; `auto` is the first of its stages."""
    name = stages.engines[0] if spec.engine == "auto" else spec.engine
    return ENGINES[name](spec)
