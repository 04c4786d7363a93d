"""Errors of the client, as the command line shows them."""

import pytest

from stoker.cli import hints
from stoker.client.errors import (
    ACCOUNT_HEADER,
    MODEL_LOADING,
    ApiError,
    ApiProblem,
    StokerError,
    UnreachableError,
)
from stoker.client.response import not_an_address


def api_error(code: str, message: str = "no", param: str | None = None) -> ApiError:
    return ApiError(ApiProblem(status=400, code=code, message=message, param=param))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnreachableError("no", base_url="http://127.0.0.1:8000"), "'stoker serve', or set its"),
        (UnreachableError("no", base_url="https://stoker.example"), "Check its address with --bas"),
        (UnreachableError("no", base_url="http://a", hint="The proxy was used."), "The proxy was"),
        (api_error(MODEL_LOADING), "--max-wait SECONDS"),
        (api_error("invalid_request", param=ACCOUNT_HEADER), "stoker --account ID models"),
        (api_error("invalid_request", param="account_id"), "STOKER_ACCOUNT"),
        (not_an_address("somewhere"), "Set --base-url or STOKER_BASE_URL, for example"),
        (StokerError("no", hint="Push again."), "Push again."),
    ],
    ids=str,
)
def test_hints(error: StokerError, expected: str) -> None:
    assert expected in (hints.hint(error) or "")


def test_error_without_a_hint() -> None:
    assert hints.hint(api_error("not_found")) is None
    assert hints.hint(StokerError("no")) is None


def test_message_names_the_option_and_not_the_header() -> None:
    error = api_error("invalid_request", f"Name an account in the header {ACCOUNT_HEADER}.")
    assert hints.message(error) == "Name an account with --account."
    assert ACCOUNT_HEADER in str(error)
