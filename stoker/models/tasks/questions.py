"""Requests that pair images with questions."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from stoker.models.stages.base import InputError
from stoker.models.stages.pipelines import ImageStages
from stoker.models.tasks.base import MediaRequest, NestedRequest
from stoker.models.tasks.inputs import MANY, ONE, ImageInputs, one_or_many

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")

Question = Annotated[str, Field(min_length=1)]
Questions = Annotated[
    Annotated[Question, Tag(ONE)] | Annotated[list[Question], Field(min_length=1), Tag(MANY)],
    Discriminator(one_or_many),
    Field(
        description=(
            "A question, or a list: one question for each image, or several questions "
            "about one image."
        )
    ),
]


class ImageQuestionRequest(NestedRequest, MediaRequest):
    """Images and questions. `inputs` is accepted too: an object with both fields, or a list of such
    objects.
    """

    image: ImageInputs
    question: Questions

    input_fields: ClassVar[tuple[str, ...]] = ("image", "question")
    nested_lists = True

    @model_validator(mode="before")
    @classmethod
    def _one_image(cls, data: Any) -> Any:
        """Accepts the format of huggingface_hub's client for an image, which repeats `image` as
        `inputs`.
        """
        body = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
        same = isinstance(body.get("inputs"), str) and body["inputs"] == body.get("image")
        if not same:
            return cast("Any", data)
        return {name: value for name, value in body.items() if name != "inputs"}

    @field_validator("question")
    @classmethod
    def _questions_fit_images(cls, question: Any, info: ValidationInfo) -> Any:
        images, questions = _count(info.data.get("image")), _count(question)
        if images != questions and 1 not in (images, questions):
            raise ValueError(
                f"{questions} questions do not fit {images} images: send one question, one "
                "image, or the same number of both"
            )
        return question

    def items(self) -> tuple[list[Any], bool]:
        """Returns objects with `image`, `question` and the path of each in the request."""
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
    """Stages for items with an image and a question."""

    def picture(self, item: Mapping[str, Any]) -> "Image":
        """Returns an item's image, RGB, upright. Raises `InputError` with the image's path in the
        request.
        """
        try:
            return self.image(item["image"])
        except InputError as error:
            raise InputError(
                error.message, field=item["image_at"], of_item=False, code=error.code
            ) from error


def _count(value: Any) -> int:
    return len(cast("list[Any]", value)) if isinstance(value, list) else 1


def _places(value: T | list[T], name: str, count: int) -> list[tuple[T, str]]:
    """Returns `count` values, each with its path in the request. A single value is repeated."""
    if not isinstance(value, list):
        return [(value, name)] * count
    many = cast("list[T]", value)
    if len(many) == 1:
        return [(many[0], f"{name}[0]")] * count
    return [(item, f"{name}[{index}]") for index, item in enumerate(many)]
