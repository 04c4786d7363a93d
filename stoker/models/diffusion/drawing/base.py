"""What all pipelines that make images share: seeds, sizes, files and streams."""

import secrets
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stoker.models.diffusion.base import DiffusionStages
from stoker.models.diffusion.drawing.event_writer import EventWriter
from stoker.models.diffusion.drawing.image_files import encode, to_picture
from stoker.models.stages.base import InputError, Sample
from stoker.wire.image_answer import Drawing, DrawingOptions, Images, StreamHead

_PIXELS_A_UNIT = 512
"""Of the batch budget: before it is measured, a batch holds one image of 512 by 512 pixels."""
_PROBED = {"cpu": 128}
"""The side of the images that a batch is measured with, pixels; elsewhere `_PROBED_SIDE`."""
_PROBED_SIDE = 512
_SEED_BITS = 63


@dataclass(frozen=True)
class DrawCall:
    """What images must have in common to be drawn in one batch. None: the pipeline's default."""

    drawing: Drawing
    width: int
    """In pixels."""
    height: int
    steps: int | None = None
    guidance_scale: float | None = None
    strength: float | None = None
    is_negative: bool = False
    """Whether there are negative prompts."""


class ImageGenerationStages(DiffusionStages):
    """One input gives n samples, each of which is an image with a seed of its own.

    With a seed in the request an image is drawn alone: the last bits of floating point depend on
    what shares a batch, and a seed is there to repeat an image exactly.
    """

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.pipe = model

    @property
    @abstractmethod
    def native(self) -> tuple[int, int]:
        """Width and height that the model was made for, in pixels."""

    @abstractmethod
    def probe_call(self, side: int) -> DrawCall:
        """A few steps of an image of about this many pixels a side."""

    def options(self, parameters: Mapping[str, Any]) -> DrawingOptions:
        return msgspec.convert(parameters, DrawingOptions)

    def check_steps(self, options: DrawingOptions) -> None:
        """Raise `InputError` for more steps than the noise was divided into."""
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
        """The images that a request asks for. With `extras` that each of them needs."""
        given = options.seed
        seeds = [
            secrets.randbits(_SEED_BITS) if given is None else given + index
            for index in range(options.n)
        ]
        return [
            Sample(
                {},
                extras={**extras, "seed": seed, "partial_images": options.partial_images},
                call=call,
                alone=given is not None,
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
        """The finished image of a sample's output, as a PIL image. Raises `InputError`."""
        if output.get("flagged"):
            raise InputError(
                "The model's own safety checker has withheld an image. Change the prompt, or draw "
                "with another seed.",
                field="prompt",
            )
        return to_picture(output["pixels"])

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Images:
        options = self.options(parameters)
        pictures = [self.picture(output) for output in outputs]
        files = [encode(one, options.output_format, options.quality) for one in pictures]
        return Images(files, *pictures[0].size)

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        return {"images": 1}

    def writer(self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]) -> EventWriter:
        head = msgspec.convert(finishing, StreamHead)
        return EventWriter(self.options(parameters), head, self.picture)


def refuse_given(
    item: Mapping[str, Any], options: DrawingOptions, fields: Sequence[str], why: str
) -> None:
    """Raise `InputError` for the first of these fields that is given."""
    for field in fields:
        given = item.get(field) if field in item else getattr(options, field, None)
        if given is not None:
            raise InputError(f"'{field}' cannot be taken: {why}", field=field)


def generators(samples: Sequence[Sample]) -> Any:
    """torch's generators of the samples' seeds: on the CPU, so that a seed means the same anywhere.

    One alone is not put into a list, which is how diffusers' users call a pipeline.
    """
    import torch

    made = [torch.Generator("cpu").manual_seed(sample.extras["seed"]) for sample in samples]
    return made[0] if len(made) == 1 else made


def shown_rows(samples: Sequence[Sample], step: int, steps: int) -> list[int]:
    """The samples of which an unfinished image is shown after a step, counted from 0.

    Shown are as many as a stream asks for, evenly spaced over the steps and none twice.
    """
    if step + 1 >= steps:
        return []
    rows: list[int] = []
    for row, sample in enumerate(samples):
        count = sample.extras["partial_images"]
        if any(steps * nth // (count + 1) == step + 1 for nth in range(1, count + 1)):
            rows.append(row)
    return rows
