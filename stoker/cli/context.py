"""What the global options settle, for every command."""

from dataclasses import dataclass
from typing import cast

import typer

from stoker.client.client import Client
from stoker.client.errors import WrongUseError

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
NO_KEY_HINT = """\
Set STOKER_API_KEY, or give --api-key before the command's name. Where a key is found:
  stoker demo    "account_key" in DATA_DIR/demo.json
  stoker serve   DATA_DIR/operator-key. It manages accounts; make one, and a key for it:
                 stoker accounts create NAME
                 stoker keys create --scope account --account-id ACCOUNT_ID"""


@dataclass(frozen=True)
class Context:
    base_url: str
    api_key: str | None
    account: str | None = None
    """Whom an operator's key acts for."""

    def client(self, *, connections: int = 4) -> Client:
        """A client with the key. Raises `WrongUseError` where none is set."""
        if not self.api_key:
            raise WrongUseError("There is no API key.", hint=NO_KEY_HINT)
        return Client(self.base_url, self.api_key, connections=connections, account=self.account)


def context(ctx: typer.Context) -> Context:
    return cast("Context", ctx.obj)


def client(ctx: typer.Context) -> Client:
    return context(ctx).client()
