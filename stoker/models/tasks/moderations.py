"""Moderation of texts in OpenAI's format. The categories are the model's labels."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import Truncation

if TYPE_CHECKING:
    from stoker.wire.protocol import Work

MAX_INPUTS = 1000
HARMLESS = frozenset(
    [
        "acceptable",
        "benign",
        "clean",
        "harmless",
        "neutral",
        "neither",
        "no",
        "no_hate",
        "non-hate",
        "non-offensive",
        "non-toxic",
        "non_hate",
        "non_offensive",
        "non_toxic",
        "none",
        "normal",
        "not-hate",
        "not-offensive",
        "not-toxic",
        "not_hate",
        "not_offensive",
        "not_toxic",
        "ok",
        "okay",
        "other",
        "safe",
        "sfw",
    ]
)
"""Labels of texts without a fault, in lower case with `_` for spaces. They flag nothing."""


class ModerationText(TypedDict):
    type: Literal["text"]
    text: str


def _texts(value: Any) -> Any:
    """Returns the inputs as texts. A list of OpenAI's parts is one input."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        return value
    values = cast("list[Any]", value)
    if values and isinstance(values[0], dict):
        return ["\n".join(_part(value) for value in values)]
    return values


def _part(value: Any) -> str:
    part = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    raise PydanticCustomError(
        "value_error",
        "a part must be an object with the type 'text' and a 'text'. Images are not supported",
    )


class ModerationRequest(TaskRequest):
    # OpenAI's clients send fields that are not known here.
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    input: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(
            min_length=1,
            max_length=MAX_INPUTS,
            description="A text, a list of texts, or a list of parts such as "
            '`{"type": "text", "text": "…"}`. All parts together are one input.',
        ),
        BeforeValidator(_texts, json_schema_input_type=str | list[str] | list[ModerationText]),
    ]
    threshold: float = Field(
        default=0.5, ge=0, le=1, description="Score from which a category applies to a text."
    )
    truncation: Truncation = False

    input_fields: ClassVar[tuple[str, ...]] = ("input",)
    max_items: ClassVar[int | None] = MAX_INPUTS

    def items(self) -> tuple[list[Any], bool]:
        return list(self.input), False

    def parameters(self) -> dict[str, Any]:
        return {"field": "input", "truncation": self.truncation}

    def finishing(self) -> dict[str, Any]:
        return {"id": f"modr-{secrets.token_hex(12)}", "threshold": self.threshold}


class ModerationResult(TypedDict):
    """Result for one input. `flagged` is true if a harmful category applies."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class Moderation(TypedDict):
    id: str
    model: str
    results: list[ModerationResult]


def _result(labels: Sequence[Mapping[str, Any]], threshold: float) -> ModerationResult:
    scores: dict[str, float] = {label["label"]: label["score"] for label in labels}
    categories = {name: score >= threshold for name, score in scores.items()}
    return {
        "flagged": any(applies and not is_harmless(name) for name, applies in categories.items()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }


def is_harmless(label: str) -> bool:
    return label.lower().replace(" ", "_") in HARMLESS


def _moderation(work: "Work", results: Sequence[Any]) -> Moderation:
    return {
        "id": work.finishing["id"],
        "model": work.finishing["model"],
        "results": [_result(labels, work.finishing["threshold"]) for labels in results],
    }


TASK = Task(
    pipeline="text-classification",
    name="moderation",
    path="/v1/moderations",
    summary="Moderate texts",
    request=ModerationRequest,
    result=Moderation,
    whole=True,
    families=("bert",),
    example={"model": "moderator", "input": ["You are great.", "You are a fool."]},
    example_result={
        "id": "modr-7d1f2a90c3b84e56a1d20f97",
        "model": "moderator",
        "results": [
            {
                "flagged": False,
                "categories": {"toxic": False, "insult": False},
                "category_scores": {"toxic": 0.01, "insult": 0.01},
                "category_applied_input_types": {"toxic": ["text"], "insult": ["text"]},
            },
            {
                "flagged": True,
                "categories": {"toxic": True, "insult": True},
                "category_scores": {"toxic": 0.97, "insult": 0.9},
                "category_applied_input_types": {"toxic": ["text"], "insult": ["text"]},
            },
        ],
    },
    finish=_moderation,
)
