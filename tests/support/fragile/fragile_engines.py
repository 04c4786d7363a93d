"""Torch on a CPU that behaves like a GPU: batches overlap, and passes are recorded."""

import os
import signal
from collections.abc import Callable
from typing import Self

from stoker.models.engines.interface import Progress
from stoker.models.engines.recorders import HostRecorder, Recording
from stoker.models.engines.torch import TorchEngine
from stoker.models.engines.transfers import HostStream, Outputs
from stoker.models.llm.engines.paged.captured import EagerCapturing
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.loading import ScheduledEngine
from stoker.plugin_api import ReplicaSpec


class Stream(HostStream):
    is_asynchronous = True


class KillingRecorder(HostRecorder):
    def record(self, compute: Callable[[], Outputs]) -> Recording:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().record(compute)


class LosingRecorder(HostRecorder):
    def record(self, compute: Callable[[], Outputs]) -> Recording:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def is_usable(self) -> bool:
        return False


class FragileEngine(TorchEngine):
    """Its first replica is killed while it records a pass. The second one loses its device."""

    @classmethod
    def of(cls, spec: ReplicaSpec) -> Self:
        engine = super().of(spec)
        engine.stream = Stream()
        engine.recorder = LosingRecorder() if spec.lost_recordings else KillingRecorder()
        return engine


class KillingCapturing(EagerCapturing):
    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        os.kill(os.getpid(), signal.SIGKILL)
        return step


class CutEngine(ScheduledEngine):
    """Captures the steps of a language model."""

    convertible = False

    def __init__(self, spec: ReplicaSpec, progress: Progress) -> None:
        super().__init__(spec, progress)
        runner = self._runner
        assert isinstance(runner, PagedRunner)
        runner._captured = runner._captures(KillingCapturing())
