"""Maps inputs of `stoker call` to request fields: texts, files and media URLs."""

import base64
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.client.client import JsonObject
from stoker.client.errors import WrongUseError
from stoker.client.media import MEDIA, Inputs, Media, Taking, placed_media

CHAT = "/v1/chat/completions"
SEEING = "image-text-to-text"


_SUFFIXES = frozenset(
    f".{name}"
    for names in (
        ("png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "heic", "avif", "svg", "pdf"),
        ("wav", "mp3", "flac", "ogg", "oga", "opus", "aac", "m4a", "wma"),
        ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg"),
    )
    for name in names
)
"""Extensions of media files and of files easily mistaken for media."""
_ADDRESSES = ("http://", "https://", "data:")


def read(arguments: Sequence[str], lines: Path | None) -> str | list[str] | None:
    """Returns one input as is, several as a list. Lines of a file are always a list."""
    if lines:
        if arguments:
            raise WrongUseError("Give inputs either as arguments or with --file, not both.")
        return [line for line in lines.read_text(encoding="utf-8").splitlines() if line]
    if list(arguments) == ["-"]:
        return sys.stdin.read().removesuffix("\n")
    return arguments[0] if len(arguments) == 1 else list(arguments) or None


def placed(given: str | list[str] | None, model: JsonObject, endpoint: str) -> Inputs:
    """Places the inputs in the endpoint's fields. Raises `WrongUseError`."""
    if given is None:
        return Inputs()
    if endpoint == CHAT:
        return Inputs({"messages": [{"role": "user", "content": _said(given, model)}]})
    if endpoint not in MEDIA:
        return Inputs({"inputs": given})
    return _media(given, MEDIA[endpoint])


def _media(given: str | list[str], taking: Taking) -> Inputs:
    media: list[Media] = []
    texts: list[str] = []
    for item in [given] if isinstance(given, str) else given:
        if path := _file(item, taking.kind, beside_texts=bool(taking.text)):
            media.append(path)
        elif taking.text and not item.startswith(_ADDRESSES):
            texts.append(item)
        else:
            # A URL or base64. The server rejects anything else.
            media.append(item)
    fields: JsonObject = {}
    if texts:
        fields[taking.text] = texts if taking.is_list or len(texts) > 1 else texts[0]
    # A single medium with texts is not a list, unless it came from a file's lines.
    is_one = len(media) == 1 and (isinstance(given, str) or len(given) > 1)
    return placed_media(taking.media, media, fields, is_one=is_one)


def _said(given: str | list[str], model: JsonObject) -> str | list[JsonObject]:
    """Builds a user message: a text, or images and texts for a vision model."""
    many = [given] if isinstance(given, str) else given
    if model["pipeline"] != SEEING:
        if len(many) > 1:
            raise WrongUseError(f"{model['id']} takes a single text.", hint="Quote the text.")
        return many[0] if many else ""
    parts = [_part(value) for value in many]
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
    """Returns the file that an input names, or None.

    Raises `WrongUseError` if the input looks like the name of a missing file.
    """
    path = Path(given)
    try:
        if path.is_file():
            return path
        is_folder = path.is_dir()
    except (OSError, ValueError):
        # Too long for a file name, or contains a NUL.
        return None
    if is_folder and given:
        raise WrongUseError(f"'{given}' is a folder.", hint="Give the files in it.")
    if path.suffix.lower() not in _SUFFIXES or given.startswith(_ADDRESSES):
        return None
    # A question may end with a file name.
    if not beside_texts or len(given.split()) == 1 or os.sep in given:
        raise WrongUseError(
            f"File '{given}' not found.",
            hint=f"The model takes {_A[kind]} as a file path, URL or base64.",
        )
    return None


_A = {"image": "an image", "audio": "a recording", "video": "a video"}
