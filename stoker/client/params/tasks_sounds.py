# `python -m tools.client_api` writes this file.
"""Parameters of sounds tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict


class AudioClassificationParams(TypedDict, total=False):
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    timeout: float | None
    top_k: int


class VideoClassificationParams(TypedDict, total=False):
    frame_sampling_rate: int | None
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    num_frames: int | None
    timeout: float | None
    top_k: int


class ZeroShotAudioClassificationParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    hypothesis_template: str
    model: str | None
    timeout: float | None
