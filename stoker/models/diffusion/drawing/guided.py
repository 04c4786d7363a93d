"""Draws images from texts, from images, and from images with a mask."""

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.media.media import Media
from stoker.models.diffusion.drawing import sizes
from stoker.models.diffusion.drawing.base import (
    DrawCall,
    ImageGenerationStages,
    generators,
    refuse_given,
    shown_rows,
)
from stoker.models.diffusion.drawing.pipeline_families import FAMILIES, Family, family_of
from stoker.models.stages.base import InputError, Sample
from stoker.wire.image_answer import Drawing, DrawingOptions

if TYPE_CHECKING:
    from stoker.models.stages.watch import Watch

_NEEDS: dict[Drawing, str] = {
    "text": "a prompt alone",
    "image": "an image",
    "mask": "an image with a mask",
}
_PROBE_STEPS = 2


class DrawingStages(ImageGenerationStages):
    """Stages of the pipelines in stoker/models/diffusion/drawing/pipeline_families.py."""

    classes: ClassVar[tuple[str, ...]] = tuple(
        name for family in FAMILIES for name in family.classes.values()
    )

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.family: Family = family_of(model)
        self._drawings = self.family.drawings(model)
        self._pipes: dict[str, Any] = {type(model).__name__: model}
        self._readers = [
            (self._own_tokenizer(name), limit) for name, limit in self.family.readers(model).items()
        ]

    @property
    def native(self) -> tuple[int, int]:
        return self.family.native(self.pipe)

    def _own_tokenizer(self, name: str) -> Any:
        """Returns a separate tokenizer. The engine thread uses the pipeline's, and tokenizers are
        not thread-safe.
        """
        tokenizer: Any = getattr(self.pipe, name)
        return tokenizer.from_pretrained(str(self.folder / name), local_files_only=True)

    # --- preparing ---

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        options = self.options(parameters)
        self.check_steps(options)
        drawing = self._drawing(item)
        self._check_guidance(item, options, drawing)
        extras = self._texts(item)
        width, height = self._size(options, item, drawing, extras)
        self._check_strength(options, drawing)
        call = DrawCall(
            drawing=drawing,
            width=width,
            height=height,
            steps=options.steps,
            guidance_scale=options.guidance_scale,
            strength=options.strength,
            is_negative="negative_prompt" in extras,
        )
        return self.samples(options, call, extras)

    def probe_call(self, side: int) -> DrawCall:
        multiple = self.family.multiple(self.pipe)
        side = max(multiple, side // multiple * multiple)
        drawing = self._drawings[0]
        whole = None if drawing == "text" else 1.0
        return DrawCall(drawing, side, side, steps=_PROBE_STEPS, strength=whole)

    def probe(self, length: int, number: int = 0) -> Sample:
        from PIL import Image

        sample = super().probe(length, number)
        call: Any = sample.call
        size = (call.width, call.height)
        sample.extras["image"] = Image.new("RGB", size, "gray")
        sample.extras["mask"] = Image.new("L", size, "white")
        return sample

    def _drawing(self, item: Mapping[str, Any]) -> Drawing:
        drawing: Drawing = "text"
        if item.get("image") is not None:
            drawing = "image" if item.get("mask") is None else "mask"
        if drawing not in self._drawings:
            served = ", or ".join(_NEEDS[kind] for kind in self._drawings)
            raise InputError(
                f"This model cannot generate images from {_NEEDS[drawing]}. It accepts {served}.",
                field="mask" if drawing == "image" else "image",
            )
        return drawing

    def _texts(self, item: Mapping[str, Any]) -> dict[str, Any]:
        prompt: str = item.get("prompt") or ""
        negative: str | None = item.get("negative_prompt")
        if not prompt.strip():
            raise InputError(
                "'prompt' must not be empty: this model generates images from text.", field="prompt"
            )
        texts: dict[str, Any] = {"prompt": prompt, "tokens": self._count(prompt, "prompt")}
        if negative is not None:
            self._count(negative, "negative_prompt")
            texts["negative_prompt"] = negative
        return texts

    def _count(self, text: str, field: str) -> int:
        """Returns the number of tokens in a text. Raises `InputError` if the model would truncate
        it.
        """
        counts = [
            (len(tokenizer(text, truncation=False, verbose=False)["input_ids"]), limit)
            for tokenizer, limit in self._readers
        ]
        for count, limit in counts:
            if count > limit:
                raise InputError(
                    f"'{field}' has {count} tokens; this model reads at most {limit}. Shorten it.",
                    field=field,
                )
        return max((count for count, _ in counts), default=0)

    def _check_guidance(
        self, item: Mapping[str, Any], options: DrawingOptions, drawing: Drawing
    ) -> None:
        if self.family.ignores_guidance(self.pipe):
            refuse_given({}, options, ["guidance_scale"], "this model was made to work without it.")
        if item.get("negative_prompt") is None:
            return
        if not self.family.takes_negative:
            why = "this model has built-in guidance, which leaves no place for it."
            refuse_given(item, options, ["negative_prompt"], why)
        scale = self._given_or_default(options.guidance_scale, drawing, "guidance_scale")
        if not self.family.guides(self.pipe, scale):
            why = f"with a guidance scale of {scale:g} this model is not guided."
            refuse_given(item, options, ["negative_prompt"], why)

    def _check_strength(self, options: DrawingOptions, drawing: Drawing) -> None:
        if drawing == "text":
            return
        steps = self._given_or_default(options.steps, drawing, "num_inference_steps")
        strength = self._given_or_default(options.strength, drawing, "strength")
        if int(steps * strength) < 1:
            raise InputError(
                f"A 'strength' of {strength:g} with {steps} steps results in less than one "
                "step. Increase the strength or the number of steps.",
                field="strength",
            )

    def _size(
        self,
        options: DrawingOptions,
        item: Mapping[str, Any],
        drawing: Drawing,
        extras: dict[str, Any],
    ) -> tuple[int, int]:
        """Returns the size to draw. Puts the image and the mask into `extras`, resized to it."""
        bounds = sizes.Bounds(
            self.family.multiple(self.pipe), self.family.largest_side(self.pipe), self.native
        )
        if options.size:
            bounds.check(*options.size)
        if drawing == "text":
            return options.size or self.native
        image, mask = self._media(item)
        size = options.size or bounds.nearest(*image.size)
        extras["image"] = sizes.resized(image, size)
        if mask is not None:
            extras["mask"] = sizes.resized_mask(mask, size)
        return size

    def _media(self, item: Mapping[str, Any]) -> tuple[Any, Any]:
        from stoker.media.image import decode, decode_mask

        image_media: Media = item["image"]
        image: Any = self.decoded(image_media, lambda data: decode(data, self.limits), "image")
        given_mask: Media | None = item.get("mask")
        if given_mask is None:
            return image, None
        mask: Any = self.decoded(given_mask, lambda data: decode_mask(data, self.limits), "mask")
        if mask.size != image.size:
            raise InputError(
                f"The mask has {mask.width} by {mask.height} pixels, but the image has "
                f"{image.width} by {image.height}: both must have the same size.",
                field="mask",
            )
        if mask.getbbox() is None:
            raise InputError(
                "The mask selects no pixels. Make the pixels to redraw transparent or, in a "
                "mask without transparent pixels, white.",
                field="mask",
            )
        return image, mask

    # --- drawing ---

    def draw(
        self, pipe: Any, samples: Sequence[Sample], watch: "Watch"
    ) -> Sequence[Mapping[str, Any]]:
        call: Any = samples[0].call
        chosen = self._pipe(call.drawing)
        result = chosen(
            **self._inputs(chosen, call, samples),
            generator=generators(samples),
            output_type="pt",
            callback_on_step_end=self._callback(call, samples, watch),
        )
        flags = getattr(result, "nsfw_content_detected", None) or [False] * len(samples)
        # Copies, because a view would keep the whole batch in memory.
        return [
            {"pixels": pixels.float().cpu().clone(), "flagged": flag}
            for pixels, flag in zip(result.images, flags, strict=True)
        ]

    def picture(self, output: Mapping[str, Any]) -> Any:
        """Returns the finished image, with the original pixels outside the mask: the autoencoder
        would change them slightly.
        """
        picture = super().picture(output)
        if "mask" in output:
            picture = sizes.pasted(picture, output["image"], output["mask"])
        return picture

    def _pipe(self, drawing: Drawing) -> Any:
        """Returns the family's pipeline for a kind of drawing, built from the loaded pipeline's
        components.
        """
        import diffusers

        name = self.family.classes[drawing]
        if name not in self._pipes:
            library: Any = diffusers
            maker = {
                "text": library.AutoPipelineForText2Image,
                "image": library.AutoPipelineForImage2Image,
                "mask": library.AutoPipelineForInpainting,
            }[drawing]
            made = self._pipes[name] = maker.from_pipe(self.pipe)
            made.set_progress_bar_config(disable=True)
        return self._pipes[name]

    def _inputs(self, pipe: Any, call: DrawCall, samples: Sequence[Sample]) -> dict[str, Any]:
        def column(name: str) -> list[Any]:
            return [sample.extras[name] for sample in samples]

        chosen: dict[str, Any] = {
            "num_inference_steps": call.steps,
            "guidance_scale": call.guidance_scale,
            "strength": call.strength,
        }
        inputs = {name: value for name, value in chosen.items() if value is not None}
        inputs["prompt"] = column("prompt")
        if call.is_negative:
            inputs["negative_prompt"] = column("negative_prompt")
        if call.drawing != "text":
            inputs["image"] = column("image")
        if call.drawing == "mask":
            inputs["mask_image"] = column("mask")
        if "width" in inspect.signature(type(pipe).__call__).parameters:
            inputs |= {"width": call.width, "height": call.height}
        return inputs

    def _callback(self, call: DrawCall, samples: Sequence[Sample], watch: "Watch") -> Any:
        def stepped(
            pipe: Any, step: int, _timestep: Any, tensors: dict[str, Any]
        ) -> dict[str, Any]:
            watch.step((step + 1) / pipe.num_timesteps)
            for row in shown_rows(samples, step, pipe.num_timesteps):
                latents = tensors["latents"][row : row + 1]
                pixels = self.family.decode(pipe, latents, call.width, call.height)
                watch.part(row, {"pixels": pixels[0].float().cpu()})
            return {}

        return stepped

    def _given_or_default(self, given: float | None, drawing: Drawing, name: str) -> Any:
        """Returns the request's value of an option, or the default of the pipeline that draws."""
        import diffusers

        if given is not None:
            return given
        library: Any = diffusers
        pipeline = getattr(library, self.family.classes[drawing])
        return inspect.signature(pipeline.__call__).parameters[name].default
