# `python -m tools.client_api` writes this file.
"""Parameters of text tasks, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Literal, Required, TypedDict

from .common import GenerateKwargsParams


class FeatureExtractionParams(TypedDict, total=False):
    """Request for features. It accepts the fields of Text Embeddings Inference."""

    dimensions: int | None
    """Number of dimensions to return, for models trained for it."""
    encoding_format: Literal["float"] | None
    """Use `/v1/embeddings` for base64."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    normalize: bool | None
    """Scale vectors to length one. Default: the model's own setting."""
    prompt_name: str | None
    """Name of the model's prompt that is put before the texts, such as `query`. Default: the
    model's default prompt.
    """
    truncate: bool | None
    """Another name for `truncation`."""
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""
    truncation_direction: Literal["right"] | None
    """Truncation removes the end."""


class FillMaskParams(TypedDict, total=False):
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    targets: str | Sequence[str] | None
    """Score only these words. If a word is not one token of the model, its first token is
    scored, as `token_str` shows.
    """
    top_k: int
    """Number of results, best first."""
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""


class ModerationTextParams(TypedDict):
    text: str
    type: Literal["text"]


class ModerationParams(TypedDict, total=False):
    input: Required[str | Sequence[str] | Sequence[ModerationTextParams]]
    """A text, a list of texts, or a list of parts such as `{"type": "text", "text": "…"}`.
    All parts together are one input.
    """
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    threshold: float
    """Score from which a category applies to a text."""
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""


class QuestionAnsweringParams(TypedDict, total=False):
    """Request with questions and contexts. `inputs` is accepted too: an object with
    `question` and `context`, or a list of such objects.
    """

    align_to_words: bool
    """Extend an answer to whole words."""
    context: Required[str | Sequence[str]]
    """A text, or a list with one item or with as many items as the other field."""
    doc_stride: int | None
    """Tokens that neighbouring windows share. Default: 128, or half a window if that is
    less.
    """
    handle_impossible_answer: bool
    """Allow the empty answer, because the context may have no answer."""
    max_answer_len: int
    """Maximum length of an answer in tokens."""
    max_question_len: int
    """Questions are truncated to this many tokens."""
    max_seq_len: int | None
    """Tokens of a window, including the question. Default: 384, or the model's maximum if
    that is less. Longer contexts are read in several windows.
    """
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    question: Required[str | Sequence[str]]
    """A text, or a list with one item or with as many items as the other field."""
    top_k: int
    """1 returns the best answer as an object, a larger number a list, best first."""


class TextDocumentParams(TypedDict):
    text: str


class RerankParams(TypedDict, total=False):
    documents: Required[Sequence[str | TextDocumentParams]]
    """Texts, or objects with the text as `text`."""
    max_tokens_per_doc: int | None
    """Truncate every document to this many tokens, without special tokens."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    query: Required[str]
    """Query that the documents are ranked by."""
    return_documents: bool
    """Return each document's text with its score."""
    top_n: int | None
    """Number of documents to return, best first. Default: all."""
    truncation: bool
    """Truncate documents that are too long for the model together with the query. Default:
    they are rejected, with the numbers.
    """


class SimilarityParams(TypedDict, total=False):
    """Request for similarities. `inputs` is accepted too: an object with both fields."""

    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    sentences: Required[Sequence[str]]
    """The sentences to compare."""
    source_sentence: Required[str]
    """Sentence that the other sentences are compared to."""
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""


class SummarizationParams(TypedDict, total=False):
    clean_up_tokenization_spaces: bool | None
    """Remove spaces before punctuation. Default: the tokenizer's own setting."""
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
    repetition_penalty: float | None
    """Values above 1 make repetitions of generated tokens less likely."""
    seed: int | None
    """Makes sampling repeatable, separately for each input."""
    temperature: float | None
    """Values above 1 flatten the distribution to sample from."""
    top_k: int | None
    """Sample from this many likeliest tokens. 0 means all tokens."""
    top_p: float | None
    """Sample from the likeliest tokens with this total probability."""
    truncation: bool | Literal["do_not_truncate", "longest_first", "only_first", "only_second"]
    """Truncate inputs that are too long for the model. Otherwise they are rejected, with the
    numbers. `do_not_truncate` means false, any other strategy true.
    """


class TableQuestionAnsweringParams(TypedDict, total=False):
    """Request with a table and queries. `inputs` is accepted too: an object with `table` and
    `query`.
    """

    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    padding: Literal["do_not_pad", "longest", "max_length"] | None
    """Accepted because clients send it. Padding changes no answer."""
    table: Required[Mapping[str, Sequence[str]] | Sequence[Mapping[str, str]]]
    """Column names with the texts of their cells, or a list of rows as objects; at most 256
    columns and 20000 cells.
    """
    truncation: bool
    """Drop the last rows of a table that is too long. Default: it is rejected, with the
    numbers.
    """


class TextClassificationParams(TypedDict, total=False):
    function_to_apply: Literal["sigmoid", "softmax", "none"] | None
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    top_k: int | None
    """Number of labels, best first. Default: all."""
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""


class TextPairParams(TypedDict, total=False):
    text: Required[str]
    text_pair: str


class TokenClassificationParams(TypedDict, total=False):
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"]
    """Strategy that groups tokens into entities. `none` returns the raw tokens."""
    ignore_labels: Sequence[str] | None
    """Labels of tokens to leave out. Default: `O`."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    stride: int | None
    """Read a text that is too long for the model in several windows, which share this number
    of tokens. Requires an `aggregation_strategy`.
    """
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""


class TranslationParams(TypedDict, total=False):
    clean_up_tokenization_spaces: bool | None
    """Remove spaces before punctuation. Default: the tokenizer's own setting."""
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
    repetition_penalty: float | None
    """Values above 1 make repetitions of generated tokens less likely."""
    seed: int | None
    """Makes sampling repeatable, separately for each input."""
    src_lang: str | None
    """Language of the texts, as the model's code, such as `en_XX`. For multilingual models."""
    temperature: float | None
    """Values above 1 flatten the distribution to sample from."""
    tgt_lang: str | None
    """Language to translate into, as the model's code."""
    top_k: int | None
    """Sample from this many likeliest tokens. 0 means all tokens."""
    top_p: float | None
    """Sample from the likeliest tokens with this total probability."""
    truncation: bool | Literal["do_not_truncate", "longest_first", "only_first", "only_second"]
    """Truncate inputs that are too long for the model. Otherwise they are rejected, with the
    numbers. `do_not_truncate` means false, any other strategy true.
    """


class ZeroShotClassificationParams(TypedDict, total=False):
    candidate_labels: Required[Sequence[str] | str]
    """Labels to choose from, 1 to 1000: a list, or one comma-separated text."""
    hypothesis_template: str
    """Sentence in which each label replaces `{}`."""
    model: str | None
    """Model id of the deployment. Required if the key covers several."""
    multi_label: bool
    """Score each label separately, so that several may apply. Otherwise the scores add up to
    1.
    """
    truncation: bool
    """Truncate inputs that are too long. Default: they are rejected, with the numbers."""
