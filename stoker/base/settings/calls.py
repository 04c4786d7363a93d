"""Limits of requests, and time limits of calls and replicas."""

from pydantic import Field
from pydantic_settings import BaseSettings

from stoker.base.media_limits import MediaLimits


class CallSettings(BaseSettings):
    """Limits of requests, and time limits of calls and replicas. Read by `Settings`."""

    body_limit_mib: int = Field(default=64, ge=1, le=4096, description="Largest request body, MiB.")
    json_limit_mib: int = Field(
        default=2,
        ge=1,
        le=4096,
        description="Maximum JSON in a request body, without inline media, MiB.",
    )
    list_limit: int = Field(
        default=256, ge=1, le=10_000, description="Maximum number of inputs in one request."
    )
    text_limit_chars: int = Field(
        default=1_000_000,
        ge=1,
        le=100_000_000,
        description="Longest single text input, characters.",
    )
    media_request_limit_mib: int = Field(
        default=256,
        ge=1,
        le=65_536,
        description="Maximum total size of the media in one request, MiB.",
    )
    image_limit_mpixels: float = Field(
        default=64, gt=0, le=89, description="Largest image or video frame, megapixels."
    )
    audio_limit_s: float = Field(
        default=1800, gt=0, le=86_400, description="Longest recording, seconds."
    )
    video_limit_s: float = Field(
        default=600, gt=0, le=86_400, description="Longest video, seconds."
    )
    video_limit_frames: int = Field(
        default=512,
        ge=1,
        le=10_000,
        description="Maximum number of frames that are kept of an input video.",
    )
    wait_default_s: float = Field(
        default=60,
        ge=0,
        le=3600,
        description="Longest time a request waits for a cold deployment, seconds.",
    )
    wait_max_s: float = Field(
        default=600,
        ge=0,
        le=3600,
        description="Upper limit of the `Prefer: wait=N` header, seconds.",
    )
    inference_timeout_s: float = Field(
        default=120,
        gt=0,
        le=3600,
        description="Longest inference on a loaded model, seconds.",
    )
    image_timeout_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description=(
            "Longest time without progress of an image generation, including its wait for"
            " a turn, seconds."
        ),
    )
    load_timeout_s: float = Field(
        default=600, gt=0, le=7200, description="Longest load of a replica, seconds."
    )
    stall_timeout_s: float = Field(
        default=180,
        gt=0,
        le=7200,
        description=(
            "A replica that makes no progress on its work for this long is replaced, seconds."
        ),
    )
    heartbeat_timeout_s: float = Field(
        default=15,
        gt=0,
        le=600,
        description="A replica that sends no heartbeat for this long is replaced, seconds.",
    )
    stop_grace_s: float = Field(
        default=20, ge=0, le=600, description="Time for work in flight at shutdown, seconds."
    )
    drain_s: float = Field(
        default=0,
        ge=0,
        le=600,
        description=(
            "Time after SIGTERM in which `/ready` fails and requests are still answered, seconds."
        ),
    )

    @property
    def media_limits(self) -> MediaLimits:
        return MediaLimits(
            image_pixels=int(self.image_limit_mpixels * 1e6),
            audio_s=self.audio_limit_s,
            video_s=self.video_limit_s,
            video_frames=self.video_limit_frames,
        )
