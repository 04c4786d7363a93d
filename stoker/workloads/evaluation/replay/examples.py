"""Example requests for a deployment's first endpoint, from the caller or made up here."""

import base64
import io
import math
import struct
import wave
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from stoker.base.errors import InvalidRequestError, from_validation
from stoker.inference.registry import OPERATIONS
from stoker.media.media import MediaKind
from stoker.models.tasks.registry import GENERATING, VIDEO, endpoints

LONGER = 12
"""Factor by which a made-up text is repeated for the long example. The text is also tried as it
is.
"""
MADE_TOKENS = 32
_SIDE = 256
_RATE, _SECONDS = 16_000, 4


def path_of(pipeline: str) -> str:
    """Returns the first endpoint of a pipeline. Raises `InvalidRequestError` if it answers with
    jobs.
    """
    path = next(iter(endpoints(pipeline)), "")
    if pipeline in VIDEO or path not in OPERATIONS:
        raise InvalidRequestError(
            f"Deployments of '{pipeline}' cannot be called with examples, because they "
            "answer with jobs."
        )
    return path


def check(
    pipeline: str, examples: Sequence[Mapping[str, Any]], places: Sequence[str] | None = None
) -> None:
    """Raises `InvalidRequestError` for an example that the endpoint would reject.

    Args:
        places: the place of each example in the request. Default: its index in `examples`.
    """
    path = path_of(pipeline)
    model = OPERATIONS[path].request
    for index, example in enumerate(examples):
        place = places[index] if places else f"examples[{index}]"
        for name in ("model", "stream"):
            if name in example:
                raise InvalidRequestError(
                    f"'{place}' contains '{name}'. Leave it out.", param=place
                )
        try:
            model.model_validate({**example, "model": "m"})
        except ValidationError as error:
            cause = from_validation(error, model.model_fields)
            raise InvalidRequestError(
                f"'{place}' is not a valid input of {path}: {cause.message}", param=place
            ) from error


def prepared(pipeline: str, given: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """Returns the caller's examples, or made-up ones.

    Generated texts are short and use greedy decoding unless the example says otherwise. Sampled
    texts would differ in any case.
    """
    bodies = given if given is not None else made_up(pipeline)
    if pipeline not in GENERATING:
        return list(bodies)
    return [
        {
            "temperature": 0,
            **({} if "max_completion_tokens" in body else {"max_tokens": MADE_TOKENS}),
            **body,
        }
        for body in bodies
    ]


def made_up(pipeline: str) -> list[dict[str, Any]]:
    """Returns examples for any model of a pipeline: the one from its documentation, and a longer
    one.
    """
    operation = OPERATIONS[path_of(pipeline)]
    example: dict[str, Any] = {
        name: value for name, value in operation.example.items() if name != "model"
    }
    for name, kind in operation.media.items():
        if name in example:
            example[name] = _made(kind)
    fields = getattr(operation.request, "input_fields", ())
    text = next((name for name in fields if isinstance(example.get(name), str)), None)
    if text is None or text in operation.media:
        return [example]
    return [example, example | {text: " ".join([example[text]] * LONGER)}]


def _made(kind: MediaKind) -> str:
    """Returns an image or a recording as a data URI. Raises `InvalidRequestError` for a video."""
    if kind == "image":
        return _data("image/png", _picture())
    if kind == "audio":
        return _data("audio/wav", _recording())
    raise InvalidRequestError(
        "The server cannot generate example videos. Send some in 'examples'.", param="examples"
    )


def _data(content_type: str, content: bytes) -> str:
    return f"data:{content_type};base64,{base64.b64encode(content).decode()}"


def _picture() -> bytes:
    """Returns a PNG image of a disc in front of a gradient."""
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
    """Returns a WAV recording of a rising tone, one channel of 16 bits."""
    samples = (
        int(12_000 * math.sin(2 * math.pi * (200 + 60 * at / _RATE) * at / _RATE))
        for at in range(_RATE * _SECONDS)
    )
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_RATE)
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return out.getvalue()
