"""How much of one image, sound or video is decoded."""

import msgspec


class MediaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Ceilings for one item; what lies beyond one is refused, never cut."""

    image_pixels: int = 64_000_000
    """Most pixels of an image, or of one frame of a video: width times height.

    Pillow's own ceiling, 89 million, holds for images even where this one is higher.
    """
    audio_s: float = 1800
    """Longest sound, in seconds."""
    video_s: float = 600
    """Longest video, in seconds between its first and its last frame."""
    video_frames: int = 512
    """Most frames kept of one video."""
    video_pixels: int = 512_000_000
    """Most pixels of all frames kept of one video together, or of all images of one conversation;
    each takes three bytes."""
