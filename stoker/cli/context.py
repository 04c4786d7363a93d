"""Global options, shared by all commands."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self, cast

import typer

from stoker.cli import profile
from stoker.cli.profile import Profile
from stoker.client.client import Client
from stoker.client.errors import WrongUseError
from stoker.client.settings import DEFAULT_BASE_URL, server_address

NO_KEY_HINT = """\
Sign in with 'stoker login', which saves a key for all shells. For one shell, set STOKER_API_KEY.
For one command, pass --api-key before it. Keys of a server on this machine:
  DATA_DIR/account-key     calls models of the account 'default'
  DATA_DIR/operator-key    creates accounts and keys"""


@dataclass(frozen=True)
class Context:
    """The server and the key of a command: from options, variables or the profile, in this order.

    Address and key of the profile belong together. With a given key, the profile is not used. Its
    key is never sent to another address.
    """

    given_url: str | None
    given_key: str | None
    account: str | None = None
    """Account that an operator key acts for."""

    @classmethod
    def given(cls, base_url: str | None, api_key: str | None, account: str | None) -> Self:
        """Returns the context of the global options or variables."""
        return cls(base_url and server_address(base_url), api_key, account)

    @property
    def base_url(self) -> str:
        """Returns the server's address. Raises `WrongUseError` if the profile is damaged."""
        if saved := self._profile:
            # A given address has the same parts. The key belongs to the profile's own spelling.
            return saved.base_url
        return self.given_url or DEFAULT_BASE_URL

    @property
    def api_key(self) -> str | None:
        """Returns the API key, if any. Raises `WrongUseError` if the profile is damaged."""
        if self.given_key is not None:
            return self.given_key
        return self._profile.api_key if self._profile else None

    @cached_property
    def _profile(self) -> Profile | None:
        """The profile, if the command uses it."""
        saved = self._saved
        if saved and self.given_url is not None and not saved.is_for(self.given_url):
            return None
        return saved

    @cached_property
    def _saved(self) -> Profile | None:
        return profile.read() if self.given_key is None else None

    def client(self, *, connections: int = 4) -> Client:
        """Returns a client with the API key. Raises `WrongUseError` if there is none."""
        if not self.api_key:
            raise self._no_key()
        return Client(self.base_url, self.api_key, connections=connections, account=self.account)

    def _no_key(self) -> WrongUseError:
        if self._saved is None or self._profile:
            return WrongUseError("No API key.", hint=NO_KEY_HINT)
        return WrongUseError(
            f"No API key for {self.base_url}: you are signed in to {self._saved.base_url}.",
            hint=f"Sign in with 'stoker login --base-url {self.base_url}', or set STOKER_API_KEY. "
            "Without --base-url and STOKER_BASE_URL, commands use your sign-in.",
        )


def context(ctx: typer.Context) -> Context:
    return cast("Context", ctx.obj)


def client(ctx: typer.Context) -> Client:
    return context(ctx).client()
