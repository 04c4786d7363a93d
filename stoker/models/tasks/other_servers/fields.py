"""Fields that several requests of Text Embeddings Inference share."""

from typing import Annotated, Any, Literal, cast

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from stoker.models.tasks.base import TaskRequest
from stoker.models.tasks.inputs import MAX_ITEMS, checked_tokens

TAG = "Text Embeddings Inference"


class TruncatingRequest(TaskRequest):
    """Request with inputs that may be cut to the model's limit."""

    truncate: bool | None = Field(
        default=None,
        description="Truncate inputs that are too long. Default: they are rejected, with the "
        "numbers.",
    )
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = Field(
        default=None, description="Side that is cut. Default: the model's own, mostly the right."
    )

    def parameters(self) -> dict[str, Any]:
        side = self.truncation_direction
        cut = {"truncation_side": side.lower()} if side and self.truncate else {}
        return {"truncation": bool(self.truncate), "truncation_field": "truncate", **cut}


PromptName = Annotated[
    str | None,
    Field(
        max_length=128,
        description="Name of the model's prompt that is put before the texts, such as `query`. "
        "Default: the model's default prompt.",
    ),
]


def _items(value: Any) -> list[Any]:
    """Returns the inputs as items: texts, or token ids that are used unchanged."""
    if isinstance(value, str):
        return [_item(value)]
    if not isinstance(value, list) or not value:
        raise _no_input()
    values = cast("list[Any]", value)
    if type(values[0]) is int:
        return [_item(values)]
    if len(values) > MAX_ITEMS:
        raise PydanticCustomError(
            "value_error", "must have at most {most} items", {"most": MAX_ITEMS}
        )
    return [_item(item) for item in values]


def _item(value: Any) -> Any:
    if isinstance(value, list):
        return {"tokens": checked_tokens(cast("list[Any]", value))}
    if not isinstance(value, str):
        raise _no_input()
    if not value:
        raise PydanticCustomError("value_error", "a text must not be empty")
    return value


def _no_input() -> PydanticCustomError:
    return PydanticCustomError(
        "value_error",
        "must be a text, a list of token ids, or a list of texts and of lists of token ids",
    )


EmbeddedInputs = Annotated[
    list[Any],
    PlainValidator(_items, json_schema_input_type=str | list[int] | list[str | list[int]]),
    Field(description="A text, the model's own token ids, or a list of these: one result each."),
]
