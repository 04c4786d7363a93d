"""Estimates the GPU memory of replicas from their engines, their weights, or measurements."""

from collections.abc import Callable

from stoker.base.config import MIB, Settings
from stoker.models.engines import environments
from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO
from stoker.models.llm.engines.memory import device_cache_bytes, work_bytes
from stoker.models.tasks.registry import GENERATING, SERVED
from stoker.runtime.graphics import graphics_of
from stoker.runtime.local.memory.device_weights import WeightSizes
from stoker.runtime.local.memory.devices import DeviceNeed
from stoker.runtime.local.memory.measurements import Measurements
from stoker.runtime.specification import DeploymentSpec, Readiness

HEADROOM = 1.05
"""Factor for growth. Memory is measured periodically, and a replica may need more between two
measurements.
"""
CONTEXT_BYTES = 730 * MIB
"""Bytes that CUDA and its libraries keep for each process, until they were measured. torch does not
count them. Measured on an H100 with driver 580: 710 to 730 MiB.
"""
_LEAST_CONTEXT, _MOST_CONTEXT = 64 * MIB, 1536 * MIB
"""Limits of a plausible measurement of the context. Other values are ignored."""
SLEEPERS_SHARE = 0.05
"""Part of an engine's share of a GPU that it leaves for sleeping replicas if it may sleep, too. On
80 GB these are 3.6 GB, enough for three contexts.
"""
TOO_LITTLE_TIMES = 2
"""Factor by which the estimate grows after a replica ran out of memory while it loaded."""


def is_plausible_context(size: int) -> bool:
    return _LEAST_CONTEXT <= size <= _MOST_CONTEXT


