"""Base of stages that make images or video in many steps. The diffusers engine runs their
pipelines.

The gateway imports this module through the task files, so torch and diffusers are imported inside
functions.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.models.stages.base import Sample, Stages

if TYPE_CHECKING:
    from stoker.models.stages.watch import Watch


class DiffusionStages(Stages):
    """Stages of diffusion. Samples with equal `call` (size, steps, guidance and similar options)
    share a batch.
    """

    auto_class = ()
    classes: ClassVar[tuple[str, ...]]
    """Names of the diffusers pipelines that can be served."""

    @abstractmethod
    def draw(
        self, pipe: Any, samples: Sequence[Sample], watch: "Watch"
    ) -> Sequence[Mapping[str, Any]]:
        """Returns the pipeline's result for each sample, on the CPU.

        Reports every step to `watch`, and ends if that raises `AbandonedError`.
        """
