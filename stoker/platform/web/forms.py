"""Reads a form with one file while it arrives. The file is passed on in blocks and never kept in
memory.
"""

import re
from collections.abc import AsyncGenerator, Collection

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from stoker.base.errors import InvalidRequestError, StokerError, UnsupportedMediaTypeError

FORM = "multipart/form-data"
FORM_BYTES = 1 << 20
"""Maximum bytes of a form besides its file: boundaries, headers and other fields."""
BLOCK_BYTES = 1 << 20
_FIELD_BYTES = 4096
_MAX_FIELDS = 32
_MAX_NAME = 255
"""Maximum length of a file's name, as on most file systems."""
_CONTENT_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,31}/[a-z0-9!#$&^_.+-]{1,32}")
ANY_TYPE = "application/octet-stream"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class StreamedForm:
    """A form that is being received.

    After `blocks` has ended, `fields`, `filename` and `content_type` are known.
    """

    def __init__(
        self, request: Request, file_field: str, known: Collection[str], *, names_file: bool
    ) -> None:
        """
        Args:
            known: fields that may appear once. Other fields are ignored.
            names_file: True if the file must have a name.

        Raises `UnsupportedMediaTypeError` if the body is not a form, and `InvalidRequestError` if
        its header is malformed.
        """
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.content_type = ANY_TYPE
        self.size = 0
        """Bytes of the file that have arrived."""
        self._request = request
        self._file_field = file_field
        self._known = known
        self._names_file = names_file
        self._buffer = bytearray()
        self._limit = 0
        self._excess: StokerError = InvalidRequestError()
        self._parser = self._made(request.headers.get("content-type", ""))
        self._header = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._text = bytearray()
        self._parts = 0
        self._has_file = self._in_file = self._has_ended = False

    def _made(self, content_type: str) -> MultipartParser:
        kind, options = parse_options_header(content_type)
        if kind != FORM.encode():
            raise UnsupportedMediaTypeError(
                f"This endpoint takes {FORM}, not {content_type[:100] or 'an empty content type'}."
            )
        boundary = options.get(b"boundary")
        if not boundary:
            raise InvalidRequestError(
                "The header Content-Type has no boundary. HTTP clients add it themselves.",
                param="Content-Type",
            )
        try:
            return MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part,
                    "on_header_field": self._on_header_field,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError as error:
            raise _unreadable(error) from error

    async def blocks(self, limit: int, excess: StokerError) -> AsyncGenerator[bytearray]:
        """Yields the bytes of the file.

        Args:
            limit: maximum bytes of the file.
            excess: raised as soon as the file is larger.

        Raises `InvalidRequestError` if the form is malformed or incomplete, or has no file.
        """
        self._limit, self._excess = limit, excess
        received = 0
        try:
            async for chunk in self._request.stream():
                received += len(chunk)
                self._parser.write(chunk)
                if received - self.size > FORM_BYTES + len(chunk):
                    raise InvalidRequestError(
                        f"The form has more than {FORM_BYTES} bytes besides '{self._file_field}'."
                    )
                if len(self._buffer) >= BLOCK_BYTES:
                    yield self._taken()
            self._parser.finalize()
        except FormParserError as error:
            raise _unreadable(error) from error
        if not self._has_ended:
            raise InvalidRequestError(
                "The form could not be read: its last boundary is missing, so it is incomplete."
            )
        if not self._has_file:
            raise InvalidRequestError(
                f"The form has no file in the field '{self._file_field}'.", param=self._file_field
            )
        if self._buffer:
            yield self._taken()

    def _taken(self) -> bytearray:
        taken, self._buffer = self._buffer, bytearray()
        return taken

    # --- callbacks of the parser ---

    def _on_part(self) -> None:
        self._headers, self._text, self._in_file = {}, bytearray(), False
        self._parts += 1
        if self._parts > _MAX_FIELDS:
            raise InvalidRequestError(f"The form has more than {_MAX_FIELDS} fields.")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"name" not in options:
            raise InvalidRequestError("A field of the form has no name in Content-Disposition.")
        self._name = _decoded(options[b"name"])[:_MAX_NAME]
        if self._name == self._file_field:
            self._begin_file(options.get(b"filename"))

    def _begin_file(self, filename: bytes | None) -> None:
        field = self._file_field
        if self._has_file:
            raise InvalidRequestError(f"The form has several files in '{field}'.", param=field)
        if filename is None and self._names_file:
            raise InvalidRequestError(
                f"'{field}' must be a file with a name, not a text.", param=field
            )
        encoding = self._headers.get(b"content-transfer-encoding", b"binary").strip().lower()
        if encoding not in (b"binary", b"8bit", b"7bit"):
            raise InvalidRequestError(
                f"'{field}' must be sent as plain bytes, without Content-Transfer-Encoding.",
                param=field,
            )
        if self._names_file:
            self.filename = checked_filename(_decoded(filename or b""), field)
        self.content_type = checked_content_type(_decoded(self._headers.get(b"content-type", b"")))
        self._has_file = self._in_file = True

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if not self._in_file:
            self._text += data[start:end]
            if len(self._text) > _FIELD_BYTES:
                raise InvalidRequestError(
                    f"'{self._name}' is longer than {_FIELD_BYTES} bytes. The file belongs into "
                    f"the field '{self._file_field}'.",
                    param=self._name,
                )
            return
        self.size += end - start
        if self.size > self._limit:
            raise self._excess
        self._buffer += data[start:end]

    def _on_part_end(self) -> None:
        if self._in_file or self._name not in self._known:
            return
        if self._name in self.fields:
            raise InvalidRequestError(
                f"The form has '{self._name}' more than once.", param=self._name
            )
        self.fields[self._name] = _decoded(bytes(self._text))

    def _on_end(self) -> None:
        self._has_ended = True


def checked_filename(name: str, param: str) -> str:
    """Returns the last segment of a client's path.

    Raises `InvalidRequestError` if it is no usable name.
    """
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    if last in ("", ".", "..") or _CONTROL.search(last):
        raise InvalidRequestError(
            "The file needs a name without control characters, such as 'requests.jsonl'.",
            param=param,
        )
    if len(last) > _MAX_NAME:
        raise InvalidRequestError(
            f"The file's name has {len(last)} characters. It may have {_MAX_NAME}.", param=param
        )
    return last


def checked_content_type(text: str) -> str:
    """Returns a client's content type without parameters, or the general one if it is not valid."""
    kind = text.partition(";")[0].strip().lower()
    return kind if _CONTENT_TYPE.fullmatch(kind) else ANY_TYPE


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _unreadable(error: FormParserError) -> InvalidRequestError:
    return InvalidRequestError(f"The form could not be read: {error}.")
