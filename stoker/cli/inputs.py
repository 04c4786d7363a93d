"""What the inputs of `stoker call` are to a model: texts, files, addresses of media."""

import base64
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.client.client import Files, JsonObject
from stoker.client.errors import WrongUseError

CHAT = "/v1/chat/completions"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
SEEING = "image-text-to-text"


@dataclass(frozen=True)
class Taking:
    """Where an endpoint takes what it is given."""

    media: str
    """The field of files, addresses and base64."""
    kind: str
    text: str = ""
    """The field of the texts beside them; empty: there are none."""
    is_list: bool = False
    """One text is a list of one."""


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
"""Endpoints that take media; all others take texts alone."""

_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        ("png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "heic", "avif", "svg", "pdf"),
        ("wav", "mp3", "flac", "ogg", "oga", "opus", "aac", "m4a", "wma"),
        ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg"),
    )
    for name in names
)
"""Of files that are media, or that somebody may take for such."""
_ADDRESSES = ("http://", "https://", "data:")


@dataclass(frozen=True)
class Inputs:
    """What of a request the inputs are."""

    fields: JsonObject = field(default_factory=dict[str, Any])
    files: Files = ()

    @property
    def names(self) -> set[str]:
        return {*self.fields, *(name.removesuffix("[]") for name, _ in self.files)}


def read(arguments: Sequence[str], lines: Path | None) -> str | list[str] | None:
    """One input as it is, several as a list; a file's lines are a list, even one."""
    if lines:
        if arguments:
            raise WrongUseError("Give the inputs either as arguments or with --file.")
        return [line for line in lines.read_text(encoding="utf-8").splitlines() if line]
    if list(arguments) == ["-"]:
        return sys.stdin.read().removesuffix("\n")
    return arguments[0] if len(arguments) == 1 else list(arguments) or None


def placed(given: str | list[str] | None, model: JsonObject, endpoint: str) -> Inputs:
    """The inputs in the fields of the endpoint. Raises `WrongUseError`."""
    if given is None:
        return Inputs()
    if endpoint == CHAT:
        return Inputs({"messages": [{"role": "user", "content": _said(given, model)}]})
    if endpoint not in MEDIA:
        return Inputs({"inputs": given})
    return _media(given, MEDIA[endpoint])


def _media(given: str | list[str], taking: Taking) -> Inputs:
    media: list[Path | str] = []
    texts: list[str] = []
    for one in [given] if isinstance(given, str) else given:
        if path := _file(one, taking.kind, beside_texts=bool(taking.text)):
            media.append(path)
        elif taking.text and not one.startswith(_ADDRESSES):
            texts.append(one)
        else:
            # An address, or base64: the server says what is wrong with anything else.
            media.append(one)
    fields: JsonObject = {}
    if texts:
        fields[taking.text] = texts if taking.is_list or len(texts) > 1 else texts[0]
    # One beside texts is no list; one that came as a list, of a file's lines, is.
    is_one = len(media) == 1 and (isinstance(given, str) or len(given) > 1)
    if not any(isinstance(one, Path) for one in media):
        if media:
            fields[taking.media] = media[0] if is_one else media
        return Inputs(fields)
    name = taking.media if is_one else f"{taking.media}[]"
    return Inputs(fields, [(name, one) for one in media])


def _said(given: str | list[str], model: JsonObject) -> str | list[JsonObject]:
    """A user's message: a text, or the images and texts of one to a model that sees."""
    many = [given] if isinstance(given, str) else given
    if model["pipeline"] != SEEING:
        if len(many) > 1:
            raise WrongUseError(f"{model['id']} takes one text.", hint="Put it in quotes.")
        return many[0] if many else ""
    parts = [_part(one) for one in many]
    return many[0] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _part(given: str) -> JsonObject:
    path = _file(given, "image", beside_texts=True)
    if path is None and not given.startswith(_ADDRESSES):
        return {"type": "text", "text": given}
    url = given if path is None else image_url(path)
    return {"type": "image_url", "image_url": {"url": url}}


def image_url(path: Path) -> str:
    return "data:image;base64," + base64.b64encode(path.read_bytes()).decode()


def _file(given: str, kind: str, *, beside_texts: bool) -> Path | None:
    """The file that an input names; None: it is none's name.

    Raises `WrongUseError` for what looks like the name of one that is not there.
    """
    path = Path(given)
    try:
        if path.is_file():
            return path
        is_folder = path.is_dir()
    except (OSError, ValueError):
        # Too long for a name, or with a NUL.
        return None
    if is_folder and given:
        raise WrongUseError(f"'{given}' is a folder.", hint="Name the files in it.")
    if path.suffix.lower() not in _SUFFIXES or given.startswith(_ADDRESSES):
        return None
    # A question may end with a file's name.
    if not beside_texts or len(given.split()) == 1 or os.sep in given:
        raise WrongUseError(
            f"There is no file '{given}'.",
            hint=f"The model takes {_A[kind]}: the path of a file, an address or base64.",
        )
    return None


_A = {"image": "an image", "audio": "a recording", "video": "a video"}
