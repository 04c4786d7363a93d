# `python -m tools.client_api` writes this file.
"""Parameters of images tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict

from ..media import Media
from .common import GenerateKwargsParams


class DepthEstimationParams(TypedDict, total=False):
    model: str | None
    return_values: bool
    timeout: float | None


class DocumentQuestionAnsweringParams(TypedDict, total=False):
    doc_stride: int | None
    handle_impossible_answer: bool
    image: Required[Media | Sequence[Media]]
    max_answer_len: int
    max_seq_len: int | None
    model: str | None
    question: Required[str | Sequence[str]]
    timeout: float | None
    top_k: int
    word_boxes: (
        Sequence[tuple[str, tuple[int, int, int, int]]]
        | Sequence[Sequence[tuple[str, tuple[int, int, int, int]]]]
        | None
    )


class ImageClassificationParams(TypedDict, total=False):
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    timeout: float | None
    top_k: int


class ImageFeatureExtractionParams(TypedDict, total=False):
    model: str | None
    timeout: float | None


class ImageSegmentationParams(TypedDict, total=False):
    mask_threshold: float | None
    model: str | None
    overlap_mask_area_threshold: float | None
    subtask: Literal["panoptic", "instance", "semantic"] | None
    threshold: float | None
    timeout: float | None


class ImageToTextParams(TypedDict, total=False):
    do_sample: bool | None
    generate_kwargs: GenerateKwargsParams | None
    length_penalty: float | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    model: str | None
    no_repeat_ngram_size: int | None
    num_beams: int | None
    prompt: str | None
    repetition_penalty: float | None
    seed: int | None
    temperature: float | None
    timeout: float | None
    top_k: int | None
    top_p: float | None


class MaskGenerationParams(TypedDict, total=False):
    crop_overlap_ratio: float
    crops_n_layers: int
    crops_nms_thresh: float
    mask_threshold: float
    model: str | None
    points_per_batch: int
    points_per_crop: int
    pred_iou_thresh: float
    stability_score_offset: float
    stability_score_thresh: float
    timeout: float | None


class ObjectDetectionParams(TypedDict, total=False):
    model: str | None
    threshold: float
    timeout: float | None


class VisualQuestionAnsweringParams(TypedDict, total=False):
    image: Required[Media | Sequence[Media]]
    model: str | None
    question: Required[str | Sequence[str]]
    timeout: float | None
    top_k: int


class ZeroShotImageClassificationParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    hypothesis_template: str
    model: str | None
    timeout: float | None


class ZeroShotObjectDetectionParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    model: str | None
    text_threshold: float | None
    threshold: float
    timeout: float | None
    top_k: int
