"""Parses a request from a body: JSON, a form with files, or a bare media file."""

import functools
from collections.abc import Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, TypeVar, Union, get_args, get_origin

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from stoker.base.errors import InvalidRequestError, UnsupportedMediaTypeError, from_validation
from stoker.inference import json_bodies
from stoker.inference.operation import JSON
from stoker.media.media import Media, MediaKind
from stoker.platform.web import structure
from stoker.platform.web.http import body_limits, lift_body_limit_for_media

Asked = TypeVar("Asked", bound=BaseModel)
Asked_co = TypeVar("Asked_co", bound=BaseModel, covariant=True)

FORM = "multipart/form-data"
_ANY_FILE = "application/octet-stream"
_TYPES: Mapping[MediaKind, tuple[str, ...]] = {
    "image": ("image/",),
    # Videos and these containers may hold sound, too.
    "audio": ("audio/", "video/", "application/ogg", "application/mp4"),
    "video": ("video/", "application/mp4"),
}
"""Maps a kind of media to the prefixes of content types that may hold it."""
_MAX_FIELDS = 1000


class RequestShape(Protocol[Asked_co]):
    """Description of the request that an endpoint accepts."""

    @property
    def request(self) -> type[Asked_co]: ...

    @property
    def media(self) -> Mapping[str, MediaKind]:
        """Fields of the request that accept media: files of a form."""
        ...

    @property
    def bare(self) -> bool:
        """True if the body may be the media itself. Other fields are then read from the query."""
        ...


async def read(
    request: Request, shape: RequestShape[Asked], *, max_files: int, has_media_in_json: bool = False
) -> Asked:
    """Returns the request of a body, in any form that the endpoint accepts.

    Args:
        has_media_in_json: True if fields other than `shape.media` may hold media in JSON.

    Raises `UnsupportedMediaTypeError`, `InvalidRequestError`, `PayloadTooLargeError`.
    """
    content_type = request.headers.get("content-type")
    kind = JSON if content_type is None else content_type.partition(";")[0].strip().lower()
    if shape.media:
        lift_body_limit_for_media(request)
        # Hugging Face's clients send bare files without a content type.
        if content_type is None and shape.bare and not _is_object(await request.body()):
            kind = _ANY_FILE
    if kind == JSON:
        has_media = has_media_in_json or bool(shape.media)
        return await json_bodies.read(request, shape.request, has_media=has_media)
    if shape.media and kind == FORM:
        return _validated(shape, await _form(request, shape, max_files))
    if field := _raw_field(shape, kind):
        query = _unbracketed(request.query_params.multi_items())
        fields = _gathered(shape, *query, body_limits(request).json)
        content = await request.body()
        if not content:
            raise InvalidRequestError(
                f"The body is empty. Send the {shape.media[field]} as the body."
            )
        return _validated(shape, fields | {field: Media(shape.media[field], content=content)})
    raise UnsupportedMediaTypeError(
        f"This endpoint takes {' or '.join(accepted(shape))}, not "
        f"{kind[:100] or 'an empty content type'}."
    )


def accepted(shape: RequestShape[Any]) -> list[str]:
    """Returns the content types that an endpoint accepts."""
    if not shape.media:
        return [JSON]
    kinds = sorted({kind for media in shape.media.values() for kind in _TYPES[media]})
    types = [f"{kind}*" if kind.endswith("/") else kind for kind in kinds]
    return [JSON, FORM, *([*types, _ANY_FILE] if shape.bare else [])]


def _is_object(body: bytes) -> bool:
    """True if the body is a JSON object rather than a file. No media format begins with a brace."""
    return body[:64].lstrip().startswith(b"{")


def _raw_field(shape: RequestShape[Any], kind: str) -> str | None:
    """Returns the field that a bare file of this type fills."""
    for field, media in shape.media.items() if shape.bare else ():
        if kind.startswith(_TYPES[media]) or kind == _ANY_FILE:
            return field
    return None


def _validated(shape: RequestShape[Asked], given: Mapping[str, Any]) -> Asked:
    try:
        return shape.request.model_validate(given)
    except ValidationError as error:
        raise from_validation(error, shape.request.model_fields) from error


