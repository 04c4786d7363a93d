"""Sizes and numbers of frames that a video model can draw, read from its pipeline's configuration.

A video VAE decodes the first latent frame into one frame, and each other one into `temporal
compression` frames. So the number of frames is a multiple of that, plus one. Widths and heights are
multiples of its spatial compression times the transformer's patch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stoker.models.diffusion.video.configs import Reading, VideoPipeline
from stoker.models.stages.base import InputError
from stoker.wire.video_request import MAX_FRAMES, MAX_PIXELS, MAX_SIDE, VideoSpec


@dataclass(frozen=True, kw_only=True)
class VideoShape:
    """Size, number of frames and frame rate of a video that the model can draw."""

    width: int
    height: int
    frames: int
    fps: int

    @property
    def seconds(self) -> float:
        return self.frames / self.fps


@dataclass(frozen=True, kw_only=True)
class VideoRules:
    """Limits of one model. Its own width, height, frames and fps are the defaults."""

    own: VideoShape
    multiple: tuple[int, int]
    """Numbers that must divide width and height."""
    frame_step: int
    """Step between valid numbers of frames. A video has `frame_step * k + 1` frames."""
    largest: tuple[int, int] = (MAX_SIDE, MAX_SIDE)
    most_frames: int = MAX_FRAMES
    fixed: bool = False
    """True if the model draws only its own size and number of frames."""
    prompt_tokens: int
    """Maximum number of tokens in a prompt. The pipeline would truncate longer prompts."""
    takes_rate: bool = False
    """True if the pipeline accepts the frames per second."""

    def shape(self, spec: VideoSpec) -> VideoShape:
        """Returns the requested video, with the nearest valid number of frames. Raises
        `InputError`.
        """
        width, height = self._size(spec)
        fps = spec.fps or self.own.fps
        return VideoShape(width=width, height=height, frames=self._frames(spec, fps), fps=fps)

    def _size(self, spec: VideoSpec) -> tuple[int, int]:
        if spec.width is None and spec.height is None:
            return self.own.width, self.own.height
        if spec.width is None or spec.height is None:
            raise _refusal("size", "Send both the width and the height, or neither.")
        size = spec.width, spec.height
        if self.fixed and size != (self.own.width, self.own.height):
            raise _refusal(
                "size",
                f"This model makes videos of {self.own.width}x{self.own.height} only, "
                f"not {_written(size)}.",
            )
        nearest = self._nearest(size)
        if size not in nearest:
            raise _refusal(
                "size",
                f"This model cannot make videos of {_written(size)}. The width must be a "
                f"multiple of {self.multiple[0]} up to {self.largest[0]}, and the height a "
                f"multiple of {self.multiple[1]} up to {self.largest[1]}. Nearest: "
                f"{' or '.join(map(_written, nearest))}.",
            )
        return size

    def _nearest(self, size: tuple[int, int]) -> list[tuple[int, int]]:
        """Returns the valid sizes just below and just above, or one size if both are equal."""
        sides = [
            (
                _within(side // step, most // step) * step,
                _within(-(-side // step), most // step) * step,
            )
            for side, step, most in zip(size, self.multiple, self.largest, strict=True)
        ]
        (narrow, wide), (low, high) = sides
        return list(dict.fromkeys([(narrow, low), (wide, high)]))

    def _frames(self, spec: VideoSpec, fps: int) -> int:
        if spec.num_frames is not None:
            return self._allowed(spec.num_frames, "num_frames", fps)
        if spec.seconds is not None:
            return self._allowed(spec.seconds * fps, "seconds", fps)
        return self.own.frames

    def _allowed(self, frames: float, field: str, fps: int) -> int:
        """Returns the nearest valid number of frames. Of two equally near numbers, the larger one
        is used.
        """
        allowed = max(0, math.floor((frames - 1) / self.frame_step + 0.5)) * self.frame_step + 1
        if self.fixed and allowed != self.own.frames:
            raise _refusal(
                field,
                f"This model makes videos of {self.own.frames} frames only: "
                f"{self.own.frames / fps:g} seconds at {fps} frames per second.",
            )
        if allowed > self.most_frames:
            raise _refusal(
                field,
                f"This model makes at most {self.most_frames} frames: "
                f"{self.most_frames / fps:g} seconds at {fps} frames per second.",
            )
        return allowed


def check_amount(shape: VideoShape) -> None:
    """Raises `InputError` if the video would not fit in memory."""
    pixels = shape.width * shape.height * shape.frames
    if pixels > MAX_PIXELS:
        raise _refusal(
            "seconds",
            f"{shape.frames} frames of {shape.width}x{shape.height} have {pixels:,} "
            f"pixels; the limit is {MAX_PIXELS:,}. Request fewer seconds or a smaller "
            "size.",
        )


def rules_of(read: Reading) -> VideoRules:
    """Returns the rules of a pipeline of one of the families, read from its files.

    Raises KeyError, OSError and ValueError if the files are invalid.
    """
    pipe = VideoPipeline(read)
    return _FAMILIES[pipe.name](pipe)


def _wan(pipe: VideoPipeline) -> VideoRules:
    """Returns the rules of Wan 2.1 and 2.2. The small model of 2.2 expands time steps and has a
    different size and rate.
    """
    transformer, vae = pipe.component("transformer", "transformer_2"), pipe.component("vae")
    patch_frames, patch_height, patch_width = transformer["patch_size"]
    spatial, temporal = vae["scale_factor_spatial"], vae["scale_factor_temporal"]
    positions = transformer["rope_max_seq_len"]
    multiple = _even(spatial * patch_width), _even(spatial * patch_height)
    most_frames = (positions * patch_frames - 1) * temporal + 1
    default = pipe.call
    shape = (
        VideoShape(width=1280, height=704, frames=121, fps=24)
        if pipe.setting("expand_timesteps")
        else VideoShape(
            width=default["width"], height=default["height"], frames=default["num_frames"], fps=16
        )
    )
    return VideoRules(
        own=shape,
        multiple=multiple,
        frame_step=temporal,
        largest=(min(MAX_SIDE, positions * multiple[0]), min(MAX_SIDE, positions * multiple[1])),
        most_frames=_last(min(MAX_FRAMES, most_frames), temporal),
        prompt_tokens=default["max_sequence_length"],
    )


def _ltx(pipe: VideoPipeline) -> VideoRules:
    transformer, vae = pipe.component("transformer"), pipe.component("vae")
    halvings = 2 ** sum(vae["spatio_temporal_scaling"])
    spatial = vae["spatial_compression_ratio"] or vae["patch_size"] * halvings
    # The pipeline requires multiples of 32 for any VAE.
    multiple = math.lcm(32, spatial * transformer["patch_size"])
    compressed = vae["temporal_compression_ratio"] or vae["patch_size_t"] * halvings
    temporal = compressed * transformer["patch_size_t"]
    default = pipe.call
    return VideoRules(
        own=VideoShape(
            width=default["width"],
            height=default["height"],
            frames=default["num_frames"],
            fps=default["frame_rate"],
        ),
        multiple=(multiple, multiple),
        frame_step=temporal,
        most_frames=_last(MAX_FRAMES, temporal),
        prompt_tokens=default["max_sequence_length"],
        takes_rate=True,
    )


def _cogvideox(pipe: VideoPipeline) -> VideoRules:
    """Returns the rules of CogVideoX 1.0 and of 1.5, which has patches in time.

    Its VAE decodes two latent frames at a time. It returns a single frame for the first one only if
    the number of latent frames is odd. Therefore the step is doubled.
    """
    transformer, vae = pipe.component("transformer"), pipe.component("vae")
    spatial = 2 ** (len(vae["block_out_channels"]) - 1)
    newer = transformer["patch_size_t"] is not None
    multiple = math.lcm(8, spatial * transformer["patch_size"])
    trained = transformer["sample_width"] * spatial, transformer["sample_height"] * spatial
    # The sample size of 1.5 is the size of its position table. These are the sizes that it was made
    # for.
    width, height = (min(trained[0], 1360), min(trained[1], 768)) if newer else trained
    step = 2 * vae["temporal_compression_ratio"]
    return VideoRules(
        own=VideoShape(
            width=width // multiple * multiple,
            height=height // multiple * multiple,
            frames=transformer["sample_frames"],
            fps=16 if newer else 8,
        ),
        multiple=(multiple, multiple),
        frame_step=step,
        largest=(min(MAX_SIDE, trained[0]), min(MAX_SIDE, trained[1]))
        if newer
        else (MAX_SIDE, MAX_SIDE),
        most_frames=_last(MAX_FRAMES, step),
        # Learned positions are valid only for their original size.
        fixed=transformer["use_learned_positional_embeddings"],
        prompt_tokens=transformer["max_text_seq_length"],
    )


_FAMILIES: Mapping[str, Callable[[VideoPipeline], VideoRules]] = {
    "WanPipeline": _wan,
    "WanImageToVideoPipeline": _wan,
    "LTXPipeline": _ltx,
    "LTXImageToVideoPipeline": _ltx,
    "CogVideoXPipeline": _cogvideox,
    "CogVideoXImageToVideoPipeline": _cogvideox,
}


def _even(side: int) -> int:
    """Returns a multiple of two, because 4:2:0 halves both sides."""
    return math.lcm(2, side)


def _last(most: int, step: int) -> int:
    return (most - 1) // step * step + 1


def _within(count: int, most: int) -> int:
    return min(max(1, count), most)


def _written(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _refusal(field: str, message: str) -> InputError:
    return InputError(message, field=field, of_item=False)
