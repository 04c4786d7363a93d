"""Families of diffusers pipelines that draw images from texts, and their differences.

A deployment loads one pipeline. The other pipelines of its family are built from the same
components.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.wire.image_answer import Drawing

MAX_SIDE = 2048
"""Maximum width and height of a generated image in pixels."""


class Family:
    """Stable Diffusion 1 and 2: a U-Net and one text encoder."""

    classes: Mapping[Drawing, str] = {
        "text": "StableDiffusionPipeline",
        "image": "StableDiffusionImg2ImgPipeline",
        "mask": "StableDiffusionInpaintPipeline",
    }
    takes_negative = True
    """True if the guidance includes a negative prompt."""

    def multiple(self, pipe: Any) -> int:
        """Returns the number of pixels that must divide width and height."""
        return math.lcm(8, pipe.vae_scale_factor)

    def native(self, pipe: Any) -> tuple[int, int]:
        """Returns the width and height in pixels that the model was trained for."""
        size = pipe.unet.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        return width * pipe.vae_scale_factor, height * pipe.vae_scale_factor

    def largest_side(self, pipe: Any) -> int:
        return MAX_SIDE

    def drawings(self, pipe: Any) -> Sequence[Drawing]:
        """Returns the kinds of input that the model can draw from, its main kind first."""
        if self._channels_in(pipe) != pipe.vae.config.latent_channels:
            # An inpainting U-Net reads the mask in addition to the image, and needs both.
            return ["mask"]
        return sorted(self.classes, key=lambda kind: self.classes[kind] != type(pipe).__name__)

    def ignores_guidance(self, pipe: Any) -> bool:
        return False

    def guides(self, pipe: Any, scale: float) -> bool:
        """Returns True if the model runs with and without the prompt at this guidance scale."""
        return scale > 1 and getattr(pipe.unet.config, "time_cond_proj_dim", None) is None

    def readers(self, pipe: Any) -> dict[str, int]:
        """Returns the names of the tokenizers, with the maximum number of prompt tokens of each.

        The encoder with the highest limit counts: next to T5, the CLIP encoders only summarise a
        prompt.
        """
        tokenizers = {name: getattr(pipe, name, None) for name in ("tokenizer", "tokenizer_2")}
        return {
            name: tokenizer.model_max_length
            for name, tokenizer in tokenizers.items()
            if tokenizer is not None
        }

    def spatial(self, pipe: Any, latents: Any, width: int, height: int) -> Any:
        """Returns latents of shape (batch, channels, height, width)."""
        return latents

    def decode(self, pipe: Any, latents: Any, width: int, height: int) -> Any:
        """Returns pixels of shape (batch, 3, height, width), 0 to 1, decoded from latents between
        two steps.
        """
        import torch

        vae: Any = pipe.vae
        config: Any = vae.config
        with torch.no_grad():
            latents = self.spatial(pipe, latents, width, height)
            scaled = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0)
            mean, std = (getattr(config, f"latents_{name}", None) for name in ("mean", "std"))
            if mean is not None and std is not None:
                shift, spread = (
                    torch.tensor(values).view(1, -1, 1, 1).to(latents) for values in (mean, std)
                )
                scaled = scaled * spread + shift
            dtype = vae.dtype
            # Some autoencoders overflow in half precision. diffusers marks them with this setting.
            upcast = dtype == torch.float16 and getattr(config, "force_upcast", False)
            if upcast:
                vae.to(dtype=torch.float32)
            try:
                decoded = vae.decode(scaled.to(vae.dtype), return_dict=False)[0]
            finally:
                if upcast:
                    vae.to(dtype=dtype)
            return (decoded / 2 + 0.5).clamp(0, 1)

    def _channels_in(self, pipe: Any) -> int:
        return pipe.unet.config.in_channels


class StableDiffusionXL(Family):
    """Stable Diffusion XL: a larger U-Net and two text encoders."""

    classes = {
        "text": "StableDiffusionXLPipeline",
        "image": "StableDiffusionXLImg2ImgPipeline",
        "mask": "StableDiffusionXLInpaintPipeline",
    }


class StableDiffusion3(Family):
    """Stable Diffusion 3: a transformer, two CLIP encoders and an optional T5."""

    classes = {
        "text": "StableDiffusion3Pipeline",
        "image": "StableDiffusion3Img2ImgPipeline",
        "mask": "StableDiffusion3InpaintPipeline",
    }
    t5_tokens = 256

    def multiple(self, pipe: Any) -> int:
        return pipe.vae_scale_factor * pipe.transformer.config.patch_size

    def native(self, pipe: Any) -> tuple[int, int]:
        side = pipe.transformer.config.sample_size * pipe.vae_scale_factor
        return side, side

    def largest_side(self, pipe: Any) -> int:
        config = pipe.transformer.config
        return min(MAX_SIDE, config.pos_embed_max_size * config.patch_size * pipe.vae_scale_factor)

    def guides(self, pipe: Any, scale: float) -> bool:
        return scale > 1

    def readers(self, pipe: Any) -> dict[str, int]:
        if pipe.text_encoder_3 is not None:
            return {"tokenizer_3": self.t5_tokens}
        return super().readers(pipe)

    def _channels_in(self, pipe: Any) -> int:
        return pipe.transformer.config.in_channels


class Flux(Family):
    """Flux: a transformer with distilled guidance, CLIP and T5."""

    classes = {
        "text": "FluxPipeline",
        "image": "FluxImg2ImgPipeline",
        "mask": "FluxInpaintPipeline",
    }
    takes_negative = False
    t5_tokens = 512
    latent_side = 128

    def multiple(self, pipe: Any) -> int:
        return pipe.vae_scale_factor * 2

    def native(self, pipe: Any) -> tuple[int, int]:
        side = self.latent_side * pipe.vae_scale_factor
        return side, side

    def ignores_guidance(self, pipe: Any) -> bool:
        return not pipe.transformer.config.guidance_embeds

    def guides(self, pipe: Any, scale: float) -> bool:
        return False

    def readers(self, pipe: Any) -> dict[str, int]:
        return {"tokenizer_2": self.t5_tokens}

    def spatial(self, pipe: Any, latents: Any, width: int, height: int) -> Any:
        return pipe._unpack_latents(latents, height, width, pipe.vae_scale_factor)

    def _channels_in(self, pipe: Any) -> int:
        # Each position of the transformer holds two by two latents.
        return pipe.transformer.config.in_channels // 4


FAMILIES: tuple[Family, ...] = (Family(), StableDiffusionXL(), StableDiffusion3(), Flux())
TEXT_CLASSES = tuple(family.classes["text"] for family in FAMILIES)
IMAGE_CLASSES = tuple(
    name for family in FAMILIES for kind, name in family.classes.items() if kind != "text"
)


def family_of(pipe: Any) -> Family:
    """Returns the family of a loaded pipeline, which must be one of the families' classes."""
    name = type(pipe).__name__
    return next(family for family in FAMILIES if name in family.classes.values())
