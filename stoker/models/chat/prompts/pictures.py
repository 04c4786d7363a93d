"""Prompts with images: what a vision model's processor makes of them.

The processor is transformers' own: it resizes the images and puts as many placeholder tokens into
the prompt as the model has features for each. It sees decoded images only, never a client's string.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import transformers

from stoker.base.media_limits import MediaLimits
from stoker.media import image
from stoker.media.errors import MediaError
from stoker.media.media import Media
from stoker.models.chat.prompts.templates import ChatTemplate
from stoker.models.llm.checkpoint import architecture
from stoker.models.llm.interface import Features
from stoker.models.llm.model_types import VISION
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import as_text

if TYPE_CHECKING:
    pass

library: Any = transformers

_TOKENS = frozenset({"input_ids", "attention_mask"})


@dataclass(frozen=True)
class Picture:
    """A decoded image of a conversation."""

    image: Any
    """Of Pillow, RGB."""
    field: str
    """Where it stands in the request."""


class ImagePrompts:
    """The images of one model's prompts."""

    def __init__(
        self, folder: Path, tokenizer: Any, template: ChatTemplate, limits: MediaLimits
    ) -> None:
        """
        Args:
            tokenizer: the folder's; it gets the processor's chat template where it has none.
            template: the tokenizer's.

        Raises:
            UnservedModelError: the model is of a kind that is not served.
            TemplateLimitError: the chat template takes too much.
        """
        self._tokenizer = tokenizer
        self._limits = limits
        self._processor = _processor(folder, tokenizer)
        tokenizer.chat_template = self._processor.chat_template or tokenizer.chat_template
        self._placeholder: str = self._processor.image_token
        own = getattr(tokenizer, "image_token", self._placeholder)
        self._reserved = {*self._processor.all_special_multimodal_tokens, own} - {self._placeholder}
        """Texts that would stand for media which is not there."""
        self._takes_parts = template.takes_parts()

    def read(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[Picture]]:
        """The messages as the chat template takes them, and their images, decoded.

        Raises:
            InputError: an image cannot be decoded or is over a limit.
        """
        pictures: list[Picture] = []
        found = [{**message, "content": self._content(message, pictures)} for message in messages]
        return found, pictures

    def expanded(
        self, text: str, pictures: Sequence[Picture], place: str
    ) -> tuple[list[int], Features | None]:
        """The tokens of a rendered prompt, with placeholders for its images, and the features.

        Raises:
            InputError: the prompt has placeholders of its own, or the processor refuses an image.
        """
        self._check(text, len(pictures), place)
        # As the processors' own `apply_chat_template` does it.
        begun = self._tokenizer.bos_token and text.startswith(self._tokenizer.bos_token)
        special = {"add_special_tokens": not begun}
        if not pictures:
            return self._tokenizer(text, **special)["input_ids"], None
        images = [[picture.image for picture in pictures]]
        try:
            found = self._processor(text=[text], images=images, return_tensors="pt", **special)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            field = pictures[0].field if len(pictures) == 1 else place
            message = f"'{field}': the model's image processor cannot take the image."
            raise InputError(message, field=field, of_item=False, code="invalid_media") from error
        features = {name: value for name, value in found.items() if name not in _TOKENS}
        return found["input_ids"][0].tolist(), features

    def _content(self, message: Mapping[str, Any], pictures: list[Picture]) -> Any:
        content: Any = message["content"]
        if isinstance(content, list):
            given = cast("list[dict[str, Any]]", content)
            content = [self._part(part, pictures) for part in given]
        if not self._takes_parts:
            return as_text(content, self._placeholder)
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    def _part(self, part: dict[str, Any], pictures: list[Picture]) -> dict[str, Any]:
        if part["type"] != "image":
            return part
        pictures.append(self._decoded(part["image"], part["field"], pictures))
        return {"type": "image"}

    def _decoded(self, media: Media, field: str, before: Sequence[Picture]) -> Picture:
        try:
            picture = image.decode(media.content or b"", self._limits)
        except MediaError as error:
            raise _refusal(error.message, field, "invalid_media") from error
        pixels = sum(one.image.width * one.image.height for one in before)
        if pixels + picture.width * picture.height > self._limits.video_pixels:
            most = f"{self._limits.video_pixels:,}"
            why = f"The images of this request have more than {most} pixels together."
            raise _refusal(why, field, "invalid_media")
        return Picture(picture, field)

    def _check(self, text: str, images: int, place: str) -> None:
        """A text's own placeholders would be taken for images, and shift those that there are."""
        marks = [one for one in self._reserved if one in text]
        if text.count(self._placeholder) > images:
            marks.append(self._placeholder)
        if marks:
            raise _refusal(
                f"'{place}' contains '{marks[0]}', which stands for media in this model's prompts.",
                place,
            )
        if text.count(self._placeholder) < images:
            raise _refusal(
                f"'{place}' has images where this model's chat template takes none.", place
            )


def _processor(folder: Path, tokenizer: Any) -> Any:
    """The model's processor, of the closed list and without what it needs for videos and sounds."""
    kind: Any = getattr(library, VISION[architecture(folder)])
    kind = type(kind.__name__, (_ImagesOnly, kind), {})
    images = library.AutoImageProcessor.from_pretrained(str(folder), local_files_only=True)
    known = {"tokenizer": tokenizer, "image_processor": images}
    own = _read(folder / "chat_template.json") | _read(folder / "processor_config.json")
    named = {name: own[name] for name in inspect.signature(kind.__init__).parameters if name in own}
    return kind(**named | {name: known.get(name) for name in kind.get_attributes()})


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


class _ImagesOnly:
    """A processor whose other parts may be left out: those for videos need torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        if argument is None:
            return None
        parent: Any = super()
        return parent.check_argument_for_proper_class(name, argument)


def _refusal(message: str, field: str, code: str = "invalid_request") -> InputError:
    return InputError(message, field=field, of_item=False, code=code)
