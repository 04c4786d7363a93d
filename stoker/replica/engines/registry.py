"""Engine by name. A new engine is a new file in this folder and a line here."""

from collections.abc import Callable, Mapping

from stoker.replica.engines.interface import Engine
from stoker.replica.protocol import ReplicaSpec


def _torch(spec: ReplicaSpec) -> Engine:
    from stoker.replica.engines.torch import TorchEngine

    return TorchEngine(spec.device, spec.dtype, spec.threads)


def _openvino(spec: ReplicaSpec) -> Engine:
    from stoker.replica.engines.openvino import OpenVinoEngine

    return OpenVinoEngine(spec.device, spec.dtype, spec.threads)


ENGINES: Mapping[str, Callable[[ReplicaSpec], Engine]] = {"openvino": _openvino, "torch": _torch}


def create(spec: ReplicaSpec) -> Engine:
    """The engine that a replica's specification names; `auto` is the first that there is."""
    name = next(iter(ENGINES)) if spec.engine == "auto" else spec.engine
    return ENGINES[name](spec)
