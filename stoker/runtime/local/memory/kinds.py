"""Estimates a model's memory from measured replicas of its kind, until it is measured itself."""

from stoker.base.config import MIB
from stoker.runtime.specification import DeploymentSpec

_LEAST_BYTES = 32 * MIB
"""Bytes that a replica claims at least in addition to its weights."""

_Kind = tuple[object, ...]


class KindNeeds:
    """Most memory that replicas of each kind needed in addition to their weights.

    Only for models with known weights. It is not stored: after a restart, the first replica of a
    new model claims its estimate.
    """

    def __init__(self) -> None:
        self._additional: dict[_Kind, int] = {}
        """Maps a kind to bytes."""

    def learn(self, spec: DeploymentSpec, needed: int) -> None:
        """Records that a replica needed this many bytes with its weights."""
        if spec.weight_bytes:
            kind, additional = _kind(spec), max(needed - spec.weight_bytes, _LEAST_BYTES)
            self._additional[kind] = max(additional, self._additional.get(kind, 0))

    def claimed(self, spec: DeploymentSpec) -> int:
        """Returns the bytes that a replica claims."""
        additional = self._additional.get(_kind(spec)) if spec.weight_bytes else None
        return spec.memory_bytes if additional is None else spec.weight_bytes + additional


def _kind(spec: DeploymentSpec) -> _Kind:
    options = tuple(sorted((name, str(value)) for name, value in spec.config.items()))
    return (spec.pipeline, spec.engine, spec.device, spec.dtype, spec.has_adapters, options)
