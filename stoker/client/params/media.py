# `python -m tools.client_api` writes this file.
"""Parameters of media, from the OpenAPI document."""

from typing import Required, TypedDict

from ..media import Media


class VideoCreateParams(TypedDict, total=False):
    fps: int | None
    guidance_scale: float | None
    input_reference: Media | None
    model: Required[str]
    negative_prompt: str | None
    num_inference_steps: int | None
    prompt: Required[str]
    seconds: float | None
    seed: int | None
    size: str | None
