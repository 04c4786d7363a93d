"""Says how to fix errors of the client with options of the command line."""

import difflib
from collections.abc import Sequence
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
    """Returns an error's message. It names options and commands in place of headers and paths."""
    text = error.message.replace(f"in the header {ACCOUNT_HEADER}", "with --account")
    return text.replace("GET /v1/models lists", "'stoker models' lists")


def similar(name: str, known: Sequence[str], otherwise: str) -> str:
    """Returns a hint for an unknown name: the most similar known one, and where to find others."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'? {otherwise}".strip() if near else otherwise


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
        return "Retry in a moment, or let 'stoker call' wait longer with --max-wait SECONDS."
    return ACCOUNT if error.problem.param in (ACCOUNT_HEADER, "account_id") else error.hint
