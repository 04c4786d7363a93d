"""Who is calling, and what they may do. Every route depends on `authenticate`, deny by default."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from stoker.errors import InvalidAPIKeyError, InvalidRequestError, NotFoundError, RateLimitError
from stoker.keys import repository
from stoker.keys.keyring import Keyring
from stoker.keys.limits import RateLimits
from stoker.keys.sessions import Sessions, check_csrf, cookie_of
from stoker.web.context import PlatformDep, part_of
from stoker.web.http import add_headers, require_json
from stoker.web.principal import Principal, Scope, caller_of, know_caller

# Declared for the OpenAPI document only: the header is read by `authenticate` itself, because
# FastAPI's own answer to a missing one is not in our shape.
bearer = HTTPBearer(auto_error=False, description="An API key: `Bearer sk-…`")


async def authenticate(
    request: Request, _scheme: Annotated[object, Security(bearer)] = None
) -> Principal:
    """The caller, by a key or by the cookie of a browser that was signed in with one.

    Raises `InvalidAPIKeyError` for every kind of bad key alike, `RateLimitError` where its key has
    had its share, and `ForbiddenError` where another site's page uses the cookie.
    """
    known = caller_of(request)
    if known is None:
        if token := cookie_of(request):
            known = (await part_of(request, Sessions).check(token)).principal
            check_csrf(request, token)
        else:
            known = await part_of(request, Keyring).check(bearer_token(request))
        know_caller(request, known)
        if known.limits:
            await part_of(request, RateLimits).ready(known)
            _count(request, known)
    return known


async def authenticate_again(request: Request) -> None:
    """Raise `InvalidAPIKeyError` where the caller of an answer that goes on has lost its key, or
    its browser was signed out. It is no request: no limit counts it.
    """
    if token := cookie_of(request):
        await part_of(request, Sessions).check(token)
    else:
        await part_of(request, Keyring).check(bearer_token(request))


def bearer_token(request: Request) -> str:
    """The key of the header `Authorization`; nothing, where there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _count(request: Request, caller: Principal) -> None:
    verdict = part_of(request, RateLimits).check(caller)
    add_headers(request, verdict.headers)
    if verdict.exhausted:
        limit = caller.limits[verdict.exhausted]
        raise RateLimitError(
            f"This key's limit of {limit} {verdict.exhausted} a minute is reached. "
            f"There is room again in {math.ceil(verdict.retry_after_s)} s.",
            retry_after_s=verdict.retry_after_s,
        )


class KeyedRoute(APIRoute):
    """A route whose body is read only once the key and the body's type have been checked.

    FastAPI reads a body before it calls any dependency.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            await authenticate(request)
            if self.body_field is not None:
                require_json(request)
            return await handle(request)

        return checked


Caller = Annotated[Principal, Depends(authenticate)]


async def _manager(caller: Caller) -> Principal:
    if caller.scope is Scope.DEPLOYMENT:
        raise InvalidAPIKeyError
    return caller


ACCOUNT_HEADER = "x-stoker-account"
ActingFor = Annotated[
    str | None,
    Header(description="With an operator key: the account to act for.", max_length=64),
]


async def _account(
    caller: Caller, platform: PlatformDep, x_stoker_account: ActingFor = None
) -> str:
    if caller.scope is Scope.ACCOUNT and caller.account_id:
        return caller.account_id
    if caller.scope is Scope.OPERATOR:
        if not x_stoker_account:
            raise InvalidRequestError(
                "An operator key acts for an account: name it in the header x-stoker-account.",
                param="x-stoker-account",
            )
        async with platform.database.reading() as session:
            if not await repository.account_exists(session, x_stoker_account):
                raise NotFoundError(
                    "Account not found", code="account_not_found", param="x-stoker-account"
                )
        return x_stoker_account
    raise InvalidAPIKeyError


@dataclass(frozen=True)
class Reach:
    """What a key can see of an account's objects that belong to deployments."""

    account_id: str
    deployment_ids: frozenset[str] | None
    """None: those of all deployments."""


async def reach_of(
    caller: Caller, platform: PlatformDep, x_stoker_account: ActingFor = None
) -> Reach:
    """Raises `InvalidAPIKeyError`, and what an operator's key needs."""
    if caller.scope is Scope.DEPLOYMENT and caller.account_id:
        return Reach(caller.account_id, caller.deployment_ids)
    return Reach(await _account(caller, platform, x_stoker_account), None)


async def _operator(caller: Caller) -> Principal:
    if caller.scope is not Scope.OPERATOR:
        raise InvalidAPIKeyError
    return caller


AccountId = Annotated[str, Depends(_account)]


Manager = Annotated[Principal, Depends(_manager)]
Within = Annotated[Reach, Depends(reach_of)]
Operator = Annotated[Principal, Depends(_operator)]
