"""Checks the input file of a batch line by line, and completes lines that are not full requests.

No file is held in memory.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stoker.client.client import JsonObject
from stoker.client.errors import WrongUseError
from stoker.client.media import MEDIA

MOST_FAULTS = 20
"""Errors that are listed. The check ends at the last one."""
MOST_LINE_BYTES = 64 << 20
"""Size of a line that no server accepts. Servers have a lower limit of their own."""
TEXTS_SUFFIX = ".txt"
_BOM = b"\xef\xbb\xbf"
_MOST_ID_CHARS = 512

_JSON_ONLY = f"A file of plain texts, one a line, has a name that ends in {TEXTS_SUFFIX}."


class LineFormat(Enum):
    REQUESTS = auto()
    """Each line is a request: `{custom_id, method, url, body}`."""
    BODIES = auto()
    """Each line is the body of a request."""
    TEXTS = auto()
    """Each line is a text."""


class _Request(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_Object = dict[str, msgspec.Raw]
_REQUEST = msgspec.json.Decoder(_Request)
_OBJECT = msgspec.json.Decoder(_Object)
_VALUE = msgspec.json.Decoder()
_PARSE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class LineError(Exception):
    """Raised if a line is not valid."""


@dataclass(frozen=True)
class FirstLine:
    """The first line of a file. It decides the format of all lines."""

    format: LineFormat
    model: str | None = None
    endpoint: str | None = None


def first_line(source: Path) -> FirstLine:
    """Returns the format of a file, and the model and the endpoint of its first line.

    Raises `WrongUseError` if the file has no line, or no valid first line.
    """
    if not source.is_file():
        raise WrongUseError(f"'{source}' is not a regular file.")
    with source.open("rb") as opened:
        number, line = next(_lines(opened), (0, b""))
    if not number:
        raise WrongUseError(f"'{source}' has no line.")
    if source.suffix.lower() == TEXTS_SUFFIX:
        return FirstLine(LineFormat.TEXTS)
    try:
        if line is None:
            raise _too_long()
        content = _object(line)
        if "custom_id" not in content:
            return FirstLine(LineFormat.BODIES, _model(content))
        request = _request(line)
        return FirstLine(LineFormat.REQUESTS, _model(_body(request)), request.url)
    except LineError as error:
        raise WrongUseError(f"'{source}', line {number}: {error}", hint=_JSON_ONLY) from None


@dataclass
class BatchLines:
    """Checks and completes the lines of one file."""

    source: Path
    format: LineFormat
    endpoint: str
    model: str | None
    """Model of lines that name none. Lines that name another one are refused."""
    fields: JsonObject = field(default_factory=dict[str, Any])
    """Fields of bodies that lack them."""

    def check(self) -> "CheckedInput":
        """Checks all lines, up to `MOST_FAULTS` errors."""
        ids: dict[str, int] = {}
        checked = CheckedInput()
        fill = self._filler()
        with self.source.open("rb") as opened:
            for number, line in _lines(opened):
                checked.total += 1
                try:
                    completed = fill(number, line, ids)
                except LineError as error:
                    checked.faults.append(f"line {number}: {error}")
                    if len(checked.faults) >= MOST_FAULTS:
                        break
                else:
                    checked.is_complete &= completed is line
        return checked

    def write(self, target: Path) -> None:
        """Writes the completed lines of a file that was checked."""
        fill = self._filler()
        ids: dict[str, int] = {}
        with self.source.open("rb") as opened, target.open("wb") as written:
            for number, line in _lines(opened):
                written.write(fill(number, line, ids))
                written.write(b"\n")

    def _filler(self) -> Callable[[int, bytes | None, dict[str, int]], bytes]:
        """Returns a function that completes a line. It raises `LineError`."""
        place = _text_field(self.endpoint) if self.format is LineFormat.TEXTS else None
        first_models: list[str | None] = []

        def fill(number: int, line: bytes | None, ids: dict[str, int]) -> bytes:
            if line is None:
                raise _too_long()
            custom_id = str(number)
            if self.format is LineFormat.REQUESTS:
                request = _request(line)
                custom_id = request.custom_id
                self._check_request(request, number, ids)
                body = _body(request)
            elif place is None:
                body = _object(line)
            else:
                body = _raw(place(_text(line)))
            missing = self._missing(body, first_models)
            if self.format is LineFormat.REQUESTS and not missing:
                return line
            whole = {
                "custom_id": custom_id,
                "method": "POST",
                "url": self.endpoint,
                "body": body | missing,
            }
            return msgspec.json.encode(whole)

        return fill

    def _check_request(self, request: _Request, number: int, ids: dict[str, int]) -> None:
        if not 0 < len(request.custom_id) <= _MOST_ID_CHARS:
            raise LineError(f"'custom_id' must have 1 to {_MOST_ID_CHARS} characters.")
        if (first := ids.setdefault(request.custom_id, number)) != number:
            raise LineError(f"Line {first} has the same 'custom_id', '{request.custom_id[:100]}'.")
        if request.method != "POST":
            raise LineError("'method' must be \"POST\".")
        if request.url != self.endpoint:
            message = f"'url' is '{request.url[:200]}', but the batch calls {self.endpoint}."
            raise LineError(message)

    def _missing(self, body: _Object, first_models: list[str | None]) -> _Object:
        """Returns the fields that a body lacks. Raises `LineError` for a forbidden one."""
        if "stream" in body and _VALUE.decode(body["stream"]):
            raise LineError("Answers of a batch are not streamed: leave 'stream' out.")
        named = _model(body)
        if self.model is not None and named not in (None, self.model):
            raise LineError(f"'body.model' is '{named}', but --model is '{self.model}'.")
        if self.model is None:
            first_models[:] = first_models or [named]
            if named != first_models[0]:
                first = f"'{first_models[0]}'" if first_models[0] else "none"
                raise LineError(f"All lines must name the same model. The first names {first}.")
        given = self.fields if self.model is None else {"model": self.model, **self.fields}
        return _raw(
            {
                name: value
                for name, value in given.items()
                if name not in body or (name == "model" and named is None)
            }
        )


@dataclass
class CheckedInput:
    total: int = 0
    faults: list[str] = field(default_factory=list[str])
    is_complete: bool = True
    """True if all lines are full requests, so that the file is sent as it is."""


def _lines(opened: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yields the numbers, from 1, and the lines that are not empty. None for a line that is too
    long.
    """
    number = 0
    while line := opened.readline(MOST_LINE_BYTES):
        number += 1
        if len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := opened.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield number, None
            continue
        content = line.removeprefix(_BOM) if number == 1 else line
        content = content.rstrip(b"\r\n")
        if content and not content.isspace():
            yield number, content


