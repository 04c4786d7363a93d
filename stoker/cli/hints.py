"""Says how to fix errors of the client with options of the command line."""

from urllib.parse import urlsplit

from stoker.client.errors import (
    ACCOUNT_HEADER,
    MODEL_LOADING,
    ApiError,
    StokerError,
    UnreachableError,
)
from stoker.client.response import BASE_URL

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
OPTION = "--base-url or STOKER_BASE_URL"
ACCOUNT = (
    "Pass it before the command, as in 'stoker --account ID models', or set STOKER_ACCOUNT."
    " List accounts with 'stoker accounts list'."
)


def message(error: StokerError) -> str:
    """Returns an error's message. It names options in place of headers."""
    return error.message.replace(f"in the header {ACCOUNT_HEADER}", "with --account")


def hint(error: StokerError) -> str | None:
    """Returns how to fix an error with the command line, if known."""
    if isinstance(error, ApiError):
        return _api_hint(error)
    if isinstance(error, UnreachableError) and not error.hint:
        is_local = urlsplit(error.base_url).hostname in LOCAL_HOSTS
        start = "Start one with 'stoker serve', or set" if is_local else "Check"
        return f"{start} its address with {OPTION}."
    return error.hint and error.hint.replace(BASE_URL, OPTION)


def _api_hint(error: ApiError) -> str | None:
    if error.code == MODEL_LOADING:
        return "Retry in a moment, or wait longer for the model with --wait SECONDS."
    return ACCOUNT if error.problem.param in (ACCOUNT_HEADER, "account_id") else None
