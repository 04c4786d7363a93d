"""Places images, recordings and videos in requests of task endpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from .errors import WrongUseError
from .request import Files, JsonObject

Media = str | Path | bytes
"""A file, its content, or a text: a URL, a data URI or base64."""

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
VIDEOS = "/v1/videos"


@dataclass(frozen=True)
class Taking:
    """Request fields for the inputs of an endpoint."""

    media: str
    """Field for files, URLs and base64."""
    kind: str
    text: str = ""
    """Field for additional texts. Empty if the endpoint has none."""
    is_list: bool = False
    """True if a single text is sent as a list."""


_LABELS = "candidate_labels"
MEDIA: Mapping[str, Taking] = {
    "/v1/classifications/image": Taking("inputs", "image"),
    "/v1/classifications/zero-shot/image": Taking("image", "image", _LABELS, is_list=True),
    "/v1/images/segmentation": Taking("inputs", "image"),
    "/v1/detections/object": Taking("inputs", "image"),
    "/v1/detections/zero-shot/object": Taking("image", "image", _LABELS, is_list=True),
    "/v1/images/depth": Taking("inputs", "image"),
    "/v1/images/masks": Taking("inputs", "image"),
    "/v1/images/feature-extraction": Taking("inputs", "image"),
    "/v1/images/to-text": Taking("inputs", "image"),
    "/v1/classifications/video": Taking("inputs", "video"),
    "/v1/classifications/audio": Taking("inputs", "audio"),
    "/v1/classifications/zero-shot/audio": Taking("audio", "audio", _LABELS, is_list=True),
    "/v1/question-answering/visual": Taking("image", "image", "question"),
    "/v1/question-answering/document": Taking("image", "image", "question"),
    TRANSCRIPTIONS: Taking("file", "audio"),
    TRANSLATIONS: Taking("file", "audio"),
}
"""Endpoints of tasks and transcriptions that take media. All others take only texts."""


@dataclass(frozen=True)
class Inputs:
    """Parts of a request built from the inputs."""

    fields: JsonObject = field(default_factory=dict[str, Any])
    files: Files = ()

    @property
    def names(self) -> set[str]:
        return {*self.fields, *(name.removesuffix("[]") for name, _ in self.files)}


def placed_media(name: str, media: Sequence[Media], fields: JsonObject, *, is_one: bool) -> Inputs:
    """Places media in a JSON body, or in a form if one of them is a file or bytes.

    Args:
        name: the request's field for media.
        fields: the other fields of the request.
        is_one: True if the medium is not a list.
    """
    if not any(isinstance(item, Path | bytes) for item in media):
        return Inputs(fields | {name: media[0] if is_one else list(media)} if media else fields)
    key = name if is_one else f"{name}[]"
    return Inputs(fields, [(key, item) for item in media])


def with_media(fields: JsonObject, name: str | None) -> Inputs:
    """Returns the parts of a request whose field `name` may contain files or bytes."""
    value = fields.get(name) if name else None
    items = cast("list[object]", value) if isinstance(value, list | tuple) else [value]
    if name is None or not any(isinstance(item, Path | bytes) for item in items):
        return Inputs(fields)
    media = [item for item in items if isinstance(item, str | Path | bytes)]
    if len(media) < len(items):
        raise WrongUseError(f"'{name}' mixes files with arrays of numbers: send them separately.")
    others = {key: other for key, other in fields.items() if key != name}
    return placed_media(name, media, others, is_one=not isinstance(value, list | tuple))