def _too_long() -> LineError:
    return LineError(f"The line is larger than {MOST_LINE_BYTES >> 20} MiB.")


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise LineError(f"The line is not UTF-8: {error.reason}.") from None


def _object(line: bytes) -> _Object:
    try:
        return _OBJECT.decode(line)
    except msgspec.ValidationError:
        raise LineError("The line is not a JSON object.") from None
    except _PARSE_ERRORS as error:
        raise LineError(f"The line is not valid JSON: {error}.") from None


def _request(line: bytes) -> _Request:
    try:
        return _REQUEST.decode(line)
    except msgspec.ValidationError as error:
        raise LineError(f"The line is not a request: {error}.") from None
    except _PARSE_ERRORS as error:
        raise LineError(f"The line is not valid JSON: {error}.") from None


def _body(request: _Request) -> _Object:
    try:
        return _OBJECT.decode(request.body)
    except _PARSE_ERRORS:
        raise LineError("'body' is not a JSON object.") from None


def _model(body: _Object) -> str | None:
    value = _VALUE.decode(body["model"]) if "model" in body else None
    if value is not None and not isinstance(value, str):
        raise LineError("'body.model' is not a text.")
    return value


def _raw(fields: Mapping[str, Any]) -> _Object:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}


_FIELD_OF_TEXT: Mapping[str, str] = {
    "/v1/classifications/token": "inputs",
    "/v1/classifications/text": "inputs",
    "/v1/classifications/zero-shot/text": "inputs",
    "/v1/fill-mask": "inputs",
    "/v1/translations": "inputs",
    "/v1/summarizations": "inputs",
    "/v1/feature-extraction": "inputs",
    "/v1/embeddings": "input",
    "/v1/completions": "prompt",
    "/v1/responses": "input",
    "/v1/images/generations": "prompt",
    **{path: taking.media for path, taking in MEDIA.items()},
}
"""Maps endpoints to the field for a line of a text file. For media, the line is a URL or base64."""
_CHATS = ("/v1/chat/completions", "/v1/messages")


def _text_field(endpoint: str) -> Callable[[str], JsonObject]:
    """Returns a function that makes the body for a text. Raises `WrongUseError`."""
    if endpoint in _CHATS:
        return lambda text: {"messages": [{"role": "user", "content": text}]}
    name = _FIELD_OF_TEXT.get(endpoint)
    if name is None:
        raise WrongUseError(
            f"{endpoint} takes more than a text, so it cannot read a {TEXTS_SUFFIX} file.",
            hint="Write one JSON body a line, in a file whose name ends in .jsonl.",
        )
    return lambda text: {name: text}


def result_paths(
    source: Path | None, stem: str, output: Path | None, errors: Path | None
) -> tuple[Path, Path]:
    """Returns the paths of the output file and of the error file.

    Raises `WrongUseError` if one would replace the other, or the input.
    """
    paths = output or Path(f"{stem}.output.jsonl"), errors or Path(f"{stem}.errors.jsonl")
    if paths[0].resolve() == paths[1].resolve():
        raise WrongUseError("--output and --errors name the same file.")
    if source and source.resolve() in (paths[0].resolve(), paths[1].resolve()):
        raise WrongUseError(f"The results would replace the input '{source}'.")
    return paths
