"""What replicas need of the graphics devices: asked by their engines, or measured for the next."""

from stoker.base.config import MIB, Settings
from stoker.models.engines import environments
from stoker.runtime.graphics import graphics_of
from stoker.runtime.local.memory.devices import Wanted
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.specification import DeploymentSpec

HEADROOM = 1.1
"""Memory is measured now and then; between two measurements a replica may need more."""
CONTEXT_BYTES = 512 * MIB
"""What CUDA and its libraries keep for each process, of which torch does not know."""
TOO_LITTLE_TIMES = 2
"""So many times the estimate of one that has found too little while it loaded is the next one."""


class DeviceSizing:
    def __init__(self, settings: Settings, findings: Measurements, largest: int) -> None:
        """
        Args:
            largest: the budget of the largest device, bytes; 0: there are none.
        """
        self._settings = settings
        self._findings = findings
        self._largest = largest
        self._estimates: dict[tuple[str, str], int] = {}
        """Source and how it runs → bytes of each device, until that was measured."""
        self._measured: dict[tuple[str, str], int] = {}

    def wanted(self, spec: DeploymentSpec) -> Wanted | None:
        """What one replica wants of the devices; None: nothing, as there are none, or it runs on
        the CPU."""
        if not self._largest or (graphics := graphics_of(spec)) is None:
            return None
        return Wanted(
            size=self._known(spec),
            share=environments.gpu_share(self._settings, spec.engine),
            count=graphics.count,
            index=graphics.index,
            is_optional=graphics.is_optional,
        )

    def measure(self, spec: DeploymentSpec, held: int) -> tuple[int, bool]:
        """A replica that has answered holds so much of each of its devices, bytes.

        Returns what one like it needs at most, and whether that is new.
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
        """A replica has found too little memory on its device while it loaded."""
        more = max(1, self._known(spec)) * TOO_LITTLE_TIMES
        self._measured.pop(self._key(spec), None)
        self._estimates[self._key(spec)] = min(more, self._largest)

    def forget(self, source: str) -> None:
        """No deployment uses it any more."""
        for known in (self._estimates, self._measured):
            for key in [key for key in known if key[0] == source]:
                del known[key]

    def _known(self, spec: DeploymentSpec) -> int:
        key = self._key(spec)
        if key not in self._measured and key not in self._estimates:
            found = self._findings.device_bytes(*key)
            if found is not None:
                self._measured[key] = found
            else:
                # The first one stays: what is needed of the machine's memory is soon measured, and
                # says nothing of the weights, which lie elsewhere.
                self._estimates[key] = spec.memory_bytes + CONTEXT_BYTES
        return self._measured.get(key, self._estimates.get(key, 0))

    def _key(self, spec: DeploymentSpec) -> tuple[str, str]:
        return spec.source, f"{spec.pipeline}-{spec.engine}-{spec.dtype}"
