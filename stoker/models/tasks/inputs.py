"""Types of the fields that several tasks share."""

from array import array
from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from stoker.media.inline import Inline
from stoker.media.media import Media, MediaKind

MAX_ITEMS = 10_000
"""Maximum value of `Settings.list_limit`."""
SEVERAL = Field(min_length=1, max_length=MAX_ITEMS)
MAX_TOP_K = 1000
MAX_TOKEN_ID = 2**31 - 1

# Tags of a union's members. They appear in error locations, and their brackets distinguish them
# from fields.
ONE = "<one>"
MANY = "<many>"


def one_or_many(value: object) -> str:
    return MANY if isinstance(value, list) else ONE


# The discriminator chooses the type before validation, so that an error names the invalid item and
# not both types.
TextInputs = Annotated[
    Annotated[str, Tag(ONE)] | Annotated[list[str], SEVERAL, Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="A text, or a list of texts: one result each, in order."),
]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K, description="Number of results, best first.")]
Truncation = Annotated[
    bool,
    Field(
        description=(
            "Truncate inputs that are too long. Default: they are rejected, with the numbers."
        )
    ),
]
FunctionToApply = Annotated[
    Literal["sigmoid", "softmax", "none"],
    Field(
        description="Function that converts logits to scores. Default: by the model's problem type."
    ),
]


def _comma_separated(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def checked_tokens(value: Any) -> list[int]:
    """Returns the token ids, validated as a whole list: a list may have hundreds of thousands."""
    if not isinstance(value, list) or not value:
        raise not_texts_or_tokens()
    tokens = cast("list[Any]", value)
    # `True` is an int in Python, but not in JSON.
    if set(map(type, tokens)) != {int} or min(tokens) < 0 or max(tokens) > MAX_TOKEN_ID:
        raise not_texts_or_tokens()
    return tokens


def not_texts_or_tokens() -> PydanticCustomError:
    return PydanticCustomError(
        "value_error",
        "must be a text, a list of texts, a list of token ids or a list of such lists",
    )


# Format of transformers' clients: a list, or one comma-separated string.
CandidateLabels = Annotated[
    list[Annotated[str, Field(max_length=1000), AfterValidator(_not_blank)]],
    Field(
        min_length=1,
        max_length=1000,
        description="Labels to choose from: a list, or one comma-separated string.",
    ),
    BeforeValidator(_comma_separated, json_schema_input_type=list[str] | str),
]


def _with_placeholder(template: str) -> str:
    if PLACEHOLDER not in template:
        raise ValueError(f"must contain {PLACEHOLDER}, the place of the label")
    return template


PLACEHOLDER = "{}"
HypothesisTemplate = Annotated[
    str,
    Field(
        max_length=1000,
        description="Sentence for each label; the label replaces {}.",
    ),
    AfterValidator(_with_placeholder),
]


class Label(TypedDict):
    label: str
    score: float


class Claims(Protocol):
    """Interface of a validation's context. It maps words in the JSON to media that were extracted
    from it.
    """

    def claim(self, word: str) -> Inline | None:
        """Returns the media that a word replaces. None means that the word is the client's own
        text.
        """
        ...


def claimed(value: str, info: ValidationInfo) -> str | Inline:
    """Returns the media that a string replaces, or else the string."""
    claims: Claims | None = info.context
    return (claims.claim(value) if claims else None) or value


def _validator(kind: MediaKind) -> Callable[[Any, ValidationInfo], Media]:
    def validate(value: Any, info: ValidationInfo) -> Media:
        if isinstance(value, Media):
            if value.kind != kind:
                raise ValueError(f"must be {_A[kind]}, not {_A[value.kind]}")
            return value
        if isinstance(value, dict) and set(cast("dict[str, Any]", value)) == {"url"}:
            value = cast("dict[str, Any]", value)["url"]
        if isinstance(value, str) and value.strip():
            source = claimed(value, info)
            if isinstance(source, str) or not source.is_numbers:
                return Media(kind, source=source)
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
    Annotated[Image, Tag(ONE)] | Annotated[list[Image], SEVERAL, Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="An image, or a list of images: one result each, in order."),
]
VideoInputs = Annotated[
    Annotated[Video, Tag(ONE)] | Annotated[list[Video], SEVERAL, Tag(MANY)],
    Discriminator(one_or_many),
    Field(description="A video, or a list of videos: one result each, in order."),
]


MIN_RATE, MAX_RATE = 1000, 768_000
"""Minimum and maximum sampling rate in Hz."""


def _audio(value: Any, info: ValidationInfo) -> Media:
    if isinstance(value, list):
        return _samples(cast("list[Any]", value), 0)
    if isinstance(value, str) and (numbers := _numbers(value, info)):
        return Media("audio", source=numbers, sampling_rate=0)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        # A data set row names its source file in `path`. The server does not open that file.
        named = set(fields) - {"path"}
        if named in ({"array", "sampling_rate"}, {"raw", "sampling_rate"}):
            rate = fields["sampling_rate"]
            whole = isinstance(rate, int) and not isinstance(rate, bool)
            if not whole or not MIN_RATE <= rate <= MAX_RATE:
                raise ValueError(
                    f"'sampling_rate' must be a whole number from {MIN_RATE} to {MAX_RATE} Hz"
                )
            samples = fields.get("array", fields.get("raw"))
            if isinstance(samples, str) and (numbers := _numbers(samples, info)):
                return Media("audio", source=numbers, sampling_rate=rate)
            if not isinstance(samples, list):
                raise ValueError("must contain the samples as an array of numbers")
            return _samples(cast("list[Any]", samples), rate)
        if set(fields) != {"url"}:
            raise ValueError("must be {array, sampling_rate}, {raw, sampling_rate} or {url}")
    return _validator("audio")(value, info)


def _numbers(word: str, info: ValidationInfo) -> Inline | None:
    """Returns the list of numbers that a word in the JSON replaces, or None."""
    source = claimed(word, info)
    return source if isinstance(source, Inline) and source.is_numbers else None


def _samples(values: list[Any], rate: int) -> Media:
    try:
        content = array("f", values)
    except (TypeError, OverflowError):
        raise ValueError("must be an array of numbers: the samples, from -1 to 1") from None
    return Media("audio", content=content.tobytes(), sampling_rate=rate)


def _one_or_many_sounds(value: object) -> str:
    """Returns `ONE` for an array of numbers, which is one sound, and `MANY` for other arrays."""
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
    Annotated[Audio, Tag(ONE)] | Annotated[list[Audio], SEVERAL, Tag(MANY)],
    Discriminator(_one_or_many_sounds),
    Field(description="A recording, or a list of recordings: one result each, in order."),
]
