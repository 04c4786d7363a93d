"""Requests that pair images with questions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stoker.replica.pipelines import ImageStages
from stoker.replica.stages import InputError
from stoker.tasks.base import MediaRequest
from stoker.tasks.inputs import MANY, ONE, ImageInputs, one_or_many

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

Question = Annotated[str, Field(min_length=1)]
Questions = Annotated[
    Annotated[Question, Tag(ONE)] | Annotated[list[Question], Field(min_length=1), Tag(MANY)],
    Discriminator(one_or_many),
    Field(
        description="A question, or a list: one each for as many images, or all of them for one."
    ),
]


class ImageQuestionRequest(MediaRequest):
    """Images and questions; also taken as `inputs`, an object with both or a list of such."""

    image: ImageInputs
    question: Questions

    input_fields: ClassVar[tuple[str, ...]] = ("image", "question")

    @model_validator(mode="before")
    @classmethod
    def _from_inputs(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "inputs" not in data:
            return cast("Any", data)
        body = cast("dict[str, Any]", data)
        if twice := sorted(set(cls.input_fields) & set(body)):
            raise _refusal("is given in 'inputs' and beside it", twice[0])
        rest = {name: value for name, value in body.items() if name != "inputs"}
        return rest | _parted(body["inputs"], cls.input_fields)

    @field_validator("question")
    @classmethod
    def _questions_fit_images(cls, question: Any, info: ValidationInfo) -> Any:
        images, questions = _count(info.data.get("image")), _count(question)
        if images != questions and 1 not in (images, questions):
            raise ValueError(
                f"there are {questions} for {images} images: give one question, one image, or as "
                "many of both"
            )
        return question

    def items(self) -> tuple[list[Any], bool]:
        """Objects with `image`, `question`, and where each stands in the request."""
        count = max(_count(self.image), _count(self.question))
        images = _places(self.image, "image", count)
        questions = _places(self.question, "question", count)
        items = [
            {"image": image, "image_at": image_at, "question": question, "question_at": question_at}
            for (image, image_at), (question, question_at) in zip(images, questions, strict=True)
        ]
        single = not isinstance(self.image, list) and not isinstance(self.question, list)
        return items, single


class ImageQuestionStages(ImageStages):
    """The replica side of such requests' items."""

    def picture(self, item: Mapping[str, Any]) -> "Image":
        """An item's image, RGB, upright. Raises `InputError`, naming its place in the request."""
        try:
            return self.image(item["image"])
        except InputError as error:
            raise InputError(
                error.message, field=item["image_at"], of_item=False, code=error.code
            ) from error


def _parted(inputs: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """An object of fields as those fields; a list of objects as lists of fields."""
    if not isinstance(inputs, list):
        return _fields(inputs, names, "inputs")
    objects = [
        _fields(one, names, "inputs", index) for index, one in enumerate(cast("list[Any]", inputs))
    ]
    if not objects:
        raise _refusal("must not be empty", "inputs")
    if any(set(one) != set(objects[0]) for one in objects):
        raise _refusal("all objects must have the same fields", "inputs")
    return {name: [one[name] for one in objects] for name in objects[0]}


def _fields(value: Any, names: tuple[str, ...], *place: str | int) -> dict[str, Any]:
    given = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not {"image", "question"} <= set(given) <= set(names):
        raise _refusal("must be an object with 'image' and 'question'", *place)
    return given


def _refusal(message: str, *place: str | int) -> ValidationError:
    """What a validator of the whole request raises to name a place in it."""
    kind = PydanticCustomError("value_error", "{message}", {"message": message})
    return ValidationError.from_exception_data("", [{"type": kind, "loc": place, "input": None}])


def _count(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list) else 1


def _places(value: T | list[T], name: str, count: int) -> list[tuple[T, str]]:
    """`count` values, a single one as often as needed, each with its path in the request."""
    if not isinstance(value, list):
        return [(value, name)] * count
    many = cast("list[T]", value)
    if len(many) == 1:
        return [(many[0], f"{name}[0]")] * count
    return [(one, f"{name}[{index}]") for index, one in enumerate(many)]
