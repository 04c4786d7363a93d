"""Estimates the GPU memory of replicas: from their engines, or from measurements of earlier
replicas.
"""

from stoker.base.config import MIB, Settings
from stoker.models.engines import environments
from stoker.models.llm.engines.memory import device_cache_bytes
from stoker.models.tasks.registry import GENERATING
from stoker.runtime.graphics import graphics_of
from stoker.runtime.local.memory.devices import DeviceNeed
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.specification import DeploymentSpec

HEADROOM = 1.1
"""Factor for growth. Memory is measured periodically, and a replica may need more between two
measurements.
"""
CONTEXT_BYTES = 512 * MIB
"""Bytes that CUDA and its libraries keep for each process. torch does not count them."""
TOO_LITTLE_TIMES = 2
"""Factor by which the estimate grows after a replica ran out of memory while it loaded."""


class DeviceSizing:
    def __init__(self, settings: Settings, findings: Measurements, largest: int) -> None:
        """
        Args:
            largest: the budget of the largest device in bytes. 0 means no devices.
        """
        self._settings = settings
        self._findings = findings
        self._largest = largest
        self._estimates: dict[tuple[str, str], int] = {}
        """Maps the source and its settings to estimated bytes per device, until they were
        measured.
        """
        self._measured: dict[tuple[str, str], int] = {}

    def wanted(self, spec: DeploymentSpec) -> DeviceNeed | None:
        """Returns the GPU needs of one replica. None if no devices exist or it runs on the CPU."""
        if not self._largest or (graphics := graphics_of(spec)) is None:
            return None
        return DeviceNeed(
            size=self._known(spec),
            share=environments.gpu_share(self._settings, spec.engine),
            count=graphics.count,
            index=graphics.index,
            is_optional=graphics.is_optional,
        )

    def measure(self, spec: DeploymentSpec, held: int) -> tuple[int, bool]:
        """Records that a replica that answered holds `held` bytes of each of its devices.

        Returns the maximum that a replica like it needs, and whether that is new.
        """
        needed = int(held * HEADROOM) + CONTEXT_BYTES if held else 0
        key = self._key(spec)
        known = self._measured.get(key, -1)
        if needed <= known:
            return known, False
        self._measured[key] = needed
        self._findings.keep_device_bytes(*key, needed)
        return needed, True

    def was_short(self, spec: DeploymentSpec) -> None:
        """Raises the estimate: a replica ran out of device memory while it loaded."""
        more = max(1, self._known(spec)) * TOO_LITTLE_TIMES
        self._measured.pop(self._key(spec), None)
        self._estimates[self._key(spec)] = min(more, self._largest)

    def forget(self, source: str) -> None:
        """Forgets a source that no deployment uses any more."""
        for known in (self._estimates, self._measured):
            for key in [key for key in known if key[0] == source]:
                del known[key]

    def _known(self, spec: DeploymentSpec) -> int:
        key = self._key(spec)
        if key not in self._measured and key not in self._estimates:
            measured = self._findings.device_bytes(*key)
            if measured is not None:
                self._measured[key] = measured
            else:
                # The first estimate stays. The machine's memory is soon measured, but says nothing
                # of the weights, which are in device memory.
                self._estimates[key] = spec.memory_bytes + CONTEXT_BYTES + self._cache(spec)
        return self._measured.get(key, self._estimates.get(key, 0))

    def _cache(self, spec: DeploymentSpec) -> int:
        """Returns the bytes that a language model allocates for keys and values."""
        if spec.pipeline not in GENERATING or environments.gpu_share(self._settings, spec.engine):
            return 0
        return device_cache_bytes(spec.memory_bytes, self._largest)

    def _key(self, spec: DeploymentSpec) -> tuple[str, str]:
        return spec.source, f"{spec.pipeline}-{spec.engine}-{spec.dtype}"
