"""Authenticates callers and determines their rights. Every route depends on `authenticate`: deny by
default.
"""

import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from stoker.base.errors import (
    InvalidAPIKeyError,
    InvalidRequestError,
    NotFoundError,
    RateLimitError,
)
from stoker.platform.web.context import Platform, PlatformDep, part_of
from stoker.platform.web.http import add_headers, require_json
from stoker.platform.web.principal import Principal, Scope, caller_of, know_caller, work_for
from stoker.tenancy.keys import repository
from stoker.tenancy.keys.keyring import PREFIX, Keyring
from stoker.tenancy.keys.limits import RateLimits
from stoker.tenancy.keys.sessions import Sessions, check_csrf, cookie_of

KEY_HEADER = "x-api-key"
"""Header with which Anthropic's clients send a key."""
# Declared only for the OpenAPI document. `authenticate` reads the header itself, because FastAPI's
# response to a missing header does not use Stoker's error format.
bearer = HTTPBearer(auto_error=False, description="An API key: `Bearer sk-…`")


async def authenticate(
    request: Request, _scheme: Annotated[object, Security(bearer)] = None
) -> Principal:
    """Returns the caller, identified by a key or by the cookie of a browser that was signed in with
    a key.

    Raises `InvalidAPIKeyError`, the same for unknown, expired and revoked keys. Raises
    `RateLimitError` if the key's limit is reached, and `ForbiddenError` if another site's page uses
    the cookie.
    """
    known = caller_of(request)
    if known is None:
        known = await _identified(request)
        know_caller(request, known)
    return known


async def _identified(request: Request) -> Principal:
    """Identifies the caller and counts the request. The current task then works for that caller.

    Raises the errors of `authenticate`.
    """
    if token := cookie_of(request):
        caller = (await part_of(request, Sessions).check(token)).principal
        check_csrf(request, token)
    else:
        caller = await _checked(request)
    work_for(caller)
    if caller.limits:
        await part_of(request, RateLimits).ready(caller)
        _count(request, caller)
    return caller


async def authenticate_again(request: Request) -> None:
    """Checks again the caller of a response that is still being streamed.

    Raises `InvalidAPIKeyError` if its key has ended or its browser was signed out. The check is not
    a request, so no rate limit counts it.
    """
    if token := cookie_of(request):
        await part_of(request, Sessions).check(token)
    else:
        await part_of(request, Keyring).check(key_of(request))


async def _checked(request: Request) -> Principal:
    token = key_of(request)
    try:
        # Runs without a token too, so that the response takes equally long.
        return await part_of(request, Keyring).check(token)
    except InvalidAPIKeyError:
        raise InvalidAPIKeyError(_why_refused(request, token)) from None


def _why_refused(request: Request, token: str) -> str | None:
    """Returns the error in the request itself. Returns None if only a lookup of the key can
    tell.
    """
    if token:
        is_ours = token.startswith(f"{PREFIX}-")
        return None if is_ours else f"Invalid API key: keys of this server begin with '{PREFIX}-'."
    if "authorization" in request.headers:
        return "The header Authorization has no API key: send it as 'Authorization: Bearer sk-…'."
    return "The request has no API key: send one as 'Authorization: Bearer sk-…'."


def lacks_scope(caller: Principal, *needed: Scope) -> InvalidAPIKeyError:
    """Returns the error for a valid key without the needed scope."""
    scopes = " or ".join(f"'{scope}'" for scope in needed)
    return InvalidAPIKeyError(
        f"The API key is valid, but its scope is '{caller.scope}'. This request "
        f"needs a key of scope {scopes}."
    )


def key_of(request: Request) -> str:
    """Returns the key in `Authorization`, or else in `x-api-key`. Empty if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else ""
    return key or request.headers.get(KEY_HEADER, "").strip()


def _count(request: Request, caller: Principal) -> None:
    count_request(part_of(request, RateLimits), caller, partial(add_headers, request))


def count_request(
    limits: RateLimits, caller: Principal, add: Callable[[Mapping[str, str]], None]
) -> None:
    """Counts a request for the key's limits.

    Args:
        add: receives headers of the response, whether or not the request may continue.

    Raises `RateLimitError` if a limit is reached.
    """
    verdict = limits.check(caller)
    add(verdict.headers)
    if verdict.exhausted:
        limit = caller.limits[verdict.exhausted]
        raise RateLimitError(
            f"This key has reached its limit of {limit} {verdict.exhausted} per minute. "
            f"Retry in {math.ceil(verdict.retry_after_s)} s.",
            retry_after_s=verdict.retry_after_s,
        )


class KeyedRoute(APIRoute):
    """Route that checks the key and the body's type before it reads the body.

    FastAPI itself reads a body before it calls any dependency.
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
        raise lacks_scope(caller, Scope.ACCOUNT, Scope.OPERATOR)
    return caller


