# `python -m tools.client_api` writes this file.
"""Parameters of media, from the OpenAPI document."""

from typing import Required, TypedDict

from ..media import Media


class VideoCreateParams(TypedDict, total=False):
    fps: int | None
    """Frames a second; default: the model's own."""
    guidance_scale: float | None
    """Higher values keep closer to the prompt."""
    input_reference: Media | None
    """Image that the video begins with: a file, a URL, a data URI, base64, an allowed path,
    or {"image_url": …}. If a video is sent, its first frame is used.
    """
    model: Required[str]
    """The deployment's model id."""
    negative_prompt: str | None
    """What to avoid."""
    num_inference_steps: int | None
    """Denoising steps; default: the model's own."""
    prompt: Required[str]
    """Description of the video."""
    seconds: float | None
    """Duration, seconds; default: the model's own. It is rounded to a number of frames that
    the model supports.
    """
    seed: int | None
    """Makes the video repeatable."""
    size: str | None
    """`<width>x<height>` in pixels; default: the model's own."""
