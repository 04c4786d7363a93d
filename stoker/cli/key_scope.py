"""Asks a server for the scope and the account of an API key."""

from dataclasses import dataclass

from stoker.client.client import Client
from stoker.client.errors import ApiError

_UNAUTHORIZED = 401
_ROUTES = {"operator": "/v1/accounts", "account": "/v1/quotas", "deployment": "/v1/models"}
"""Maps each scope to a route that needs it, widest first."""


@dataclass(frozen=True)
class KeyScope:
    scope: str
    account_id: str | None
    """Account of a key with the scope `account`."""


def key_scope(server: Client) -> KeyScope | None:
    """Returns the scope of the client's key. Returns None if the key is not valid."""
    for scope, path in _ROUTES.items():
        try:
            answer = server.get(path)
        except ApiError as error:
            if error.problem.status != _UNAUTHORIZED:
                raise
        else:
            return KeyScope(scope, answer.get("account_id"))
    return None
