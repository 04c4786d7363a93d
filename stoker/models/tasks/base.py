"""Definition of a pipeline task: its route, request, result and stages in a replica.

Each task has one file; registry.py lists them. The gateway *and* replicas import a task file, so it
imports neither a web framework nor an engine at module level.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stoker.base.strict_json import Strict
from stoker.media.media import Media, MediaKind
from stoker.models.stages.kinds import ModelKind
from stoker.models.tasks.field_checks import refusal

if TYPE_CHECKING:
    from stoker.models.stages.base import Stages
    from stoker.wire.protocol import Work


class TaskRequest(Strict):
    """Base of the task requests. Fields other than `inputs` and `model` are parameters."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    texts_for_values = "in forms"

    model: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Model id of the deployment. Required if the key covers several.",
    )

    @model_validator(mode="before")
    @classmethod
    def _flatten(cls, data: Any) -> Any:
        """Accepts the Hugging Face client format: merges the fields of `parameters` into the
        request.
        """
        if not isinstance(data, dict) or "parameters" not in data:
            return cast("Any", data)
        body = cast("dict[str, Any]", data)
        nested = body["parameters"]
        if nested is None:
            return {name: value for name, value in body.items() if name != "parameters"}
        if not isinstance(nested, dict):
            raise ValueError("'parameters' must be an object")
        parameters = cast("dict[str, Any]", nested)
        if twice := sorted(set(parameters) & set(body)):
            raise ValueError(f"'{twice[0]}' is given twice: in 'parameters' and outside it")
        return {name: value for name, value in body.items() if name != "parameters"} | parameters

    input_fields: ClassVar[tuple[str, ...]] = ("inputs",)
    """Fields that become items; the others are parameters."""
    max_items: ClassVar[int | None] = None
    """Maximum number of items, if the request's API convention sets one. None means the server's
    own limit.
    """

    def items(self) -> tuple[list[Any], bool]:
        """Returns the inputs as a list, and True if the request had a single input outside a
        list.
        """
        inputs: Any = getattr(self, self.input_fields[0])
        if isinstance(inputs, list):
            return cast("list[Any]", inputs), False
        return [inputs], True

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters that the replica's stages receive with each input. Omitted fields
        keep their defaults.
        """
        return self.model_dump(exclude={*self.input_fields, "model", "timeout"}, exclude_none=True)

    def finishing(self) -> dict[str, Any]:
        """Returns the values that `Task.finish` needs in addition to the results and the model's
        id, which is `model`.
        """
        return {}

    def media(self) -> Iterator[tuple[str, Media]]:
        """Yields the media in the inputs, each with the path of its field."""
        for name in self.input_fields:
            yield from _media_in(getattr(self, name, None), name)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yields the texts in the inputs, each with the path of its field."""
        for name in self.input_fields:
            yield from _texts_in(getattr(self, name, None), name)


