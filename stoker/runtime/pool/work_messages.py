"""Reads the messages of replicas, and converts their failures to the errors of clients."""

from collections.abc import Mapping

import msgspec

from stoker.base.errors import InferenceError, InvalidMediaError, InvalidRequestError, StokerError
from stoker.wire.protocol import FromReplica, RequestFailure

_ERRORS: Mapping[str, type[StokerError]] = {
    "invalid_request": InvalidRequestError,
    "invalid_media": InvalidMediaError,
    "context_length_exceeded": InvalidRequestError,
    "template_failed": InvalidRequestError,
    "inference_failed": InferenceError,
}
_MOST_HEAD_BYTES = 4 << 20
"""Maximum bytes of a message without its content. Decoding it blocks the event loop."""
_decode = msgspec.msgpack.Decoder(FromReplica).decode


def error_of(failure: RequestFailure) -> StokerError:
    """Converts a failure to an error. An unknown code becomes `InferenceError`, because replicas
    are not trusted with other codes.
    """
    code = failure.code if failure.code in _ERRORS else InferenceError.code
    return _ERRORS[code](failure.message, code=code, param=failure.param)


def head_of(frames: list[bytes]) -> FromReplica:
    """Decodes the head of a message. Raises `ValueError` if it is too large."""
    if len(frames[0]) > _MOST_HEAD_BYTES:
        raise ValueError(f"a replica's message has a head of {len(frames[0])} bytes")
    return _decode(frames[0])
