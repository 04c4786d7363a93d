"""What is asked of a model that makes video, and what comes back; the gateway imports it too."""

from typing import Annotated

import msgspec

MIN_SIDE, MAX_SIDE = 16, 4096
"""Width and height of a video, pixels."""
MAX_FRAMES = 1025
MAX_SECONDS = 120.0
MAX_FPS = 60
MAX_STEPS = 200
MAX_GUIDANCE = 50.0
MAX_SEED = (1 << 63) - 1
MAX_PIXELS = 256_000_000
"""Of all frames of a video together: each takes 12 bytes while it is decoded."""

Side = Annotated[int, msgspec.Meta(ge=MIN_SIDE, le=MAX_SIDE)]


class VideoSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of a video, beside its item `{"prompt": str, "image": Media | None}`.

    What is left out is the model's own.
    """

    width: Side | None = None
    height: Side | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)] | None = None
    num_frames: Annotated[int, msgspec.Meta(ge=1, le=MAX_FRAMES)] | None = None
    """Goes before `seconds`."""
    fps: Annotated[int, msgspec.Meta(ge=1, le=MAX_FPS)] | None = None
    """LTX draws for that rate; with the other families it is how fast the frames are shown."""
    num_inference_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, msgspec.Meta(ge=0, le=MAX_GUIDANCE)] | None = None
    negative_prompt: str | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=MAX_SEED)] | None = None


class VideoAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished video: the answer's bytes are its MessagePack."""

    video: bytes
    """MP4: H.264, 4:2:0, no sound, playable while it is loaded."""
    thumbnail: bytes
    """WebP: the frame in the middle."""
    width: int
    height: int
    frames: int
    fps: int
    seconds: float
    """How long it really is: frames / fps."""
