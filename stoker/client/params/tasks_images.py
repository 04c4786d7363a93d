# `python -m tools.client_api` writes this file.
"""Parameters of images tasks, from the OpenAPI document."""

from collections.abc import Sequence
from typing import Literal, Required, TypedDict

from ..media import Media
from .common import GenerateKwargsParams


class DepthEstimationParams(TypedDict, total=False):
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    return_values: bool
    """Also return `predicted_depth`: the depths as the model returns them, in rows."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""


class DocumentQuestionAnsweringParams(TypedDict, total=False):
    doc_stride: int | None
    """Tokens that neighbouring parts of a page share. Default: half a part, at most 256."""
    handle_impossible_answer: bool
    """Also return the score that the page has no answer."""
    image: Required[Media | Sequence[Media]]
    """An image, or a list of images: one result each, in order."""
    max_answer_len: int
    """Longest answer, tokens."""
    max_seq_len: int | None
    """Tokens that the model reads at once, including the question. A longer page is read in
    parts. Default: the model's maximum.
    """
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    question: Required[str | Sequence[str]]
    """A question, or a list: one question for each image, or several questions about one
    image.
    """
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int
    """Number of results, best first."""
    word_boxes: (
        Sequence[tuple[str, tuple[int, int, int, int]]]
        | Sequence[Sequence[tuple[str, tuple[int, int, int, int]]]]
        | None
    )


class ImageClassificationParams(TypedDict, total=False):
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int
    """Number of results, best first."""


class ImageFeatureExtractionParams(TypedDict, total=False):
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""


class ImageSegmentationParams(TypedDict, total=False):
    mask_threshold: float | None
    """Minimum probability at which a pixel counts for a mask. Default: 0.5. Not for
    semantic.
    """
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    overlap_mask_area_threshold: float | None
    """Segments are dropped if other segments leave at most this share of their mask
    uncovered. Default: 0.5. Not for semantic.
    """
    subtask: Literal["panoptic", "instance", "semantic"] | None
    """Default: the first of these three that the model supports."""
    threshold: float | None
    """Minimum score of a segment. Default: 0.9. Not for semantic."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""


class ImageToTextParams(TypedDict, total=False):
    do_sample: bool | None
    """Sample tokens at random instead of choosing the likeliest."""
    generate_kwargs: GenerateKwargsParams | None
    """Options of `generate` in an object: these and some rarer ones. `generate_parameters`
    is accepted, too.
    """
    length_penalty: float | None
    """For beam search: values above 0 favour longer texts."""
    max_new_tokens: int | None
    """Maximum number of tokens to generate. Default: the model's own `max_new_tokens` or
    `max_length`, else 256, within the model's own limit.
    """
    min_new_tokens: int | None
    """Minimum number of tokens to generate."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    no_repeat_ngram_size: int | None
    """Length of token sequences that must not repeat. 0 means no limit."""
    num_beams: int | None
    """Number of beams. 1 means no beam search."""
    prompt: str | None
    """Florence-2: the task, `<CAPTION>` by default, and its text. BLIP-2: a text to
    continue. Other models accept no prompt.
    """
    repetition_penalty: float | None
    """Values above 1 make repetitions of generated tokens less likely."""
    seed: int | None
    """Makes sampling repeatable, separately for each input."""
    temperature: float | None
    """Values above 1 flatten the distribution to sample from."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int | None
    """Sample from this many likeliest tokens. 0 means all tokens."""
    top_p: float | None
    """Sample from the likeliest tokens with this total probability."""


class MaskGenerationParams(TypedDict, total=False):
    crop_overlap_ratio: float
    """Share of the image's side by which crops of the first layer overlap."""
    crops_n_layers: int
    """Layers of crops that are processed in addition to the whole image. Layer n has 4ⁿ
    crops.
    """
    crops_nms_thresh: float
    """If the boxes of two masks overlap more, only the better mask is kept."""
    mask_threshold: float
    """Pixels with a higher logit belong to a mask."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    points_per_batch: int
    """Maximum number of points that the model processes at once. Large images use fewer.
    Masks do not depend on it.
    """
    points_per_crop: int
    """Points along each side of the grid."""
    pred_iou_thresh: float
    """Masks with a higher predicted overlap are kept."""
    stability_score_offset: float
    """Offset by which `mask_threshold` is raised and lowered to measure a mask's stability."""
    stability_score_thresh: float
    """Masks with a higher stability are kept."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""


class ObjectDetectionParams(TypedDict, total=False):
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    threshold: float
    """Boxes with a higher score are kept."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""


class VisualQuestionAnsweringParams(TypedDict, total=False):
    image: Required[Media | Sequence[Media]]
    """An image, or a list of images: one result each, in order."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    question: Required[str | Sequence[str]]
    """A question, or a list: one question for each image, or several questions about one
    image.
    """
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int
    """Number of results, best first."""


class ZeroShotImageClassificationParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    """Labels to choose from: a list, or one comma-separated string."""
    hypothesis_template: str
    """Sentence for each label; the label replaces {}."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""


class ZeroShotObjectDetectionParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    """Labels to choose from: a list, or one comma-separated string."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    text_threshold: float | None
    """Grounding DINO: tokens of the labels name a box if their score is higher. Default:
    0.25, or `threshold` if that is less.
    """
    threshold: float
    """Boxes with a higher score are kept."""
    timeout: float | None
    """Maximum time in seconds to fetch media from URLs. null: the server's own limit."""
    top_k: int
    """Number of results, best first."""
