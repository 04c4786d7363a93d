"""Errors that nodes and the server send to other processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from stoker.base import errors
from stoker.base.errors import InvalidRequestError, RangeNotSatisfiableError, StokerError
from stoker.runtime.nodes.messages import Failed, to_gateway
from stoker.server.workers.messages import ErrorReply, decode_to_worker, encode
from stoker.wire.errors import ErrorFields


class UploadError(InvalidRequestError):
    pass


class PartError(UploadError):
    """Error two levels below the direct subclasses."""

    status = 409
    type = "PartError"
    code = "part_missing"
    default_message = "A part is missing."

    def __init__(self, message: str | None = None, *, part: int = 0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.part = part

    @property
    def headers(self) -> dict[str, str]:
        return {"x-part": str(self.part), **super().headers}


PART = PartError(part=3, param="part", retry_after_s=2.5, progress=0.25)


def by_node(error: Exception) -> StokerError:
    message = to_gateway.unpack(to_gateway.pack(Failed(7, ErrorFields.of(error))))
    assert isinstance(message, Failed)
    return message.error.restored()


def by_server(error: Exception) -> StokerError:
    message = decode_to_worker(encode(ErrorReply(7, {"x-a": "1"}, ErrorFields.of(error))))
    assert isinstance(message, ErrorReply)
    assert (message.id, message.headers) == (7, {"x-a": "1"})
    return message.error.restored()


Sent = Callable[[Exception], StokerError]


@pytest.fixture(params=[by_node, by_server])
def sent(request: pytest.FixtureRequest) -> Sent:
    return request.param


def classes(base: type[StokerError]) -> Iterator[type[StokerError]]:
    yield base
    for child in base.__subclasses__():
        yield from classes(child)


# Some tests define further classes.
CLASSES = [kind for kind in classes(StokerError) if kind.__module__ in (errors.__name__, __name__)]


def assert_same(again: StokerError, error: StokerError) -> None:
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert (again.status, again.headers, again.body(), str(again)) == (
        error.status,
        error.headers,
        error.body(),
        str(error),
    )


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_class_is_restored(sent: Sent, kind: type[StokerError]) -> None:
    assert_same(sent(kind()), kind())
    error = kind("No.", code="other", param="a[0]", retry_after_s=2.5, progress=0.25)
    assert_same(sent(error), error)
    lasting = kind("No.", is_lasting=True)
    assert_same(sent(lasting), lasting)


def test_fields_of_a_class_are_restored(sent: Sent) -> None:
    behind = RangeNotSatisfiableError("The file is shorter.")
    behind.size = 1234
    for error in (behind, PART):
        assert_same(sent(error), error)
    assert sent(behind).headers == {"content-range": "bytes */1234"}
    assert sent(PART).headers == {"x-part": "3", "retry-after": "3"}


@pytest.mark.parametrize(("known", "nearest"), [(1, UploadError), (4, StokerError)])
def test_unknown_class(known: int, nearest: type[StokerError]) -> None:
    fields = ErrorFields.of(PART)
    elsewhere = structs.replace(fields, kinds=["other.Unknown", *fields.kinds[known:]])
    again = elsewhere.restored()
    assert type(again) is nearest
    assert (again.status, again.body()) == (PART.status, PART.body())
    assert nearest().status != PART.status, "other errors of the class keep their status"


def test_unexpected_errors_are_hidden(sent: Sent) -> None:
    again = sent(ValueError("secret"))
    assert (again.status, again.code) == (500, "internal_error")
    assert "secret" not in again.message
