# `python -m tools.client_api` writes this file.
"""Operations of images tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Any, Unpack, overload

from ... import params, results
from ...media import Media
from ..api import AsyncResource


class AsyncImageTasks(AsyncResource):
    @overload
    async def image_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    async def image_classification(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageClassificationParams],
    ) -> list[list[results.Label]]: ...

    async def image_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/image`: Classify images."""
        return await self._api.result(
            "/v1/classifications/image", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    async def zero_shot_image_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        image: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotImageClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    async def zero_shot_image_classification(
        self,
        image: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotImageClassificationParams],
    ) -> list[list[results.Label]]: ...

    async def zero_shot_image_classification(
        self, image: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/zero-shot/image`: Classify images by your own labels."""
        return await self._api.result(
            "/v1/classifications/zero-shot/image",
            {"image": image, **fields},
            media="image",
            wait=wait,
        )

    @overload
    async def object_detection(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ObjectDetectionParams],
    ) -> list[results.Detection]: ...

    @overload
    async def object_detection(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ObjectDetectionParams],
    ) -> list[list[results.Detection]]: ...

    async def object_detection(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/detections/object`: Detect objects."""
        return await self._api.result(
            "/v1/detections/object", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    async def zero_shot_object_detection(  # pyright: ignore[reportOverlappingOverload]
        self,
        image: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotObjectDetectionParams],
    ) -> list[results.Detection]: ...

    @overload
    async def zero_shot_object_detection(
        self,
        image: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotObjectDetectionParams],
    ) -> list[list[results.Detection]]: ...

    async def zero_shot_object_detection(
        self, image: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/detections/zero-shot/object`: Detect objects by your own labels."""
        return await self._api.result(
            "/v1/detections/zero-shot/object", {"image": image, **fields}, media="image", wait=wait
        )

    @overload
    async def depth_estimation(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.DepthEstimationParams],
    ) -> results.Depth: ...

    @overload
    async def depth_estimation(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.DepthEstimationParams],
    ) -> list[results.Depth]: ...

    async def depth_estimation(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/depth`: Estimate depth."""
        return await self._api.result(
            "/v1/images/depth", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    async def image_feature_extraction(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageFeatureExtractionParams],
    ) -> list[float]: ...

    @overload
    async def image_feature_extraction(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageFeatureExtractionParams],
    ) -> list[list[float]]: ...

    async def image_feature_extraction(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/feature-extraction`: Extract features of images."""
        return await self._api.result(
            "/v1/images/feature-extraction", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    async def mask_generation(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.MaskGenerationParams],
    ) -> results.Masks: ...

    @overload
    async def mask_generation(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.MaskGenerationParams],
    ) -> list[results.Masks]: ...

    async def mask_generation(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/masks`: Generate masks."""
        return await self._api.result(
            "/v1/images/masks", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    async def image_segmentation(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageSegmentationParams],
    ) -> results.Segments: ...

    @overload
    async def image_segmentation(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageSegmentationParams],
    ) -> list[results.Segments]: ...

    async def image_segmentation(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/segmentation`: Segment images."""
        return await self._api.result(
            "/v1/images/segmentation", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    async def image_to_text(  # pyright: ignore[reportOverlappingOverload]
        self, inputs: Media, *, wait: int | None = None, **fields: Unpack[params.ImageToTextParams]
    ) -> list[results.Caption]: ...

    @overload
    async def image_to_text(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageToTextParams],
    ) -> list[list[results.Caption]]: ...

    async def image_to_text(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/to-text`: Describe images, or read their text."""
        return await self._api.result(
            "/v1/images/to-text", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    async def document_question_answering(
        self, *, wait: int | None = None, **fields: Unpack[params.DocumentQuestionAnsweringParams]
    ) -> list[results.DocumentAnswer] | list[list[results.DocumentAnswer]]:
        """`POST /v1/question-answering/document`: Answer questions about pages."""
        return await self._api.result(
            "/v1/question-answering/document", fields, media="image", wait=wait
        )

    async def visual_question_answering(
        self, *, wait: int | None = None, **fields: Unpack[params.VisualQuestionAnsweringParams]
    ) -> list[results.Label] | list[list[results.Label]]:
        """`POST /v1/question-answering/visual`: Answer questions about images."""
        return await self._api.result(
            "/v1/question-answering/visual", fields, media="image", wait=wait
        )
