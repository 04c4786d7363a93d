# `python -m tools.client_api` writes this file.
"""Parameters of sounds tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict


class AudioClassificationParams(TypedDict, total=False):
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int
    """Number of results, best first."""


class VideoClassificationParams(TypedDict, total=False):
    frame_sampling_rate: int | None
    """Use every n-th frame from the start of the clip. If the clip is too short, its last
    frame is repeated. Default: frames spread over the whole clip.
    """
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    num_frames: int | None
    """Number of frames to read. Default: the model's own."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int
    """Number of results, best first."""


class ZeroShotAudioClassificationParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    """Labels to choose from: a list, or one comma-separated string."""
    hypothesis_template: str
    """Sentence for each label; the label replaces {}."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
