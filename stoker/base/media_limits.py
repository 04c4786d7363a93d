"""Limits on the decoding of one image, sound or video."""

import msgspec


class MediaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for one item. An item beyond a limit is rejected, never cut."""

    image_pixels: int = 64_000_000
    """Maximum pixels (width times height) of an image, or of one frame of a video.

    Pillow's own limit of 89 million pixels still applies to images if this one is higher.
    """
    audio_s: float = 1800
    """Maximum duration of a sound in seconds."""
    video_s: float = 600
    """Maximum time between the first and the last frame of a video, in seconds."""
    video_frames: int = 512
    """Maximum number of frames kept of one video."""
    video_pixels: int = 512_000_000
    """Maximum total pixels of all frames kept of one video, or of all images of one conversation.
    Each pixel uses three bytes.
    """