class NestedRequest(TaskRequest):
    """Base of requests with several input fields, which Hugging Face's clients send as `inputs`.

    `inputs` is an object with those fields or, with `nested_lists`, a list of such objects.
    """

    nested_lists: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _unnest(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "inputs" not in data:
            return cast("Any", data)
        body = dict(cast("dict[str, Any]", data))
        inputs = body.pop("inputs")
        if twice := sorted(set(cls.input_fields) & set(body)):
            raise refusal("is given twice: in 'inputs' and outside it", twice[0])
        if not (cls.nested_lists and isinstance(inputs, list)):
            return body | cls._nested_fields(inputs)
        many = [
            cls._nested_fields(fields, index)
            for index, fields in enumerate(cast("list[Any]", inputs))
        ]
        if not many or any(set(fields) != set(many[0]) for fields in many):
            raise refusal("must not be empty, and its objects must have the same fields", "inputs")
        return body | {name: [fields[name] for fields in many] for name in many[0]}

    @classmethod
    def _nested_fields(cls, value: Any, *index: int) -> dict[str, Any]:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        required = {name for name in cls.input_fields if cls.model_fields[name].is_required()}
        if not required <= set(fields) <= set(cls.input_fields):
            names = " and ".join(f"'{name}'" for name in sorted(required))
            raise refusal(f"must be an object with {names}", "inputs", *index)
        return fields


class MediaRequest(TaskRequest):
    """Base of requests with media that may have to be fetched."""

    timeout: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description=(
            "Maximum time in seconds to fetch media from URLs. null: the server's own limit."
        ),
    )


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for index, item in enumerate(cast("list[Any]", value)):
            yield from _walk(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, item in cast("dict[str, Any]", value).items():
            yield from _walk(item, f"{path}.{name}")
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _walk(getattr(value, name), f"{path}.{name}")
    else:
        yield path, value


def _media_in(value: Any, path: str) -> Iterator[tuple[str, Media]]:
    return ((place, leaf) for place, leaf in _walk(value, path) if isinstance(leaf, Media))


def _texts_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    return ((place, leaf) for place, leaf in _walk(value, path) if isinstance(leaf, str))


def _place(field: str, index: int) -> str:
    return f"{field}[{index}]"


def _finish(work: "Work", results: Sequence[Any]) -> Any:
    """Returns one result for a single input, and a list of results for a list."""
    return results[0] if work.single else results


@dataclass(frozen=True, kw_only=True)
class Task:
    """A pipeline task: an endpoint and the way in which deployments of its pipeline serve it."""

    pipeline: str
    """The hub's name of the task, such as `token-classification`."""
    path: str
    aliases: tuple[str, ...] = ()
    """Other paths of the same endpoint, for clients of other APIs."""
    summary: str
    request: type[TaskRequest]
    result: Any
    """Type of the result of one input or, with `whole`, of the complete answer."""
    whole: bool = False
    """True if the answer is one object, independent of the number of inputs."""
    media: Mapping[str, MediaKind] = field(default_factory=dict[str, MediaKind])
    """Request fields that accept media, also as form fields and as a raw body."""
    bare: bool = True
    """True if a request body may be the media itself."""
    also: tuple[str, ...] = ()
    """Other pipelines with deployments that serve this endpoint by their own stages."""
    name: str = ""
    """Unique name. Default: the pipeline's name."""
    architectures: tuple[str, ...] = ()
    """Patterns of `config.architectures` that can serve this task; see `architectures.matching`."""
    families: tuple[str, ...] = ()
    """Model families that the tests compare with transformers itself."""
    kind: ModelKind = ModelKind.PASSES
    """Kind of computation of the pipeline's models."""
    example: Mapping[str, Any]
    """Example of a request body."""
    example_result: Any = None
    stages: "Callable[[Path], Stages] | None" = field(default=None, repr=False)
    """Builds the stages for a model folder. None means that another task of the pipeline builds
    them.
    """
    finish: "Callable[[Work, Sequence[Any]], Any]" = field(default=_finish, repr=False)
    """Builds the answer from the results of all items, in the replica."""

    place: "Callable[[str, int], str]" = field(default=_place, repr=False)
    """Maps the input field and the item's index to the path that names the item in an error."""

    direct: "Callable[[Stages, Any, Mapping[str, Any]], Any] | None" = field(
        default=None, repr=False
    )
    """Returns the result of an item from its parameters without a forward pass. Raises
    `InputError`. None means that the model is run.
    """

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.pipeline)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Pipelines with deployments that serve this endpoint."""
        return (self.pipeline, *self.also)

    @property
    def input_field(self) -> str:
        """Request field that an error names if the model fails on an input."""
        return self.request.input_fields[0]


@dataclass(frozen=True, kw_only=True)
class MediaPipeline:
    """A pipeline that makes or transcribes media.

    It has no endpoint. OpenAI's endpoints call it, see stoker/inference/openai.
    """

    name: str
    """The hub's name of the task, such as `text-to-image`."""
    paths: tuple[str, ...]
    """The endpoints that its deployments serve."""
    architectures: tuple[str, ...]
    """Patterns of `config.architectures` or of a diffusers pipeline's class that can serve it."""
    families: tuple[str, ...]
    """Model families that the tests compare with their original library."""
    kind: ModelKind = ModelKind.PASSES
    """Kind of computation of its models."""
    stages: "Callable[[Path], Stages]" = field(repr=False)
    """Builds the stages for a model folder."""
    input_field: str
    """Request field that an error names if the model fails on an input."""
    finish: "Callable[[Work, Sequence[Any]], Any]" = field(default=_finish, repr=False)
    """Builds the answer from the results of all items, in the replica: bytes or JSON objects."""

    place: "Callable[[str, int], str]" = field(default=_place, repr=False)
    """See `Task.place`."""

    direct: ClassVar[None] = None
    """See `Task.direct`."""


@dataclass(frozen=True, kw_only=True)
class LanguagePipeline:
    """A pipeline of language models. It is not a task, because answers may be streamed, and it has
    no stages.

    It has no endpoint. OpenAI's endpoints call it, see stoker/inference/openai.
    """

    name: str
    """The hub's name of the task, such as `text-generation`."""
    paths: tuple[str, ...]
    """The endpoints that its deployments serve."""
    architectures: tuple[str, ...]
    """Patterns of `config.architectures` that can serve it."""
    kind: ModelKind
