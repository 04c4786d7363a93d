"""Requests for images: OpenAI's fields, and diffusers' names for the others."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    WithJsonSchema,
    model_validator,
)

from stoker.inference.openai import hub
from stoker.inference.openai.sampling import ModelRequest
from stoker.media.media import Media
from stoker.models.tasks.base import refusal
from stoker.models.tasks.inputs import Image
from stoker.models.tasks.service_tier import TieredRequest
from stoker.wire.image_answer import ImageFormat

MIN_SIDE, MAX_SIDE = 8, 2048
MAX_PROMPT_CHARS = 32_000
MAX_IMAGES = 10
_WRITTEN = re.compile(r"(\d{1,5})x(\d{1,5})")


def _pair(value: Any) -> Any:
    """Returns width and height, or None for the model's own."""
    if value is None or value == "auto":
        return None
    sides = cast("list[Any]", value) if isinstance(value, list) else []
    if isinstance(value, str) and (written := _WRITTEN.fullmatch(value.strip())):
        sides = [int(side) for side in written.groups()]
    whole = len(sides) == 2 and all(type(side) is int for side in sides)
    if not whole or not all(MIN_SIDE <= side <= MAX_SIDE for side in sides):
        raise ValueError(
            f"must be 'auto', '<width>x<height>' or [width, height], each from {MIN_SIDE} to "
            f"{MAX_SIDE} pixels"
        )
    return tuple(sides)


Side = Annotated[int, Field(ge=MIN_SIDE, le=MAX_SIDE)]
Size = Annotated[
    tuple[Side, Side] | None,
    BeforeValidator(_pair),
    WithJsonSchema(
        {
            "description": "`<width>x<height>` or `[width, height]` in pixels, such as `256x256`, "
            "`512x512`, `1024x1024`, `1792x1024` or `1024x1792`. `auto`: the model's own "
            "size, or the image's size for an edit. A size that the model cannot draw is "
            "rejected, and the error names the nearest one.",
            "anyOf": [
                {"type": "string", "maxLength": 11, "pattern": r"^(auto|[0-9]{1,5}x[0-9]{1,5})$"},
                {
                    "type": "array",
                    "items": {"type": "integer", "minimum": MIN_SIDE, "maximum": MAX_SIDE},
                    "minItems": 2,
                    "maxItems": 2,
                },
                {"type": "null"},
            ],
        }
    ),
]


def _only(value: Any) -> Any:
    """Returns the item of a list of length one: forms send `image[]`."""
    if isinstance(value, list):
        images = cast("list[Any]", value)
        if len(images) != 1:
            raise ValueError(f"must be one image, not {len(images)}: the models edit one at a time")
        return images[0]
    return value


def _sized(given: dict[str, Any]) -> dict[str, Any]:
    """Converts Hugging Face's sides of an image to our `size`."""
    body = dict(given)
    target = body.pop("target_size", None)
    sides: dict[str, Any] = cast("dict[str, Any]", target) if isinstance(target, dict) else {}
    if target is not None and not {"width", "height"} >= set(sides) > set():
        raise refusal("must be an object with 'width' and 'height'", "target_size")
    sides = sides | {name: body.pop(name) for name in ("width", "height") if name in body}
    if all(side is None for side in sides.values()):
        return body
    if "size" in body:
        raise refusal("is given twice: 'width' and 'height' mean the same", "size")
    for name in ("width", "height"):
        side = sides.get(name)
        if type(side) is not int or not MIN_SIDE <= side <= MAX_SIDE:
            raise refusal(
                f"must be from {MIN_SIDE} to {MAX_SIDE} pixels, and both sides are needed", name
            )
    return body | {"size": [sides["width"], sides["height"]]}


