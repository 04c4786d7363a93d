"""What a pipeline task is: its route, its request, its result, and how a replica runs it.

One file a task; registry.py lists them. A task file is imported by the gateway *and* by replicas,
so it imports neither a web framework nor an engine at module level.
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

    input_fields: ClassVar[tuple[str, ...]] = ("inputs",)
    """Fields that become items; the others are parameters."""
    max_items: ClassVar[int | None] = None
    """Most items where the request's convention sets it; None: the server's own limit."""

    def items(self) -> tuple[list[Any], bool]:
        """The inputs as a list, and whether there was a single one outside a list."""
        inputs: Any = getattr(self, self.input_fields[0])
        if isinstance(inputs, list):
            return cast("list[Any]", inputs), False
        return [inputs], True

    def parameters(self) -> dict[str, Any]:
        """What the replica's stages get beside an input; fields left out keep their defaults."""
        return self.model_dump(exclude={*self.input_fields, "model", "timeout"}, exclude_none=True)

    def finishing(self) -> dict[str, Any]:
        """What `Task.finish` needs beside the results and the model's id, which is `model`."""
        return {}

    def media(self) -> Iterator[tuple[str, Media]]:
        """The media in the inputs, each with the path of its field."""
        for name in self.input_fields:
            yield from _media_in(getattr(self, name, None), name)

    def texts(self) -> Iterator[tuple[str, str]]:
        """The texts in the inputs, each with the path of its field."""
        for name in self.input_fields:
            yield from _texts_in(getattr(self, name, None), name)


class NestedRequest(TaskRequest):
    """Base of the requests of several input fields, which Hugging Face's clients send as `inputs`.

    That is an object with those fields or, with `nested_lists`, a list of such objects.
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
            raise refusal("is given twice, in 'inputs' and beside it", twice[0])
        if not (cls.nested_lists and isinstance(inputs, list)):
            return body | cls._nested_fields(inputs)
        many = [
            cls._nested_fields(one, index) for index, one in enumerate(cast("list[Any]", inputs))
        ]
        if not many or any(set(one) != set(many[0]) for one in many):
            raise refusal("must not be empty, and its objects must have the same fields", "inputs")
        return body | {name: [one[name] for one in many] for name in many[0]}

    @classmethod
    def _nested_fields(cls, value: Any, *index: int) -> dict[str, Any]:
        given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        required = {name for name in cls.input_fields if cls.model_fields[name].is_required()}
        if not required <= set(given) <= set(cls.input_fields):
            names = " and ".join(f"'{name}'" for name in sorted(required))
            raise refusal(f"must be an object with {names}", "inputs", *index)
        return given


class MediaRequest(TaskRequest):
    """Base of the requests whose media may have to be fetched."""

    timeout: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Longest time to fetch media from URLs, seconds; null: the server's own limit.",
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
    return ((place, one) for place, one in _walk(value, path) if isinstance(one, Media))


def _texts_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    return ((place, one) for place, one in _walk(value, path) if isinstance(one, str))


def _place(field: str, index: int) -> str:
    return f"{field}[{index}]"


def _finish(work: "Work", results: Sequence[Any]) -> Any:
    """One input in, one result out; a list in, a list out."""
    return results[0] if work.single else results


@dataclass(frozen=True, kw_only=True)
class Task:
    """A pipeline task: an endpoint, and how deployments of its pipeline serve it."""

    pipeline: str
    """The hub's name of the task, such as `token-classification`."""
    path: str
    aliases: tuple[str, ...] = ()
    """Other paths of the same endpoint, where clients of a convention look for it."""
    summary: str
    request: type[TaskRequest]
    result: Any
    """Type of the result of one input; with `whole`, of the answer."""
    whole: bool = False
    """The answer is one object, whatever the number of inputs."""
    media: Mapping[str, MediaKind] = field(default_factory=dict[str, MediaKind])
    """Fields of the request that take media, also as form fields and as a raw body."""
    bare: bool = True
    """Whether a body may be the media itself."""
    also: tuple[str, ...] = ()
    """Other pipelines whose deployments serve this endpoint with stages of their own."""
    name: str = ""
    """Unique; the pipeline's name where it is not given."""
    architectures: tuple[str, ...] = ()
    """Patterns of `config.architectures` that can serve this task; see `architectures.matching`."""
    families: tuple[str, ...] = ()
    """Model families that the tests compare with transformers itself."""
    kind: ModelKind = ModelKind.PASSES
    """How the pipeline's models compute."""
    example: Mapping[str, Any]
    """A request body."""
    example_result: Any = None
    stages: "Callable[[Path], Stages] | None" = field(default=None, repr=False)
    """Builds the replica side for a model folder; None: another task of the pipeline does."""
    finish: "Callable[[Work, Sequence[Any]], Any]" = field(default=_finish, repr=False)
    """Makes the answer, in the replica, from the results of all items."""

    place: "Callable[[str, int], str]" = field(default=_place, repr=False)
    """Names an item in an error: the field that is at fault, the item's index → its path."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.pipeline)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The pipelines whose deployments serve this endpoint."""
        return (self.pipeline, *self.also)

    @property
    def input_field(self) -> str:
        """The request's field that is at fault where the model fails on an input."""
        return self.request.input_fields[0]


@dataclass(frozen=True, kw_only=True)
class MediaPipeline:
    """A pipeline that makes or transcribes media.

    It has no endpoint of its own: OpenAI's endpoints call it, see stoker/inference/openai.
    """

    name: str
    """The hub's name of the task, such as `text-to-image`."""
    paths: tuple[str, ...]
    """The endpoints that its deployments serve."""
    architectures: tuple[str, ...]
    """Patterns of what can serve it: `config.architectures`, or a diffusers pipeline's class."""
    families: tuple[str, ...]
    """Model families that the tests compare with the library that they come from."""
    kind: ModelKind = ModelKind.PASSES
    """How its models compute."""
    stages: "Callable[[Path], Stages]" = field(repr=False)
    """Builds the replica side for a model folder."""
    input_field: str
    """The request's field that is at fault where the model fails on an input."""
    finish: "Callable[[Work, Sequence[Any]], Any]" = field(default=_finish, repr=False)
    """Makes the answer, in the replica, from the results of all items: bytes, or JSON's objects."""

    place: "Callable[[str, int], str]" = field(default=_place, repr=False)
    """See `Task.place`."""


@dataclass(frozen=True, kw_only=True)
class LanguagePipeline:
    """A pipeline of language models: no task, as answers may be streamed, and without stages.

    It has no endpoint of its own: OpenAI's endpoints call it, see stoker/inference/openai.
    """

    name: str
    """The hub's name of the task, such as `text-generation`."""
    paths: tuple[str, ...]
    """The endpoints that its deployments serve."""
    architectures: tuple[str, ...]
    """Patterns of `config.architectures` that can serve it."""
    kind: ModelKind
