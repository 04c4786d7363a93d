# `python -m tools.client_api` writes this file from its asynchronous twin.
"""Operations of images tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Any, Unpack, overload

from ... import params, results
from ...media import Media
from ..api import Resource


class ImageTasks(Resource):
    @overload
    def image_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    def image_classification(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageClassificationParams],
    ) -> list[list[results.Label]]: ...

    def image_classification(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/image`: Classify images."""
        return self._api.result(
            "/v1/classifications/image", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def zero_shot_image_classification(  # pyright: ignore[reportOverlappingOverload]
        self,
        image: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotImageClassificationParams],
    ) -> list[results.Label]: ...

    @overload
    def zero_shot_image_classification(
        self,
        image: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotImageClassificationParams],
    ) -> list[list[results.Label]]: ...

    def zero_shot_image_classification(
        self, image: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/classifications/zero-shot/image`: Classify images by your own labels."""
        return self._api.result(
            "/v1/classifications/zero-shot/image",
            {"image": image, **fields},
            media="image",
            wait=wait,
        )

    @overload
    def object_detection(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ObjectDetectionParams],
    ) -> list[results.Detection]: ...

    @overload
    def object_detection(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ObjectDetectionParams],
    ) -> list[list[results.Detection]]: ...

    def object_detection(self, inputs: object, *, wait: int | None = None, **fields: object) -> Any:
        """`POST /v1/detections/object`: Detect objects."""
        return self._api.result(
            "/v1/detections/object", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def zero_shot_object_detection(  # pyright: ignore[reportOverlappingOverload]
        self,
        image: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotObjectDetectionParams],
    ) -> list[results.Detection]: ...

    @overload
    def zero_shot_object_detection(
        self,
        image: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ZeroShotObjectDetectionParams],
    ) -> list[list[results.Detection]]: ...

    def zero_shot_object_detection(
        self, image: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/detections/zero-shot/object`: Detect objects by your own labels."""
        return self._api.result(
            "/v1/detections/zero-shot/object", {"image": image, **fields}, media="image", wait=wait
        )

    @overload
    def depth_estimation(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.DepthEstimationParams],
    ) -> results.Depth: ...

    @overload
    def depth_estimation(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.DepthEstimationParams],
    ) -> list[results.Depth]: ...

    def depth_estimation(self, inputs: object, *, wait: int | None = None, **fields: object) -> Any:
        """`POST /v1/images/depth`: Estimate depth."""
        return self._api.result(
            "/v1/images/depth", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def image_feature_extraction(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageFeatureExtractionParams],
    ) -> list[float]: ...

    @overload
    def image_feature_extraction(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageFeatureExtractionParams],
    ) -> list[list[float]]: ...

    def image_feature_extraction(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/feature-extraction`: Extract features of images."""
        return self._api.result(
            "/v1/images/feature-extraction", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def mask_generation(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.MaskGenerationParams],
    ) -> results.Masks: ...

    @overload
    def mask_generation(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.MaskGenerationParams],
    ) -> list[results.Masks]: ...

    def mask_generation(self, inputs: object, *, wait: int | None = None, **fields: object) -> Any:
        """`POST /v1/images/masks`: Generate masks."""
        return self._api.result(
            "/v1/images/masks", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def image_segmentation(  # pyright: ignore[reportOverlappingOverload]
        self,
        inputs: Media,
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageSegmentationParams],
    ) -> results.Segments: ...

    @overload
    def image_segmentation(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageSegmentationParams],
    ) -> list[results.Segments]: ...

    def image_segmentation(
        self, inputs: object, *, wait: int | None = None, **fields: object
    ) -> Any:
        """`POST /v1/images/segmentation`: Segment images."""
        return self._api.result(
            "/v1/images/segmentation", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    @overload
    def image_to_text(  # pyright: ignore[reportOverlappingOverload]
        self, inputs: Media, *, wait: int | None = None, **fields: Unpack[params.ImageToTextParams]
    ) -> list[results.Caption]: ...

    @overload
    def image_to_text(
        self,
        inputs: Sequence[Media],
        *,
        wait: int | None = None,
        **fields: Unpack[params.ImageToTextParams],
    ) -> list[list[results.Caption]]: ...

    def image_to_text(self, inputs: object, *, wait: int | None = None, **fields: object) -> Any:
        """`POST /v1/images/to-text`: Describe images, or read their text."""
        return self._api.result(
            "/v1/images/to-text", {"inputs": inputs, **fields}, media="inputs", wait=wait
        )

    def document_question_answering(
        self, *, wait: int | None = None, **fields: Unpack[params.DocumentQuestionAnsweringParams]
    ) -> list[results.DocumentAnswer] | list[list[results.DocumentAnswer]]:
        """`POST /v1/question-answering/document`: Answer questions about pages."""
        return self._api.result("/v1/question-answering/document", fields, media="image", wait=wait)

    def visual_question_answering(
        self, *, wait: int | None = None, **fields: Unpack[params.VisualQuestionAnsweringParams]
    ) -> list[results.Label] | list[list[results.Label]]:
        """`POST /v1/question-answering/visual`: Answer questions about images."""
        return self._api.result("/v1/question-answering/visual", fields, media="image", wait=wait)
