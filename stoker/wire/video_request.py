"""Request to a model that makes video, and its answer. The gateway imports this module, too."""

from typing import Annotated

import msgspec

MIN_SIDE, MAX_SIDE = 16, 4096
"""Minimum and maximum width and height of a video in pixels."""
MAX_FRAMES = 1025
MAX_SECONDS = 120.0
MAX_FPS = 60
MAX_STEPS = 200
MAX_GUIDANCE = 50.0
MAX_SEED = (1 << 63) - 1
MAX_PIXELS = 256_000_000
"""Maximum pixels of all frames of a video together. Each takes 12 bytes during decoding."""

Side = Annotated[int, msgspec.Meta(ge=MIN_SIDE, le=MAX_SIDE)]


class VideoSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Parameters of a video, in addition to its item `{"prompt": str, "image": Media | None}`.

    None means the model's own value.
    """

    width: Side | None = None
    height: Side | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=MAX_FRAMES)] | None = None
    """Number of frames. Takes precedence over `seconds`."""
    fps: Annotated[int, msgspec.Meta(ge=1, le=MAX_FPS)] | None = None
    """Frame rate. LTX draws for that rate. Other families use it only as the display rate."""
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, msgspec.Meta(ge=0, le=MAX_GUIDANCE)] | None = None
    negative_prompt: str | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None


class VideoAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished video. The answer contains it as MessagePack."""

    video: bytes
    """MP4: H.264, 4:2:0, no sound, playable while it is downloaded."""
    thumbnail: bytes
    """WebP of the middle frame."""
    width: int
    height: int
    frames: int
    fps: int
    seconds: float
    """Actual duration in seconds: frames / fps."""