class DeviceSizing:
    def __init__(self, settings: Settings, findings: Measurements, largest: int) -> None:
        """
        Args:
            largest: the budget of the largest device in bytes. 0 means no devices.
        """
        self._settings = settings
        self._findings = findings
        self._largest = largest
        self._weights: dict[str, WeightSizes] = {}
        """Maps a source to its weights."""
        self._raised: dict[tuple[str, str], int] = {}
        """Maps the source and its settings to estimated bytes per device, raised after a replica
        had too little.
        """
        self._first: dict[tuple[str, str], int] = {}
        """Maps the source and its settings to the first known need of the machine's memory."""
        self._measured: dict[tuple[str, str], int] = {}
        """Maps the source and its settings to the most bytes of torch, without the context."""

    def wanted(self, spec: DeploymentSpec) -> DeviceNeed | None:
        """Returns the GPU needs of one replica. None if no devices exist or it runs on the CPU."""
        if not self._largest or (graphics := graphics_of(spec)) is None:
            return None
        weights = self._weights.get(spec.source)
        in_half = weights.in_half(spec.dtype) if weights else 0
        is_text = spec.pipeline in GENERATING
        share = self._share(spec)
        return DeviceNeed(
            size=self._known(spec),
            share=share,
            count=graphics.count,
            index=graphics.index,
            is_optional=graphics.is_optional,
            half_size=self._with_work(in_half) if in_half else 0,
            overhead=self._with_work(0),
            takes_prepared=graphics.count == 1 and _takes_prepared(spec),
            may_use_cpu=share is None and not graphics.is_optional,
            weights=_on_vllm(weights, spec) if weights and is_text else 0,
            small_size=self._with_work(weights.in_four_bits) if weights and is_text else 0,
            spread_by=_spread_by(spec) if is_text else "",
        )

    def may_sleep(self, spec: DeploymentSpec) -> bool:
        """Returns True if a replica should move its memory to main memory instead of being
        unloaded.
        """
        is_hot = spec.readiness is Readiness.HOT
        return self._settings.gpu_sleep and spec.is_warm and not is_hot

    def _share(self, spec: DeploymentSpec) -> float | None:
        """Returns the share of a GPU that an engine allocates when it starts. None if it allocates
        as needed. One that may sleep leaves room for what others hold while they sleep.
        """
        share = environments.gpu_share(self._settings, spec.engine)
        return share * (1 - SLEEPERS_SHARE) if share and self.may_sleep(spec) else share

    def keep_weights(self, source: str, weights: WeightSizes) -> None:
        """Records a model's weights. They replace the estimate from the machine's memory."""
        self._weights[source] = weights

    def has_weights(self, source: str) -> bool:
        return source in self._weights

    def context_bytes(self, kind: str = "") -> int:
        """Returns the memory of CUDA's context: as measured on a kind of device, or the estimate.

        Args:
            kind: `Device.kind`. Empty means any device of this machine.
        """
        return self._findings.context_bytes(kind) or CONTEXT_BYTES

    def measure_context(self, kind: str, size: int, *, may_lower: bool = False) -> None:
        """Records the memory of CUDA's context on a kind of device. The first measurement stays.

        Args:
            may_lower: a smaller value replaces it, because it may have contained the memory of
                other processes.
        """
        known = self._findings.context_bytes(kind)
        is_new = known is None or (may_lower and size < known)
        if is_new and is_plausible_context(size):
            self._findings.keep_context_bytes(kind, size)

    def measure(
        self, spec: DeploymentSpec, held: int, context: int | None = None
    ) -> tuple[int, bool]:
        """Records that torch holds `held` bytes of each device, in a replica that answered.

        Returns the maximum that a replica like it needs, and whether that is new.

        Args:
            context: bytes that the process holds in addition. None means the estimate.
        """
        if not held:
            # torch does not use the device now. Later replicas may.
            return 0, False
        beside = self.context_bytes() if context is None else context
        needed, key = int(held * HEADROOM), self._key(spec)
        known = self._measured.get(key, -1)
        if needed <= known:
            return known + beside, False
        self._measured[key] = needed
        self._findings.keep_device_bytes(*key, needed)
        return needed + beside, True

    def was_short(self, spec: DeploymentSpec) -> Callable[[], None]:
        """Raises the estimate: a replica ran out of device memory while it loaded.

        Returns a function that restores the estimate, if other processes had taken the memory.
        """
        key = self._key(spec)
        more = max(1, self._known(spec)) * TOO_LITTLE_TIMES
        measured, raised = self._measured.pop(key, None), self._raised.get(key)
        self._raised[key] = min(more, self._largest)

        def restore() -> None:
            self._raised.pop(key, None)
            if raised is not None:
                self._raised[key] = raised
            if measured is not None:
                self._measured[key] = measured

        return restore

    def forget(self, source: str) -> None:
        """Forgets a source that no deployment uses any more."""
        self._weights.pop(source, None)
        for known in (self._raised, self._first, self._measured):
            for key in [key for key in known if key[0] == source]:
                del known[key]

    def _known(self, spec: DeploymentSpec) -> int:
        key = self._key(spec)
        if key not in self._measured and key not in self._raised:
            stored = self._findings.device_bytes(*key)
            if stored is not None:
                self._measured[key] = stored
        if key in self._measured:
            return self._measured[key] + self.context_bytes()
        if key in self._raised:
            return self._raised[key]
        if weights := self._weights.get(spec.source):
            return self._with_work(weights.on_device(spec.dtype)) + self._cache(spec)
        # Keeps the first estimate. The replica's main memory is measured soon, but does not include
        # the weights, which are in GPU memory.
        first = self._first.setdefault(key, spec.memory_bytes)
        return first + self.context_bytes() + self._cache(spec)

    def _with_work(self, weights: int) -> int:
        """Returns the need of a process with weights, before any measurement."""
        return weights + work_bytes(weights) + self.context_bytes()

    def _cache(self, spec: DeploymentSpec) -> int:
        """Returns the bytes that a language model allocates for keys and values."""
        if spec.pipeline not in GENERATING or environments.gpu_share(self._settings, spec.engine):
            return 0
        return device_cache_bytes(spec.memory_bytes, self._largest)

    def _key(self, spec: DeploymentSpec) -> tuple[str, str]:
        return spec.source, f"{spec.pipeline}-{spec.engine}-{spec.dtype}"


def _takes_prepared(spec: DeploymentSpec) -> bool:
    """Returns True if a replica can start in a prepared worker, which has torch and no access to
    folders of other replicas.
    """
    record = ENGINES.get(spec.engine)
    has_torch = spec.engine == AUTO or (record is not None and record.is_torch)
    return has_torch and not spec.has_adapters and spec.engine not in environments.NAMES


def _on_vllm(weights: WeightSizes, spec: DeploymentSpec) -> int:
    """Returns the bytes of a language model's weights on vLLM. 0 if unknown."""
    if spec.config.get("quantization"):
        return 0
    # With dtype `auto`, vLLM converts float32 weights to bfloat16.
    return weights.on_device("bfloat16" if spec.dtype == AUTO else spec.dtype)


def _spread_by(spec: DeploymentSpec) -> str:
    """Returns the settings that spread a model over several GPUs, in words. Empty if no engine does
    that.
    """
    kind = SERVED[spec.pipeline].kind
    for record in ENGINES.values():
        if record.devices_option and record.runs(spec.pipeline, kind):
            option = f"'{record.devices_option}' in 'config'"
            engine = "" if spec.engine == record.name else f"'engine' to '{record.name}' and "
            return f"{engine}{option}"
    return ""
