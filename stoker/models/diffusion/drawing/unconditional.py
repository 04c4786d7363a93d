"""Draws images from noise alone: DDPM and DDIM."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.models.diffusion.drawing.base import (
    DrawCall,
    ImageGenerationStages,
    generators,
    refuse_given,
    shown_rows,
)
from stoker.models.stages.base import InputError, Sample

if TYPE_CHECKING:
    from stoker.models.stages.watch import Watch

_STEPS = {"DDPMPipeline": 1000, "DDIMPipeline": 50}
"""Default number of steps by pipeline class, as in diffusers' own calls."""
_PROBE_STEPS = 2


class UnconditionalStages(ImageGenerationStages):
    """Stages of unconditional image generation. They run the loop of steps, because diffusers'
    pipelines for this have no callback.
    """

    classes: ClassVar[tuple[str, ...]] = tuple(_STEPS)

    @property
    def native(self) -> tuple[int, int]:
        size = self.pipe.unet.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        return width, height

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        options = self.options(parameters)
        self.check_steps(options)
        if not (item.get("prompt") or "").strip():
            item = {**item, "prompt": None}
        why = "this model generates images from noise only."
        refuse_given(item, options, ["prompt", "negative_prompt", "guidance_scale"], why)
        width, height = self.native
        if options.size and options.size != self.native:
            raise InputError(f"This model generates images of {width}x{height} only.", field="size")
        return self.samples(options, DrawCall("text", width, height, steps=options.steps), {})

    def probe_call(self, side: int) -> DrawCall:
        return DrawCall("text", *self.native, steps=_PROBE_STEPS)

    def draw(
        self, pipe: Any, samples: Sequence[Sample], watch: "Watch"
    ) -> Sequence[Mapping[str, Any]]:
        """Returns the drawn images, made as in `DDPMPipeline.__call__` and
        `DDIMPipeline.__call__`.
        """
        import torch
        from diffusers.utils import torch_utils

        library: Any = torch_utils
        unet, scheduler = pipe.unet, pipe.scheduler
        generator = generators(samples)
        width, height = self.native
        call: Any = samples[0].call
        with torch.no_grad():
            images = library.randn_tensor(
                (len(samples), unet.config.in_channels, height, width),
                generator=generator,
                device=pipe.device,
                dtype=unet.dtype,
            )
            scheduler.set_timesteps(call.steps or _STEPS[type(pipe).__name__])
            steps = len(scheduler.timesteps)
            for step, timestep in enumerate(scheduler.timesteps):
                noise = unet(images, timestep).sample
                images = scheduler.step(noise, timestep, images, generator=generator).prev_sample
                watch.step((step + 1) / steps)
                for row in shown_rows(samples, step, steps):
                    watch.part(row, {"pixels": _pixels(images[row])})
            return [{"pixels": _pixels(image)} for image in images]


def _pixels(image: Any) -> Any:
    return (image / 2 + 0.5).clamp(0, 1).float().cpu().clone()