class ImageGenerationRequest(TieredRequest, ModelRequest):
    """Request for images. Fields with the default null use the model's own value."""

    checks_spelling = True

    prompt: str | None = Field(
        default=None,
        max_length=MAX_PROMPT_CHARS,
        description="Description of the image. Models that draw without a text accept no prompt.",
    )
    negative_prompt: str | None = Field(
        default=None, max_length=MAX_PROMPT_CHARS, description="Content to avoid in the image."
    )
    n: int | None = Field(
        default=None, ge=1, le=MAX_IMAGES, description="Number of images. Default: 1."
    )
    size: Size = None
    num_inference_steps: int | None = Field(
        default=None,
        ge=1,
        le=1000,
        description="Number of denoising steps. More steps take longer.",
    )
    guidance_scale: float | None = Field(
        default=None, ge=0, le=100, description="How closely the image follows the prompt."
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        le=2**63 - 1,
        description="The same seed draws the same image again on the same machine. Of several "
        "images, each uses the next number as its seed. Default: a random seed.",
    )
    output_format: ImageFormat | None = Field(default=None, description="Default: png.")
    output_compression: int | None = Field(
        default=None, ge=0, le=100, description="The quality of jpeg and webp; default: 100."
    )
    response_format: Literal["url", "b64_json"] | None = Field(
        default=None,
        description="Default: `url`, a link that expires. Default for a stream: `b64_json`.",
    )
    stream: bool | None = Field(
        default=None, description="Answer in server-sent events, with `partial_images` among them."
    )
    partial_images: int | None = Field(
        default=None, ge=0, le=3, description="Number of unfinished images to send in a stream."
    )
    background: Literal["opaque", "auto"] | None = None
    quality: Literal["auto", "standard"] | None = Field(
        default=None, description="`num_inference_steps` controls the quality instead."
    )
    moderation: Literal["auto", "low"] | None = Field(
        default=None, description="Only a model's own safety checker moderates images."
    )
    user: str | None = Field(
        default=None,
        max_length=512,
        description="End user of the call. All calls of one user may go to the same version.",
    )
    safety_identifier: str | None = Field(default=None, max_length=512, description="Not used.")

    refused: ClassVar[dict[str, str]] = {
        "style": "is not supported. Describe the style in the prompt",
        "complexity": "is not supported. Set 'num_inference_steps'",
        "frame_count": "is not supported. Images have one frame",
        "frame_duration_ms": "is not supported. Images have one frame",
        "svg": "is not supported. Images are png, jpeg or webp",
    }
    """Maps known fields that are not supported here to the reason."""

    inputs_field: ClassVar[str] = "prompt"
    """Field that holds `inputs` of Hugging Face's form."""
    _is_file: bool = False

    @model_validator(mode="wrap")
    @classmethod
    def _of_the_hub(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Accepts Hugging Face's form, with the image itself as the answer."""
        if not hub.is_asked(data):
            return handler(data)
        known = {*cls.model_fields, "width", "height", "target_size"}
        body = cast("dict[str, Any]", hub.unnested(data, cls.inputs_field, known, cls.refused))
        made = handler(_sized(body))
        if made.response_format is None and not made.stream:
            if made.count > 1:
                raise refusal(
                    "must be 1 without 'response_format', because the answer is the image", "n"
                )
            made._is_file = True
        return made

    @model_validator(mode="before")
    @classmethod
    def _honoured(cls, data: Any) -> Any:
        fields = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        for name, why in cls.refused.items():
            # OpenAI's client sends an object in a form field by field.
            if fields.get(name) is not None or any(key.startswith(f"{name}[") for key in fields):
                raise refusal(why, name)
        return cast("Any", data)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.output_compression is not None and self.output_format in (None, "png"):
            raise refusal("needs 'output_format': 'jpeg' or 'webp'", "output_compression")
        if self.stream and self.count > 1:
            raise refusal("must be 1 for a stream", "n")
        if self.stream and self.response_format == "url":
            raise refusal("must be 'b64_json' for a stream", "response_format")
        if self.partial_images and not self.stream:
            raise refusal("needs 'stream': true", "partial_images")
        return self

    @property
    def is_file(self) -> bool:
        """True if the answer is the image itself."""
        return self._is_file

    @property
    def count(self) -> int:
        return self.n or 1

    @property
    def form(self) -> ImageFormat:
        return self.output_format or "png"

    def media(self) -> Iterator[tuple[str, Media]]:
        yield from ()

    def item(self) -> dict[str, Any]:
        """Returns the input of the drawing."""
        return {"prompt": self.prompt, "negative_prompt": self.negative_prompt}

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters for the replica's `DrawingOptions`."""
        values: dict[str, Any] = {
            "n": self.n,
            "size": self.size,
            "steps": self.num_inference_steps,
            "guidance_scale": self.guidance_scale,
            "seed": self.seed,
            "output_format": self.output_format,
            "quality": self.output_compression,
            "partial_images": self.partial_images,
        }
        return {name: value for name, value in values.items() if value is not None}


class ImageEditRequest(ImageGenerationRequest):
    inputs_field: ClassVar[str] = "image"

    image: Annotated[Image, BeforeValidator(_only)] = Field(description="The image to change.")
    mask: Image | None = Field(
        default=None,
        description="Mask of the image's size that marks the area to change. Transparent pixels "
        "are redrawn, or white pixels if none are transparent. The rest stays unchanged.",
    )
    strength: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description=(
            "Strength of the change to the image or to the masked area; 1: complete redraw."
        ),
    )
    input_fidelity: Literal["low"] | None = Field(
        default=None, description="`strength` controls the fidelity instead."
    )

    refused: ClassVar[dict[str, str]] = {
        **ImageGenerationRequest.refused,
        "markup": "is not supported. Use 'mask' to mark the area to change",
    }

    def media(self) -> Iterator[tuple[str, Media]]:
        yield "image", self.image
        if self.mask is not None:
            yield "mask", self.mask

    def item(self) -> dict[str, Any]:
        return {**super().item(), "image": self.image, "mask": self.mask}

    def parameters(self) -> dict[str, Any]:
        strength = {} if self.strength is None else {"strength": self.strength}
        return super().parameters() | strength
