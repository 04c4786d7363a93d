"""Types of the fields that several tasks share."""

from array import array
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
)
from typing_extensions import TypedDict

from stoker.media.media import Media, MediaKind

MAX_TOP_K = 1000

# Tags of a union's members. They turn up in error locations, where brackets tell them from fields.
ONE = "<one>"
MANY = "<many>"


def one_or_many(value: object) -> str:
    return MANY if isinstance(value, list) else ONE


# Told apart before validation, so that an error names the item at fault and not both readings.
TextInputs = Annotated[
    Annotated[str, Tag(ONE)] | Annotated[list[str], Field(min_length=1), Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="A text, or a list of texts: one result each, in order."),
]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K, description="How many results, best first.")]
Truncation = Annotated[
    bool,
    Field(
        description="Cut an input that is longer than the model takes. "
        "Without it such an input is refused with the numbers."
    ),
]
FunctionToApply = Annotated[
    Literal["sigmoid", "softmax", "none"],
    Field(description="How scores are made from logits; default: by the model's problem type."),
]


def _comma_separated(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


# As transformers' clients send them: a list, or one string with commas.
CandidateLabels = Annotated[
    list[Annotated[str, Field(max_length=1000), AfterValidator(_not_blank)]],
    Field(
        min_length=1,
        max_length=1000,
        description="The labels to choose from: a list, or one string with commas between them.",
    ),
    BeforeValidator(_comma_separated, json_schema_input_type=list[str] | str),
]


def _with_placeholder(template: str) -> str:
    if PLACEHOLDER not in template:
        raise ValueError(f"must contain {PLACEHOLDER}, where each label is put")
    return template


PLACEHOLDER = "{}"
HypothesisTemplate = Annotated[
    str,
    Field(
        max_length=1000,
        description="The sentence made of each label; the label takes the place of {}.",
    ),
    AfterValidator(_with_placeholder),
]


class Label(TypedDict):
    label: str
    score: float


def _validator(kind: MediaKind) -> Callable[[Any], Media]:
    def validate(value: Any) -> Media:
        if isinstance(value, Media):
            if value.kind != kind:
                raise ValueError(f"must be {_A[kind]}, not {_A[value.kind]}")
            return value
        if isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"url"}:
            value = cast("dict[str, Any]", value)["url"]
        if isinstance(value, str) and value.strip():
            return Media(kind, source=value)
        raise ValueError(
            f"must be {_A[kind]}: a URL, a data URI or base64 as a string"
            + (", or an array of numbers" if kind == "audio" else "")
        )

    return validate


_A = {"image": "an image", "audio": "a recording", "video": "a video"}
_STRING = {"type": "string", "minLength": 1}

Image = Annotated[
    Media,
    PlainValidator(_validator("image")),
    WithJsonSchema(_STRING | {"description": "An image: URL, data URI or base64."}),
]
Video = Annotated[
    Media,
    PlainValidator(_validator("video")),
    WithJsonSchema(_STRING | {"description": "A video: URL, data URI or base64."}),
]

ImageInputs = Annotated[
    Annotated[Image, Tag(ONE)] | Annotated[list[Image], Field(min_length=1), Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="An image, or a list of images: one result each, in order."),
]
VideoInputs = Annotated[
    Annotated[Video, Tag(ONE)] | Annotated[list[Video], Field(min_length=1), Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="A video, or a list of videos: one result each, in order."),
]


MIN_RATE, MAX_RATE = 1000, 768_000
"""Sampling rates that are taken, Hz."""


def _audio(value: Any) -> Media:
    if isinstance(value, list):
        return _samples(cast("list[Any]", value), 0)
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        if set(given) in ({"array", "sampling_rate"}, {"raw", "sampling_rate"}):
            rate = given["sampling_rate"]
            whole = isinstance(rate, int) and not isinstance(rate, bool)
            if not whole or not MIN_RATE <= rate <= MAX_RATE:
                raise ValueError(
                    f"'sampling_rate' must be a whole number from {MIN_RATE} to {MAX_RATE} Hz"
                )
            samples = given.get("array", given.get("raw"))
            if not isinstance(samples, list):
                raise ValueError("must hold the samples as an array of numbers")
            return _samples(cast("list[Any]", samples), rate)
        if set(given) != {"url"}:
            raise ValueError("must be {array, sampling_rate}, {raw, sampling_rate} or {url}")
    return _validator("audio")(value)


def _samples(values: list[Any], rate: int) -> Media:
    try:
        content = array("f", values)
    except (TypeError, OverflowError):
        raise ValueError("must be an array of numbers: the samples, from -1 to 1") from None
    return Media("audio", content=content.tobytes(), sampling_rate=rate)


def _one_or_many_sounds(value: object) -> str:
    """An array of numbers is one sound; an array of anything else are several."""
    if isinstance(value, list) and not (value and isinstance(value[0], int | float)):
        return MANY
    return ONE


_NUMBERS = {"type": "array", "items": {"type": "number"}}
Audio = Annotated[
    Media,
    PlainValidator(_audio),
    WithJsonSchema(
        {
            "description": "A recording: URL, data URI, base64, or samples from -1 to 1.",
            "anyOf": [
                _STRING,
                _NUMBERS | {"description": "Samples at the model's own sampling rate."},
                {
                    "type": "object",
                    "properties": {
                        "array": _NUMBERS,
                        "sampling_rate": {
                            "type": "integer",
                            "minimum": MIN_RATE,
                            "maximum": MAX_RATE,
                        },
                    },
                    "required": ["array", "sampling_rate"],
                },
                {"type": "object", "properties": {"url": _STRING}, "required": ["url"]},
            ],
        }
    ),
]
AudioInputs = Annotated[
    Annotated[Audio, Tag(ONE)] | Annotated[list[Audio], Field(min_length=1), Tag(MANY)],
    Discriminator(_one_or_many_sounds),
    Field(description="A recording, or a list of recordings: one result each, in order."),
]
