import threading
from collections.abc import Callable

import pytest

from stoker.client.errors import (
    ApiError,
    ApiProblem,
    BrokenConnectionError,
    StokerError,
    Stopped,
    UnreachableError,
)
from stoker.client.retry import Retry, RetryLimits


class Waits(threading.Event):
    """Records the requested waits without waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0)
        return self.is_set()


def api_error(status: int, **given: float | str) -> ApiError:
    return ApiError(ApiProblem(status=status, message="no", **({"code": "x"} | given)))  # type: ignore[arg-type]


def failing(*errors: StokerError) -> Callable[[], str]:
    """Returns a function that raises each error in turn, then succeeds."""
    pending = list(errors)

    def attempt() -> str:
        if pending:
            raise pending.pop(0)
        return "done"

    return attempt


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.mark.parametrize(
    "error",
    [
        BrokenConnectionError("broke"),
        api_error(429),
        api_error(500),
        api_error(503),
        api_error(400, code="digest_mismatch"),
    ],
)
def test_repeats_what_may_pass(waits: Waits, error: StokerError) -> None:
    assert Retry(stop=waits).run(failing(*[error] * 4)) == "done"
    assert len(waits.seconds) == 4


def test_gives_up_after_five_tries(waits: Waits) -> None:
    with pytest.raises(BrokenConnectionError):
        Retry(stop=waits).run(failing(*[BrokenConnectionError("broke")] * 5))
    assert len(waits.seconds) == 4


@pytest.mark.parametrize("status", [400, 401, 404, 409, 413])
def test_repeats_nothing_that_is_wrong(waits: Waits, status: int) -> None:
    with pytest.raises(ApiError):
        Retry(stop=waits).run(failing(api_error(status)))
    assert waits.seconds == []


def test_waits_longer_each_time(waits: Waits) -> None:
    Retry(RetryLimits(first_delay_s=1, longest_delay_s=3), waits).run(
        failing(*[BrokenConnectionError("broke")] * 4)
    )
    for waited, longest in zip(waits.seconds, [1, 2, 3, 3], strict=True):
        assert longest / 2 <= waited <= longest


def test_honours_retry_after(waits: Waits) -> None:
    Retry(stop=waits).run(failing(api_error(503, retry_after_s=7.0)))
    assert waits.seconds == [7.0]


def test_a_server_that_restarts_costs_no_try(waits: Waits) -> None:
    errors = [*[UnreachableError("refused")] * 50, *[BrokenConnectionError("broke")] * 4]
    assert Retry(stop=waits).run(failing(*errors)) == "done"


def test_gives_up_on_a_server_that_stays_away(waits: Waits) -> None:
    with pytest.raises(UnreachableError):
        Retry(RetryLimits(unreachable_s=0), waits).run(failing(*[UnreachableError("refused")] * 50))


def test_ends_at_once_when_stopped(waits: Waits) -> None:
    waits.set()
    with pytest.raises(Stopped):
        Retry(stop=waits).run(failing(BrokenConnectionError("broke")))


def test_tells_why_it_waits(waits: Waits) -> None:
    messages: list[str] = []
    Retry(stop=waits, on_wait=messages.append).run(failing(BrokenConnectionError("It broke")))
    assert messages == ["It broke"]
