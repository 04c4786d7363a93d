# `python -m tools.client_api` writes this file.
"""Results of tasks, from the OpenAPI document."""

from __future__ import annotations

from typing import Literal, Required, TypedDict


class Answer(TypedDict):
    """An answer. `start` and `end` are characters of the context; `score` is a probability."""

    answer: str
    end: int
    score: float
    start: int


class Box(TypedDict):
    """Corners in pixels from the image's top left."""

    xmax: int
    xmin: int
    ymax: int
    ymin: int


class Caption(TypedDict):
    generated_text: str


class Detection(TypedDict):
    box: Box
    label: str
    score: float


class DocumentAnswer(TypedDict, total=False):
    """Answer to a question about a page. Models that read pixels return the answer alone."""

    answer: Required[str | None]
    end: int
    score: float
    start: int


class Filling(TypedDict):
    score: float
    sequence: str
    token: int
    token_str: str


class Label(TypedDict):
    label: str
    score: float


class ModerationResult(TypedDict):
    """Result for one input. `flagged` is true if a harmful category applies."""

    categories: dict[str, bool]
    category_applied_input_types: dict[str, list[Literal["text"]]]
    category_scores: dict[str, float]
    flagged: bool


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict, total=False):
    """A ranked document. `index` is its position in the request; a higher `relevance_score`
    is more relevant.
    """

    document: RankedDocument
    index: Required[int]
    relevance_score: Required[float]


class RankingUsage(TypedDict):
    """Number of tokens that the model read. The query's tokens count once per document."""

    prompt_tokens: int
    total_tokens: int


class SparseFeatures(TypedDict):
    """Nonzero values and their indices, from a model that makes sparse vectors."""

    indices: list[int]
    values: list[float]


class Summary(TypedDict):
    summary_text: str


class Token(TypedDict, total=False):
    """A token or a group of tokens. Raw tokens have `entity` and `index`; groups have
    `entity_group`.
    """

    end: Required[int | None]
    entity: str
    entity_group: str
    index: int
    score: Required[float]
    start: Required[int | None]
    word: Required[str]


class Translation(TypedDict):
    translation_text: str


class Depth(TypedDict, total=False):
    depth: Required[str]
    predicted_depth: list[list[float]]


class Masks(TypedDict):
    """Masks of an image. Each list has one entry per mask."""

    masks: list[str]
    scores: list[float]


class Segments(TypedDict):
    """Segments of an image. Each list has one entry per segment."""

    labels: list[str]
    masks: list[str]
    scores: list[float]


class Classification(TypedDict):
    """Labels, the best first, and their scores in the same order."""

    labels: list[str]
    scores: list[float]
    sequence: str


class TableAnswer(TypedDict, total=False):
    """An answer. `coordinates` are [row, column] of the `cells`. A generative model names no
    cells.
    """

    aggregator: str
    answer: Required[str]
    cells: Required[list[str]]
    coordinates: Required[list[list[int]]]


class Moderation(TypedDict):
    id: str
    model: str
    results: list[ModerationResult]


class Ranking(TypedDict):
    id: str
    model: str
    results: list[Ranked]
    usage: RankingUsage
