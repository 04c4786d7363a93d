"""What a pipeline task is: its route, its request, its result, and how a replica runs it.

One file a task; registry.py lists them. A task file is imported by the gateway *and* by replicas,
so it imports neither a web framework nor an engine at module level.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

if TYPE_CHECKING:
    from stoker.replica.stages import Stages

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


class TaskRequest(BaseModel):
    """Base of the task requests. Fields other than `inputs` and `model` are parameters."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="The deployment's model id; needed where the key covers several.",
    )

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, data: Any) -> Any:
        """Read the Hugging Face client form: `parameters` as if they stood beside `inputs`."""
        if not isinstance(data, dict) or "parameters" not in data:
            return cast("Any", data)
        body = cast("dict[str, Any]", data)
        given = body["parameters"]
        if given is None:
            return {name: value for name, value in body.items() if name != "parameters"}
        if not isinstance(given, dict):
            raise ValueError("'parameters' must be an object")
        parameters = cast("dict[str, Any]", given)
        if twice := sorted(set(parameters) & set(body)):
            raise ValueError(f"'{twice[0]}' is given twice, in 'parameters' and beside 'inputs'")
        return {name: value for name, value in body.items() if name != "parameters"} | parameters

    def items(self) -> tuple[list[Any], bool]:
        """The inputs as a list, and whether there was a single one outside a list."""
        inputs: Any = getattr(self, "inputs")  # noqa: B009 - subclasses declare it
        if isinstance(inputs, list):
            return cast("list[Any]", inputs), False
        return [inputs], True

    def parameters(self) -> dict[str, Any]:
        """What the replica's stages get beside an input; fields left out keep their defaults."""
        return self.model_dump(exclude={"inputs", "model"}, exclude_none=True)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A pipeline task."""

    pipeline: str
    """The hub's name of the task, such as `token-classification`."""
    path: str
    summary: str
    request: type[TaskRequest]
    result: Any
    """Type of the result of one input."""
    architectures: tuple[str, ...]
    """Patterns of `config.architectures` that can serve this task."""
    example: Mapping[str, Any]
    """A request body."""
    example_result: Any = None
    stages: "Callable[[Path], Stages]" = field(repr=False)
    """Builds the replica side for a model folder."""
