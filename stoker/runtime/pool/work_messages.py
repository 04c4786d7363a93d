"""Converts calls to the messages of replicas, and their failures to the errors of clients."""

from collections.abc import Mapping

from stoker.base.errors import InferenceError, InvalidMediaError, InvalidRequestError, StokerError
from stoker.runtime.interface import Call
from stoker.wire.generation_request import Generation
from stoker.wire.protocol import Generate, RequestFailure, ToReplica, Work

_ERRORS: Mapping[str, type[StokerError]] = {
    "invalid_request": InvalidRequestError,
    "invalid_media": InvalidMediaError,
    "context_length_exceeded": InvalidRequestError,
    "template_failed": InvalidRequestError,
    "inference_failed": InferenceError,
}


def message_of(identifier: int, call: Call | Generation, key: str = "") -> ToReplica:
    """
    Args:
        key: API key of the caller.
    """
    if isinstance(call, Generation):
        return Generate(identifier, call, key)
    return Work(
        identifier,
        call.task,
        list(call.items),
        dict(call.parameters),
        call.single,
        dict(call.finishing),
        call.stream,
        key,
        call.adapter.folder if call.adapter else "",
    )


def error_of(failure: RequestFailure) -> StokerError:
    """Converts a failure to an error. An unknown code becomes `InferenceError`, because replicas
    are not trusted with other codes.
    """
    code = failure.code if failure.code in _ERRORS else InferenceError.code
    return _ERRORS[code](failure.message, code=code, param=failure.param)
