"""Decisions of the typed client about retries."""

import math

import pytest

from stoker.client.errors import (
    ApiError,
    ApiProblem,
    BrokenConnectionError,
    StokerError,
    UnreachableError,
)
from stoker.client.retry import RetryAttempts, RetryLimits


def api_error(status: int, code: str = "x", **fields: float | bool) -> ApiError:
    problem = ApiProblem(status=status, code=code, message="no", **fields)  # type: ignore[arg-type]
    return ApiError(problem)


SAFE, UNSAFE = True, False


@pytest.mark.parametrize(
    ("error", "repeated"),
    [
        (UnreachableError("refused"), {SAFE, UNSAFE}),
        (BrokenConnectionError("broke"), {SAFE}),
        (api_error(429), {SAFE, UNSAFE}),
        (api_error(503, retry_after_s=1.0), {SAFE, UNSAFE}),
        (api_error(503), {SAFE}),
        (api_error(500), {SAFE}),
        (api_error(504), {SAFE}),
        (api_error(429, is_lasting=True), set[bool]()),
        (api_error(503, retry_after_s=1.0, is_lasting=True), set[bool]()),
        (api_error(404), set[bool]()),
        (api_error(409), set[bool]()),
        (StokerError("no JSON"), set[bool]()),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_repeatable", [SAFE, UNSAFE])
def test_which_errors(error: StokerError, repeated: set[bool], is_repeatable: bool) -> None:
    delay = RetryAttempts(RetryLimits(), is_repeatable=is_repeatable).delay_s(error)
    assert (delay is not None) == (is_repeatable in repeated)


def test_number_of_attempts() -> None:
    attempts = RetryAttempts(RetryLimits(attempts=3), is_repeatable=True)
    delays = [attempts.delay_s(api_error(500)) for _ in range(3)]
    assert [delay is None for delay in delays] == [False, False, True]


def test_one_attempt() -> None:
    for error in (UnreachableError("refused"), api_error(429, retry_after_s=1.0)):
        assert RetryAttempts(RetryLimits(attempts=1), is_repeatable=True).delay_s(error) is None


def test_total_time() -> None:
    attempts = RetryAttempts(RetryLimits(total_s=5), is_repeatable=True)
    assert attempts.delay_s(api_error(429, retry_after_s=4.0)) == 4
    assert attempts.delay_s(api_error(429, retry_after_s=6.0)) is None


def test_model_that_loads_costs_no_attempt() -> None:
    attempts = RetryAttempts(RetryLimits(attempts=2, total_s=60), is_repeatable=False)
    loading = api_error(503, "model_loading", retry_after_s=2.0)
    assert [attempts.delay_s(loading) for _ in range(20)] == [2.0] * 20
    assert RetryAttempts(RetryLimits(total_s=1), is_repeatable=False).delay_s(loading) is None


def test_lasting_load_failure() -> None:
    failed = api_error(503, "model_loading", is_lasting=True)
    assert RetryAttempts(RetryLimits(), is_repeatable=True).delay_s(failed) is None


def test_delays_grow_with_jitter() -> None:
    limits = RetryLimits(attempts=9, first_delay_s=1, longest_delay_s=4)
    attempts = RetryAttempts(limits, is_repeatable=True)
    for longest in (1, 2, 4, 4):
        delay = attempts.delay_s(api_error(500)) or math.inf
        assert longest / 2 <= delay <= longest
