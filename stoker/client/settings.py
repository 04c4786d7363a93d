"""Settings of a client: arguments, or variables of the environment."""

import os
from dataclasses import dataclass

from .errors import WrongUseError

DEFAULT_BASE_URL = "http://127.0.0.1:8000"


def server_address(base_url: str) -> str:
    """Returns an address without a slash or `/v1` at its end. Clients of OpenAI's API need that
    end, but the paths of this client begin with it.
    """
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


@dataclass(frozen=True)
class Connection:
    """Address and credentials of a server."""

    base_url: str
    api_key: str
    account: str | None

    @classmethod
    def read(cls, base_url: str | None, api_key: str | None, account: str | None) -> "Connection":
        """Returns arguments with a value, else STOKER_BASE_URL, STOKER_API_KEY, STOKER_ACCOUNT.

        Raises `WrongUseError` if there is no API key.
        """
        key = api_key or os.environ.get("STOKER_API_KEY")
        if not key:
            raise WrongUseError("No API key.", hint="Pass api_key or set STOKER_API_KEY.")
        return cls(
            base_url or os.environ.get("STOKER_BASE_URL") or DEFAULT_BASE_URL,
            key,
            account or os.environ.get("STOKER_ACCOUNT") or None,
        )
