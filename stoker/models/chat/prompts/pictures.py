"""Prompts with images, as converted by a vision model's processor.

The processor is that of transformers. It resizes the images. For each image, it inserts as many
placeholder tokens into the prompt as the model has features. It receives only decoded images, never
a client's string.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import transformers

from stoker.base.media_limits import MediaLimits
from stoker.media import image
from stoker.media.errors import MediaError
from stoker.media.media import Media
from stoker.models.chat.prompts.history import has_image, with_later_images
from stoker.models.chat.prompts.templates import ChatTemplate
from stoker.models.llm.checkpoint import architecture
from stoker.models.llm.interface import Features
from stoker.models.llm.model_types import VISION
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import as_text

if TYPE_CHECKING:
    pass

library: Any = transformers

Messages = Sequence[Mapping[str, Any]]
_TOKENS = frozenset({"input_ids", "attention_mask"})


@dataclass(frozen=True)
class Picture:
    """Decoded image of a conversation."""

    image: Any
    """Pillow image in RGB."""
    field: str
    """Field of the request that contains the image."""


class ImagePrompts:
    """Prepares the images of one model's prompts."""

    def __init__(
        self, folder: Path, tokenizer: Any, template: ChatTemplate, limits: MediaLimits
    ) -> None:
        """
        Args:
            tokenizer: tokenizer of the folder. It receives the processor's chat template, if the
                processor has one.
            template: chat template of the tokenizer.

        Raises:
            UnservedModelError: the model's kind is not supported.
            TemplateLimitError: the chat template exceeds a limit.
        """
        self._tokenizer = tokenizer
        self._limits = limits
        self._processor = _processor(folder, tokenizer)
        tokenizer.chat_template = self._processor.chat_template or tokenizer.chat_template
        self._placeholder: str = self._processor.image_token
        image_token = getattr(tokenizer, "image_token", self._placeholder)
        self._reserved = {*self._processor.all_special_multimodal_tokens, image_token} - {
            self._placeholder
        }
        """Texts that would represent media that the prompt does not contain."""
        self._template = template

    def rendered(
        self, given: Messages, render: Callable[[Messages], str]
    ) -> tuple[str, Sequence[Picture]]:
        """Returns the rendered prompt and its images, in order.

        If the chat template does not show images of tools' outputs, the user's next message
        contains them.

        Args:
            render: renders messages in the form that the chat template accepts.

        Raises:
            InputError: an image cannot be decoded, or the chat template does not accept the
                messages.
        """
        messages, pictures = self._read(given)
        outputs = [message for message in given if has_image(message)]
        if not outputs:
            return render(messages), pictures
        refused: InputError | None = None
        try:
            text = render(messages)
            if self._shows(text, messages, pictures):
                return text, pictures
        except InputError as error:
            refused = error
        messages, pictures = self._read(with_later_images(given))
        try:
            return render(messages), pictures
        except InputError as error:
            if refused:
                raise refused from error
            part = next(part for part in outputs[0]["content"] if "image" in part)
            field = part["field"].rpartition(".")[0]
            why = (
                f"'{field}' is an image in a tool's output. This model's chat template accepts it "
                f"neither there nor in a user message after it ({error}). Leave it out."
            )
            raise _refusal(why, field) from error

    def _read(self, messages: Messages) -> tuple[list[dict[str, Any]], list[Picture]]:
        """Returns the messages in the form that the chat template accepts, and their decoded
        images.

        Raises:
            InputError: an image cannot be decoded or exceeds a limit.
        """
        pictures: list[Picture] = []
        prepared = [
            {**message, "content": self._content(message, pictures)} for message in messages
        ]
        return prepared, pictures

    def expanded(
        self, text: str, pictures: Sequence[Picture], place: str
    ) -> tuple[list[int], Features | None]:
        """Returns the tokens of a rendered prompt, with placeholders for its images, and the
        features.

        Raises:
            InputError: the prompt contains literal placeholders, or the processor rejects an image.
        """
        self._check(text, len(pictures), place)
        # Matches `apply_chat_template` of the processors.
        begun = self._tokenizer.bos_token and text.startswith(self._tokenizer.bos_token)
        special = {"add_special_tokens": not begun}
        if not pictures:
            return self._tokenizer(text, **special)["input_ids"], None
        images = [[picture.image for picture in pictures]]
        try:
            inputs = self._processor(text=[text], images=images, return_tensors="pt", **special)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            field = pictures[0].field if len(pictures) == 1 else place
            message = f"'{field}': the model's image processor cannot process the image."
            raise InputError(message, field=field, of_item=False, code="invalid_media") from error
        features = {name: value for name, value in inputs.items() if name not in _TOKENS}
        return inputs["input_ids"][0].tolist(), features

    def _shows(self, text: str, messages: Messages, pictures: Sequence[Picture]) -> bool:
        """Returns True if a rendered prompt has a placeholder for each image.

        Args:
            messages: the messages in the form that the chat template accepts.
        """
        literal = sum(as_text(message["content"]).count(self._placeholder) for message in messages)
        return text.count(self._placeholder) >= literal + len(pictures)

    def _content(self, message: Mapping[str, Any], pictures: list[Picture]) -> Any:
        content, role = message["content"], message["role"]
        if isinstance(content, list):
            parts = cast("list[dict[str, Any]]", content)
            content = [self._part(part, pictures) for part in parts]
        takes_any = self._template.takes_parts()
        takes_parts = takes_any and (role != "tool" or self._template.takes_parts("tool"))
        if not takes_parts:
            return as_text(content, "" if takes_any else self._placeholder)
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
        pixels = sum(earlier.image.width * earlier.image.height for earlier in before)
        if pixels + picture.width * picture.height > self._limits.video_pixels:
            most = f"{self._limits.video_pixels:,}"
            why = f"The images of this request have more than {most} pixels in total."
            raise _refusal(why, field, "invalid_media")
        return Picture(picture, field)

    def _check(self, text: str, images: int, place: str) -> None:
        """Raises `InputError` for placeholders in a text. They would count as images and shift the
        real ones.
        """
        marks = [mark for mark in self._reserved if mark in text]
        if text.count(self._placeholder) > images:
            marks.append(self._placeholder)
        if marks:
            raise _refusal(
                f"'{place}' contains '{marks[0]}', which this model's prompts reserve for media.",
                place,
            )
        if text.count(self._placeholder) < images:
            raise _refusal(
                f"'{place}' has images in places where this model's chat template accepts none.",
                place,
            )


def _processor(folder: Path, tokenizer: Any) -> Any:
    """Returns the model's processor, from a closed list and without its parts for videos and
    sounds.
    """
    kind: Any = getattr(library, VISION[architecture(folder)])
    kind = type(kind.__name__, (_ImagesOnly, kind), {})
    images = library.AutoImageProcessor.from_pretrained(str(folder), local_files_only=True)
    known = {"tokenizer": tokenizer, "image_processor": images}
    settings = _read(folder / "chat_template.json") | _read(folder / "processor_config.json")
    named = {
        name: settings[name]
        for name in inspect.signature(kind.__init__).parameters
        if name in settings
    }
    return kind(**named | {name: known.get(name) for name in kind.get_attributes()})


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


class _ImagesOnly:
    """Processor with optional parts. Those for videos would require torchvision."""

    def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
        if argument is None:
            return None
        parent: Any = super()
        return parent.check_argument_for_proper_class(name, argument)


def _refusal(message: str, field: str, code: str = "invalid_request") -> InputError:
    return InputError(message, field=field, of_item=False, code=code)
