"""Global options, shared by all commands."""

from dataclasses import dataclass
from typing import cast

import typer

from stoker.client.client import Client
from stoker.client.errors import WrongUseError

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
NO_KEY_HINT = """\
Set STOKER_API_KEY, or pass --api-key before the command. Where to find a key:
  stoker demo    "account_key" in DATA_DIR/demo.json
  stoker serve   DATA_DIR/operator-key. This key manages accounts. Create an account and its key:
                 stoker accounts create NAME
                 stoker keys create --scope account --account-id ACCOUNT_ID"""


@dataclass(frozen=True)
class Context:
    base_url: str
    api_key: str | None
    account: str | None = None
    """Account that an operator key acts for."""

    def client(self, *, connections: int = 4) -> Client:
        """Returns a client with the API key. Raises `WrongUseError` if none is set."""
        if not self.api_key:
            raise WrongUseError("No API key.", hint=NO_KEY_HINT)
        return Client(self.base_url, self.api_key, connections=connections, account=self.account)


def context(ctx: typer.Context) -> Context:
    return cast("Context", ctx.obj)


def client(ctx: typer.Context) -> Client:
    return context(ctx).client()
