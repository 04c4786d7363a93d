# `python -m tools.client_api` writes this file.
"""Parameters of text tasks, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

from .common import GenerateKwargsParams


class FeatureExtractionParams(TypedDict, total=False):
    """Request for features. It accepts the fields of Text Embeddings Inference."""

    dimensions: int | None
    encoding_format: Literal["float"] | None
    model: str | None
    normalize: bool | None
    prompt_name: str | None
    truncate: bool | None
    truncation: bool
    truncation_direction: Literal["right"] | None


class FillMaskParams(TypedDict, total=False):
    model: str | None
    targets: str | Sequence[str] | None
    top_k: int
    truncation: bool


class QuestionAnsweringParams(TypedDict, total=False):
    """Request with questions and contexts. `inputs` is accepted too: an object with `question`
    and `context`, or a list of such objects.
    """

    align_to_words: bool
    context: Required[str | Sequence[str]]
    doc_stride: int | None
    handle_impossible_answer: bool
    max_answer_len: int
    max_question_len: int
    max_seq_len: int | None
    model: str | None
    question: Required[str | Sequence[str]]
    top_k: int


class TextDocumentParams(TypedDict):
    text: str


class RerankParams(TypedDict, total=False):
    documents: Required[Sequence[str | TextDocumentParams]]
    max_tokens_per_doc: int | None
    model: str | None
    query: Required[str]
    return_documents: bool
    top_n: int | None
    truncation: bool


class SimilarityParams(TypedDict, total=False):
    """Request for similarities. `inputs` is accepted too: an object with both fields."""

    model: str | None
    sentences: Required[Sequence[str]]
    source_sentence: Required[str]
    truncation: bool


class SummarizationParams(TypedDict, total=False):
    clean_up_tokenization_spaces: bool | None
    do_sample: bool | None
    generate_kwargs: GenerateKwargsParams | None
    length_penalty: float | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    model: str | None
    no_repeat_ngram_size: int | None
    num_beams: int | None
    repetition_penalty: float | None
    seed: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    truncation: bool | Literal["do_not_truncate", "longest_first", "only_first", "only_second"]


class TableQuestionAnsweringParams(TypedDict, total=False):
    """Request with a table and queries. `inputs` is accepted too: an object with `table` and
    `query`.
    """

    model: str | None
    padding: Literal["do_not_pad", "longest", "max_length"] | None
    table: Required[Mapping[str, Sequence[str]] | Sequence[Mapping[str, str]]]
    truncation: bool


class TextClassificationParams(TypedDict, total=False):
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    top_k: int | None
    truncation: bool


class TextPairParams(TypedDict, total=False):
    text: Required[str]
    text_pair: str


class TokenClassificationParams(TypedDict, total=False):
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"]
    ignore_labels: Sequence[str] | None
    model: str | None
    stride: int | None
    truncation: bool


class TranslationParams(TypedDict, total=False):
    clean_up_tokenization_spaces: bool | None
    do_sample: bool | None
    generate_kwargs: GenerateKwargsParams | None
    length_penalty: float | None
    max_new_tokens: int | None
    min_new_tokens: int | None
    model: str | None
    no_repeat_ngram_size: int | None
    num_beams: int | None
    repetition_penalty: float | None
    seed: int | None
    src_lang: str | None
    temperature: float | None
    tgt_lang: str | None
    top_k: int | None
    top_p: float | None
    truncation: bool | Literal["do_not_truncate", "longest_first", "only_first", "only_second"]


class ZeroShotClassificationParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    hypothesis_template: str
    model: str | None
    multi_label: bool
    truncation: bool
