"""Embeddings in OpenAI's format."""

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, SkipValidation, Tag
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from stoker.models.stages.embedding import SparseVector
from stoker.models.tasks.base import MediaRequest, Task
from stoker.models.tasks.field_checks import CheckedFields
from stoker.models.tasks.inputs import Image, checked_tokens, not_texts_or_tokens
from stoker.models.tasks.service_tier import TieredRequest

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

MAX_INPUTS = 2048


class Tokens(TypedDict):
    # `checked_tokens` has validated the list as a whole. Validation of each id would take a
    # microsecond.
    tokens: Annotated[list[int], SkipValidation]


class Pictured(TypedDict):
    image: Image


def _kind(one: Any) -> str:
    if isinstance(one, str):
        return "<text>"
    return "<image>" if isinstance(one, dict) and "image" in one else "<tokens>"


Item = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[Tokens, Tag("<tokens>")]
    | Annotated[Pictured, Tag("<image>")],
    Discriminator(_kind),
]


def _items(value: Any) -> list[Any]:
    """Returns the inputs as items: texts, token ids that are used unchanged, or images."""
    if isinstance(value, str):
        return [_text(value)]
    if isinstance(value, dict):
        return [_object(cast("dict[str, Any]", value))]
    if not isinstance(value, list) or not value:
        raise not_texts_or_tokens()
    values = cast("list[Any]", value)
    if type(values[0]) is int:
        return [_tokens(values)]
    if len(values) > MAX_INPUTS:
        # The field's `max_length` rejects the list before its items are validated.
        return values
    return [_item(item) for item in values]


def _item(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    return _object(cast("dict[str, Any]", value)) if isinstance(value, dict) else _tokens(value)


def _object(value: dict[str, Any]) -> Any:
    """Returns the item for `{"text": …}` or `{"image": …}`, the format of other servers for
    multimodal models.
    """
    if set(value) == {"text"} and isinstance(value["text"], str):
        return _text(value["text"])
    if set(value) == {"image"}:
        return value
    raise not_texts_or_tokens()


def _text(value: str) -> str:
    if not value:
        raise PydanticCustomError("value_error", "a text must not be empty")
    return value


def _tokens(value: Any) -> Tokens:
    return {"tokens": checked_tokens(value)}


class EmbeddingsRequest(TieredRequest, MediaRequest, CheckedFields):
    """Request for embeddings. Token ids go to the model unchanged: no special tokens are added."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    endpoint = "embeddings"

    input: Annotated[
        list[Item],
        Field(
            max_length=MAX_INPUTS,
            description=(
                "Texts, or lists of the model's own token ids. Models that embed both "
                "texts "
                'and images also accept images as `{"image": …}`.'
            ),
        ),
        BeforeValidator(
            _items,
            json_schema_input_type=str
            | list[int]
            | list[list[int]]
            | Pictured
            | list[str | Pictured],
        ),
    ]
    encoding_format: Literal["float", "base64"] = Field(
        default="float",
        description=(
            "`base64` encodes little-endian float32 and, for a sparse vector's positions, uint32."
        ),
    )
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Number of dimensions to return, for models trained for it.",
    )
    user: str | None = Field(
        default=None,
        max_length=1024,
        description=(
            "User on whose behalf the request is sent. All calls of one user may go to "
            "the same version."
        ),
    )
    embedding_type: Literal["dense", "sparse", "multi"] | None = Field(
        default=None,
        description="Kind of result per input: one dense vector, one sparse vector with a "
        "number for each word of the vocabulary, or one vector per token. Of a "
        "sparse vector, only nonzero numbers are returned. Each model makes one "
        "kind, which is the default.",
    )
    prompt_name: str | None = Field(
        default=None,
        max_length=128,
        description=(
            "Name of the model's prompt that is put before the texts, such as `query`. "
            "Default: the model's default prompt."
        ),
    )
    truncation: bool = Field(
        default=False,
        description=(
            "Truncate inputs that are too long. Default: they are rejected, with the numbers."
        ),
    )

    input_fields: ClassVar[tuple[str, ...]] = ("input",)
    max_items: ClassVar[int | None] = MAX_INPUTS

    def items(self) -> tuple[list[Any], bool]:
        return list(self.input), False

    def parameters(self) -> dict[str, Any]:
        options = {
            "prompt_name": self.prompt_name,
            "dimensions": self.dimensions,
            "embedding_type": self.embedding_type,
        }
        return {"field": "input", "counted": True, "truncation": self.truncation} | {
            name: value for name, value in options.items() if value is not None
        }

    def finishing(self) -> dict[str, Any]:
        return {"encoding_format": self.encoding_format}


class SparseEmbedding(TypedDict):
    """Nonzero values of a sparse vector and their indices."""

    indices: list[int] | str
    values: list[float] | str


class Embedding(TypedDict):
    """Embedding of one item: a vector, a vector per token, or a sparse vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str | list[list[float]] | list[str] | SparseEmbedding


class EmbeddingsUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


def _embeddings(work: "Work", results: Sequence[tuple[Any, int]]) -> Embeddings:
    """Builds the answer from each item's vectors, as `EmbeddingStages.plain` returns them, and its
    number of tokens.
    """
    encoded = work.finishing["encoding_format"] == "base64"
    tokens = sum(count for _, count in results)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _embedding(vector, encoded=encoded),
            }
            for index, (vector, _) in enumerate(results)
        ],
        "model": work.finishing["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _embedding(vector: Any, *, encoded: bool) -> Any:
    if isinstance(vector, SparseVector):
        if not encoded:
            return {name: row.tolist() for name, row in vector._asdict().items()}
        return {"indices": _base64(vector.indices, "<u4"), "values": _base64(vector.values)}
    if not encoded:
        return vector.tolist()
    return _base64(vector) if vector.ndim == 1 else [_base64(row) for row in vector]


def _base64(vector: Any, dtype: str = "<f4") -> str:
    return base64.b64encode(vector.astype(dtype).tobytes()).decode()


TASK = Task(
    pipeline="feature-extraction",
    name="embeddings",
    path="/v1/embeddings",
    summary="Create embeddings",
    request=EmbeddingsRequest,
    result=Embeddings,
    whole=True,
    also=("fill-mask", "zero-shot-image-classification"),
    families=("bert", "mt5", "t5", "umt5"),
    example={"model": "encoder", "input": ["How do I bake bread?", "The train is late."]},
    example_result={
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.021, -0.114, 0.087]}],
        "model": "encoder",
        "usage": {"prompt_tokens": 14, "total_tokens": 14},
    },
    finish=_embeddings,
)
