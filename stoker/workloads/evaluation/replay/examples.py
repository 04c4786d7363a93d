"""What a deployment is tried on: bodies of its first endpoint, the caller's or made up here."""

import base64
import io
import math
import struct
import wave
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.routing import APIRoute
from pydantic import ValidationError

from stoker.base.errors import InvalidRequestError, from_validation
from stoker.inference.openai.registry import CONVENTIONS, ROUTERS
from stoker.inference.tasks import router as tasks
from stoker.media.media import MediaKind
from stoker.models.tasks.registry import GENERATING, TASKS, VIDEO, endpoints

LONGER = 12
"""A made-up text is tried as it is, and so many times as long."""
MADE_TOKENS = 32
_SIDE = 256
_RATE, _SECONDS = 16_000, 4

SHAPES: Mapping[str, Any] = {one.path: one for one in (*TASKS.values(), *CONVENTIONS)}
"""Path → what its endpoint takes."""
HANDLERS: Mapping[str, Any] = {
    route.path: route.endpoint
    for router in (tasks, *ROUTERS)
    for route in router.routes
    if isinstance(route, APIRoute)
}
"""Path → what answers its calls, given a `Calling`."""


def path_of(pipeline: str) -> str:
    """The first endpoint of a pipeline. Raises `InvalidRequestError` where it answers by jobs."""
    path = next(iter(endpoints(pipeline)), "")
    if pipeline in VIDEO or path not in HANDLERS:
        raise InvalidRequestError(
            f"Deployments of '{pipeline}' cannot be tried: their answers are jobs."
        )
    return path


def check(
    pipeline: str, examples: Sequence[Mapping[str, Any]], places: Sequence[str] | None = None
) -> None:
    """Raise `InvalidRequestError` for an example that the endpoint would refuse.

    Args:
        places: where each stands in what was given; by default, in its `examples`.
    """
    path = path_of(pipeline)
    model = SHAPES[path].request
    for index, example in enumerate(examples):
        place = places[index] if places else f"examples[{index}]"
        for name in ("model", "stream"):
            if name in example:
                raise InvalidRequestError(f"'{place}' has '{name}': leave it out.", param=place)
        try:
            model.model_validate({**example, "model": "m"})
        except ValidationError as error:
            found = from_validation(error, model.model_fields)
            raise InvalidRequestError(
                f"'{place}' is no input of {path}: {found.message}", param=place
            ) from error


def prepared(pipeline: str, given: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """The caller's examples, or those that are made up. Texts are short and written greedily where
    nothing else is said: drawn ones would differ anyway.
    """
    found = given if given is not None else made_up(pipeline)
    if pipeline not in GENERATING:
        return list(found)
    return [
        {
            "temperature": 0,
            **({} if "max_completion_tokens" in one else {"max_tokens": MADE_TOKENS}),
            **one,
        }
        for one in found
    ]


def made_up(pipeline: str) -> list[dict[str, Any]]:
    """Examples of any model of a pipeline: the one of its documentation, and a longer one."""
    shape = SHAPES[path_of(pipeline)]
    example = {name: value for name, value in shape.example.items() if name != "model"}
    for name, kind in shape.media.items():
        if name in example:
            example[name] = _made(kind)
    fields = getattr(shape.request, "input_fields", ())
    text = next((name for name in fields if isinstance(example.get(name), str)), None)
    if text is None or text in shape.media:
        return [example]
    return [example, example | {text: " ".join([example[text]] * LONGER)}]


def _made(kind: MediaKind) -> str:
    """A picture or a recording as a data URI. Raises `InvalidRequestError` for a film."""
    if kind == "image":
        return _data("image/png", _picture())
    if kind == "audio":
        return _data("audio/wav", _recording())
    raise InvalidRequestError(
        "The server makes up no films: give some in 'examples'.", param="examples"
    )


def _data(content_type: str, content: bytes) -> str:
    return f"data:{content_type};base64,{base64.b64encode(content).decode()}"


def _picture() -> bytes:
    """A disc before a gradient, as PNG."""
    rows = bytearray()
    for y in range(_SIDE):
        rows.append(0)
        for x in range(_SIDE):
            inside = math.hypot(x - _SIDE / 3, y - _SIDE / 2) < _SIDE / 4
            rows += bytes((200, 40, 30)) if inside else bytes((x % 256, y % 256, 120))
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _recording() -> bytes:
    """A tone that rises, one channel of 16 bits, as WAV."""
    samples = (
        int(12_000 * math.sin(2 * math.pi * (200 + 60 * at / _RATE) * at / _RATE))
        for at in range(_RATE * _SECONDS)
    )
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(b"".join(struct.pack("<h", one) for one in samples))
    return out.getvalue()
