"""Stages of pipelines that make images or video in many steps, run by the diffusers engine.

Imported by the gateway through the task files, so torch and diffusers are imported inside.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.models.stages.base import Sample, Stages

if TYPE_CHECKING:
    from stoker.models.stages.watch import Watch


class DiffusionStages(Stages):
    """Samples with equal `call` (size, steps, guidance and the like) share a batch."""

    auto_class = ()
    classes: ClassVar[tuple[str, ...]]
    """Names of the diffusers pipelines that can be served."""

    @abstractmethod
    def draw(
        self, pipe: Any, samples: Sequence[Sample], watch: "Watch"
    ) -> Sequence[Mapping[str, Any]]:
        """What the pipeline makes of each sample, on the CPU.

        Tells `watch` after every step, and ends where that raises `AbandonedError`.
        """
