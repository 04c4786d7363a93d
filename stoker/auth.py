"""Who is calling, and what they may do. Every route depends on `authenticate`, deny by default."""

from typing import Annotated

from fastapi import Depends, Header, Request, Security
from fastapi.security import HTTPBearer

from stoker.context import ServicesDep
from stoker.errors import InvalidAPIKeyError, InvalidRequestError
from stoker.keys.keyring import Principal, Scope

# Declared for the OpenAPI document only: the header is read by `authenticate` itself, because
# FastAPI's own answer to a missing one is not in our shape.
_bearer = HTTPBearer(auto_error=False, description="An API key: `Bearer sk-…`")


async def authenticate(
    request: Request, services: ServicesDep, _scheme: Annotated[object, Security(_bearer)] = None
) -> Principal:
    """The caller. Raises `InvalidAPIKeyError` for every kind of bad key alike."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return await services.keyring.check(token.strip() if scheme.lower() == "bearer" else "")


Caller = Annotated[Principal, Depends(authenticate)]


def _account(
    caller: Caller,
    x_stoker_account: Annotated[
        str | None,
        Header(description="With an operator key: the account to act for.", max_length=64),
    ] = None,
) -> str:
    if caller.scope is Scope.ACCOUNT and caller.account_id:
        return caller.account_id
    if caller.scope is Scope.OPERATOR:
        if not x_stoker_account:
            raise InvalidRequestError(
                "An operator key acts for an account: name it in the header x-stoker-account.",
                param="x-stoker-account",
            )
        return x_stoker_account
    raise InvalidAPIKeyError


def _operator(caller: Caller) -> Principal:
    if caller.scope is not Scope.OPERATOR:
        raise InvalidAPIKeyError
    return caller


AccountId = Annotated[str, Depends(_account)]
Operator = Annotated[Principal, Depends(_operator)]