Manager = Annotated[Principal, Depends(_manager)]


ACCOUNT_HEADER = "x-stoker-account"
_LONGEST_ID = 64
ActingFor = Annotated[
    str | None,
    Header(description="With an operator key: the account to act for.", max_length=_LONGEST_ID),
]


async def _account(
    caller: Caller, platform: PlatformDep, x_stoker_account: ActingFor = None
) -> str:
    if caller.scope is Scope.ACCOUNT and caller.account_id:
        return caller.account_id
    if caller.scope is Scope.OPERATOR:
        return await _named_account(platform, x_stoker_account)
    raise lacks_scope(caller, Scope.ACCOUNT)


async def _named_account(platform: Platform, account_id: str | None) -> str:
    """Returns the account that an operator's request names.

    Raises `InvalidRequestError` if the request names none, and `NotFoundError` if the account does
    not exist.
    """
    if not account_id:
        raise InvalidRequestError(
            "This is an operator's key, which belongs to no account. Name the account to act for "
            f"in the header {ACCOUNT_HEADER}.{await _only_account(platform)}",
            param=ACCOUNT_HEADER,
        )
    # No valid id is longer.
    async with platform.database.reading() as session:
        if not await repository.account_exists(session, account_id[:_LONGEST_ID]):
            raise NotFoundError("Account not found", code="account_not_found", param=ACCOUNT_HEADER)
    return account_id


async def _only_account(platform: Platform) -> str:
    """Returns a sentence that names the only account. Empty if there is none, or several."""
    async with platform.database.reading() as session:
        account = await repository.only_account(session)
    return f" The only account is {account.id} ('{account.name}')." if account else ""


async def on_behalf(request: Request) -> Principal:
    """Returns the caller of a model. An operator's key acts as a key of the account that it names.
    Models are looked up in that account, and that account is billed.

    Raises the same errors as `authenticate`, and `InvalidRequestError` and `NotFoundError`.
    """
    return await _acting(request, await authenticate(request))


async def caller_of_model(request: Request) -> Principal:
    """Returns the caller of a model as `on_behalf` does. Always checks the key, and does not
    remember the caller.
    """
    return await _acting(request, await _identified(request))


async def _acting(request: Request, caller: Principal) -> Principal:
    if caller.scope is not Scope.OPERATOR:
        return caller
    named = request.headers.get(ACCOUNT_HEADER)
    account_id = await _named_account(part_of(request, Platform), named)
    acting = replace(caller, scope=Scope.ACCOUNT, account_id=account_id)
    work_for(acting)
    return acting


async def _manages(
    caller: Manager, platform: PlatformDep, x_stoker_account: ActingFor = None
) -> Principal:
    if caller.scope is not Scope.OPERATOR or x_stoker_account is None:
        return caller
    return replace(caller, account_id=await _named_account(platform, x_stoker_account))


@dataclass(frozen=True)
class Reach:
    """Limits a key's access to an account's objects that belong to deployments."""

    account_id: str
    deployment_ids: frozenset[str] | None
    """Ids of accessible deployments. None means all deployments."""
    key_id: str
    """The caller's key. A key of deployments also has access to objects that it created itself."""


async def reach_of(
    caller: Caller, platform: PlatformDep, x_stoker_account: ActingFor = None
) -> Reach:
    """Returns the reach of the caller. Raises `InvalidAPIKeyError`, and the errors for an
    operator's key without a valid account.
    """
    if caller.scope is Scope.DEPLOYMENT and caller.account_id:
        return Reach(caller.account_id, caller.deployment_ids, caller.key_id)
    account_id = await _account(caller, platform, x_stoker_account)
    return Reach(account_id, None, caller.key_id)


async def _operator(caller: Caller) -> Principal:
    if caller.scope is not Scope.OPERATOR:
        raise lacks_scope(caller, Scope.OPERATOR)
    return caller


AccountId = Annotated[str, Depends(_account)]


KeyManager = Annotated[Principal, Depends(_manages)]
"""Caller that manages keys. If an operator names an account, `account_id` is set to it, and the
operator sees its keys.
"""
ModelCaller = Annotated[Principal, Depends(on_behalf)]
Within = Annotated[Reach, Depends(reach_of)]
Operator = Annotated[Principal, Depends(_operator)]