class _FormParser(MultiPartParser):
    """Form parser that rejects a form without its last boundary. Starlette's accepts it and leaves
    the last field out.
    """

    has_ended = False

    def on_end(self) -> None:
        self.has_ended = True

    async def parse(self) -> FormData:
        form = await super().parse()
        if not self.has_ended:
            await form.close()
            raise MultiPartException("its last boundary is missing, so it is incomplete.")
        return form


async def _form(request: Request, shape: RequestShape[Any], max_files: int) -> dict[str, Any]:
    # The size of the whole body is already limited while it is read.
    parser = _FormParser(
        request.headers,
        request.stream(),
        max_files=max_files,
        max_fields=_MAX_FIELDS,
        max_part_size=1 << 32,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequestError(f"The form could not be read: {error.message}") from error
    except ValueError as error:
        # Starlette passes any charset name to Python, including codecs that do not decode text.
        message = "The form's charset is not a text encoding. Leave the charset out."
        raise InvalidRequestError(message, param="Content-Type") from error
    try:
        items, lists = _unbracketed(form.multi_items())
        values = [(name, await _form_value(shape.media, name, value)) for name, value in items]
    finally:
        await form.close()
    return _gathered(shape, values, lists, body_limits(request).json)


async def _form_value(
    media: Mapping[str, MediaKind], field: str, value: UploadFile | str
) -> str | Media:
    if isinstance(value, str):
        return value
    if field not in media:
        message = f"'{field}' does not accept files. Send files in {', '.join(media)}."
        raise InvalidRequestError(message, param=field)
    return Media(media[field], content=await value.read())


def _unbracketed(items: Iterable[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], set[str]]:
    """Returns the fields of a form or a query without the `[]` of lists, and the names that had
    it.
    """
    pairs = [*items]
    lists = {name.removesuffix("[]") for name, _ in pairs if name.endswith("[]")}
    return [(name.removesuffix("[]"), value) for name, value in pairs], lists


def _gathered(
    shape: RequestShape[Any], values: Iterable[tuple[str, Any]], lists: Collection[str], limit: int
) -> dict[str, Any]:
    """Returns fields by name. Fields in `lists` and repeated fields become lists. JSON values are
    parsed.

    A field that accepts only a list may be sent once without brackets.

    Args:
        limit: the maximum characters of JSON in a field.
    """
    fields: dict[str, list[Any]] = {}
    texts = _texts(shape.request)
    for name, value in values:
        plain = name in shape.media or (name in texts and value != "null")
        fields.setdefault(name, []).append(value if plain else _structure(name, value, limit))
    return {
        name: many
        if len(many) > 1 or name in lists or (name in _lists(shape.request) and _is_item(many[0]))
        else many[0]
        for name, many in fields.items()
    }


def _is_item(value: Any) -> bool:
    """Returns True if the value is an item of a list, and neither a list nor None."""
    return value is not None and not isinstance(value, list)


@functools.cache
def _texts(model: type[BaseModel]) -> frozenset[str]:
    """Returns the fields that accept only a text, which may begin with a bracket."""
    return frozenset(
        name for name, field in model.model_fields.items() if _is_text(field.annotation)
    )


@functools.cache
def _lists(model: type[BaseModel]) -> frozenset[str]:
    """Returns the fields that accept only a list."""
    return frozenset(
        name for name, field in model.model_fields.items() if _is_list(field.annotation)
    )


def _is_list(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_list(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_list(option) for option in get_args(annotation) if option is not NoneType)
    return get_origin(annotation) is list


def _is_text(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return all(_is_text(option) for option in get_args(annotation) if option is not NoneType)
    return annotation is str


def _structure(name: str, value: str, limit: int) -> Any:
    """Parses a JSON array, object or null in a form field or a query. Returns other text unchanged.

    Args:
        limit: the maximum number of characters.

    Raises `InvalidRequestError` for a value that is nested deeper or holds more than a JSON body
    may.
    """
    if value[:1] not in ("[", "{") and value != "null":
        return value
    if len(value) > limit:
        message = f"'{name}' has {len(value)} characters; the limit of JSON is {limit}."
        raise InvalidRequestError(message, param=name)
    structure.check(value.encode("utf-8", "surrogatepass"))
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError as error:
        if "recursion" not in str(error):
            return value
        message = f"'{name}' has brackets that are nested too deeply."
        raise InvalidRequestError(message, param=name) from error
