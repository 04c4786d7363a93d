"""Common base of pipelines that make images: seeds, sizes, files and streams."""

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.models.diffusion.base import DiffusionStages
from stoker.models.diffusion.drawing.event_writer import EventWriter
from stoker.models.diffusion.drawing.image_files import encode, to_picture
from stoker.models.stages.base import InputError, NoNumbersError, Sample
from stoker.wire.image_answer import Drawing, DrawingOptions, Images, StreamHead

_PIXELS_A_UNIT = 512
"""Number of pixels per unit of the batch budget. Before it is measured, a batch holds one image of
512 by 512 pixels.
"""
_PROBED = {"cpu": 128}
"""Side in pixels of the images that measure a batch, by device. Default: `_PROBED_SIDE`."""
_PROBED_SIDE = 512
_SEED_BITS = 63


@dataclass(frozen=True)
class DrawCall:
    """Options that images of one batch share. None means the pipeline's default."""

    drawing: Drawing
    width: int
    """Width in pixels."""
    height: int
    steps: int | None = None
    guidance_scale: float | None = None
    strength: float | None = None
    is_negative: bool = False
    """True if the samples have negative prompts."""


class ImageGenerationStages(DiffusionStages):
    """Base of image generation. One input results in n samples, each an image with a separate seed.

    If the request has a seed, its images do not share a batch. The last bits of floating point
    depend on the batch, and a seed must reproduce an image exactly.
    """

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.pipe = model

    @property
    @abstractmethod
    def native(self) -> tuple[int, int]:
        """Width and height in pixels that the model was trained for."""

    @abstractmethod
    def probe_call(self, side: int) -> DrawCall:
        """Returns the options of a probe: a few steps of an image with about this many pixels per
        side.
        """

    def options(self, parameters: Mapping[str, Any]) -> DrawingOptions:
        return msgspec.convert(parameters, DrawingOptions)

    def check_steps(self, options: DrawingOptions) -> None:
        """Raises `InputError` if the request has more steps than the noise schedule."""
        config = self.pipe.scheduler.config
        most = config.num_train_timesteps - config.get("steps_offset", 0)
        if options.steps and options.steps > most:
            raise InputError(
                f"This model takes at most {most} steps, not {options.steps}.",
                field="num_inference_steps",
            )

    def samples(
        self, options: DrawingOptions, call: DrawCall, extras: Mapping[str, Any]
    ) -> list[Sample]:
        """Returns the samples of the images that a request asks to draw. Each has these
        `extras`.
        """
        first_seed = options.seed
        seeds = [
            secrets.randbits(_SEED_BITS) if first_seed is None else first_seed + index
            for index in range(options.n)
        ]
        return [
            Sample(
                {},
                extras={**extras, "seed": seed, "partial_images": options.partial_images},
                call=call,
                alone=first_seed is not None,
            )
            for seed in seeds
        ]

    def fixed_cost(self, sample: Sample) -> int:
        call: Any = sample.call
        return -(-call.width * call.height // _PIXELS_A_UNIT)

    def probe(self, length: int, number: int = 0) -> Sample:
        side = _PROBED.get(self.pipe.device.type, _PROBED_SIDE)
        call = self.probe_call(min(side, *self.native))
        return Sample({}, extras={"prompt": "", "seed": 0, "partial_images": 0}, call=call)

    def picture(self, output: Mapping[str, Any]) -> Any:
        """Returns the finished image of a sample's output as a PIL image. Raises `InputError`,
        `NoNumbersError`.
        """
        if not output["pixels"].isfinite().all():
            raise NoNumbersError
        if output.get("flagged"):
            raise InputError(
                "The model's own safety checker has withheld an image. Change the prompt, "
                "or use another seed.",
                field="prompt",
            )
        return to_picture(output["pixels"])

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Images:
        options = self.options(parameters)
        pictures = [self.picture(output) for output in outputs]
        files = [encode(picture, options.output_format, options.quality) for picture in pictures]
        return Images(files, *pictures[0].size)

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        return {"images": 1}

    def writer(self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]) -> EventWriter:
        head = msgspec.convert(finishing, StreamHead)
        return EventWriter(self.options(parameters), head, self.picture)


def refuse_given(
    item: Mapping[str, Any], options: DrawingOptions, fields: Sequence[str], why: str
) -> None:
    """Raises `InputError` for the first of these fields that the request sets."""
    for field in fields:
        value = item.get(field) if field in item else getattr(options, field, None)
        if value is not None:
            raise InputError(f"'{field}' is not accepted: {why}", field=field)


def generators(samples: Sequence[Sample]) -> Any:
    """Returns torch's generators for the samples' seeds. They are on the CPU, so that a seed is
    independent of the device.

    A single generator is not put into a list, as in diffusers' usual calls.
    """
    import torch

    made = [torch.Generator("cpu").manual_seed(sample.extras["seed"]) for sample in samples]
    return made[0] if len(made) == 1 else made


def shown_rows(samples: Sequence[Sample], step: int, steps: int) -> list[int]:
    """Returns the rows of samples that show an unfinished image after a step. Steps are counted
    from 0.

    The number of images per sample is the number that its stream requests. They are evenly spaced
    over the steps and none is shown twice.
    """
    if step + 1 >= steps:
        return []
    rows: list[int] = []
    for row, sample in enumerate(samples):
        count = sample.extras["partial_images"]
        if any(steps * nth // (count + 1) == step + 1 for nth in range(1, count + 1)):
            rows.append(row)
    return rows
