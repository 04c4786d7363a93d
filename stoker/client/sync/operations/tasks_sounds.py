# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of sounds tasks, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, overload

from ... import params, results
from ...media import Media
from ..api import Resource


class SoundTasks(Resource):
    @overload
    def audio_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media | Sequence[float] | Mapping[str, Any],
        *,
        wait: int | None = None,
        **fields: Unpack[params.AudioClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    def audio_classification(
        self,
        inputs: Sequence[Media | Sequence[float] | Mapping[str, Any]],
        *,
        wait: int | None = None,
        **fields: Unpack[params.AudioClassificationParams],
    ) -> list[list[results.Label]]: ...

    def audio_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/audio`: Classify recordings."""
        return self._api.result(
            "/v1/classifications/audio", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def zero_shot_audio_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        audio: Media | Sequence[float] | Mapping[str, Any],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotAudioClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    def zero_shot_audio_classification(
        self,
        audio: Sequence[Media | Sequence[float] | Mapping[str, Any]],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotAudioClassificationParams],
    ) -> list[list[results.Label]]: ...

    def zero_shot_audio_classification(
        self, audio: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/zero-shot/audio`: Classify recordings by your own
        labels.
        """
        return self._api.result(
            "/v1/classifications/zero-shot/audio",
            {"audio": audio, **fields},
            media="audio",
            wait=wait,
        )

    @overload
    def video_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.VideoClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    def video_classification(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.VideoClassificationParams],
    ) -> list[list[results.Label]]: ...

    def video_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/video`: Classify videos."""
        return self._api.result(
            "/v1/classifications/video", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )
