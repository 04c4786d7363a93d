from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.security import APIKeyCookie

from stoker.base.errors import ConflictError, InvalidAPIKeyError, responses
from stoker.platform.web.context import WriteSession, part_of
from stoker.platform.web.http import require_json
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.prefix import prefix_of
from stoker.server.console import service
from stoker.server.console.context import ConsoleContext, ContextDep
from stoker.server.console.schemas import ConsoleLink, ConsoleSession, SessionCreate
from stoker.tenancy.keys.auth import Caller, KeyedRoute
from stoker.tenancy.keys.sessions import (
    COOKIE,
    BrowserSession,
    check_csrf,
    cookie_of,
    refuse_other_sites,
    signed_out,
)

SESSION = "/console/session"

router = APIRouter(tags=["Console"])
"""Routes without a key: signing in needs none, and the other routes use a cookie. Each handler
checks access itself.
"""
links = APIRouter(tags=["Console"], route_class=KeyedRoute)


async def _from_ours(request: Request) -> None:
    refuse_other_sites(request)
    require_json(request)


# Declared only for the OpenAPI document, like the header of keys.
cookie = APIKeyCookie(
    name=COOKIE, auto_error=False, description="Session of a browser that is signed in."
)


async def _signed_in(
    request: Request, _scheme: Annotated[object, Security(cookie)] = None
) -> BrowserSession:
    """Returns the browser's session. Raises `InvalidAPIKeyError`, or `ForbiddenError` if a change
    does not come from one of the console's pages.
    """
    token = cookie_of(request)
    if token is None:
        raise signed_out()
    browser = await part_of(request, ConsoleContext).sessions.check(token)
    check_csrf(request, token)
    return browser


_BAD_KEY = (
    "You cannot sign in with this key: it is unknown, has expired or was revoked. "
    "Paste the whole key, from 'sk-' to its end."
)
_BAD_LINK = (
    "You cannot sign in with this link: it was used before, or has expired. "
    "Open a new one with 'stoker open', or paste a key."
)

SignedIn = Annotated[BrowserSession, Depends(_signed_in)]


@router.post(SESSION, responses=responses(), dependencies=[Depends(_from_ours)])
async def create_session(
    body: SessionCreate, request: Request, response: Response, context: ContextDep
) -> ConsoleSession:
    """Sign a browser in with a key or a link. The browser receives a cookie with the rights of the
    key.
    """
    address = request.client.host if request.client else ""
    try:
        token = await service.sign_in(context, body)
        browser = await context.sessions.check(token)
    except InvalidAPIKeyError:
        # Only failed keys are limited. A valid key always signs in, because other clients behind
        # the same proxy may have failed.
        context.attempts.check(address)
        context.attempts.failed(address)
        raise InvalidAPIKeyError(_BAD_LINK if body.key is None else _BAD_KEY) from None
    context.attempts.succeeded(address)
    seconds = int(context.settings.console_session_h * 3600)
    _set_cookie(request, response, context, token, seconds)
    return service.response(browser, token)


@router.get(SESSION, responses=responses())
async def get_session(request: Request, response: Response, found: SignedIn) -> ConsoleSession:
    """Get the key that the browser is signed in with, and the token that its changes need."""
    response.headers["cache-control"] = "no-store"
    return service.response(found, cookie_of(request) or "")


@router.delete(SESSION, status_code=204, responses=responses())
async def delete_session(
    request: Request, found: SignedIn, session: WriteSession, context: ContextDep
) -> Response:
    """Sign the browser out immediately."""
    await service.sign_out(session, context, found)
    response = Response(status_code=204)
    _set_cookie(request, response, context, "", 0)
    return response


@links.post(
    "/v1/console/links",
    status_code=201,
    response_model=ConsoleLink,
    responses=responses(ConflictError),
)
async def create_link(
    request: Request,
    caller: Caller,
    session: WriteSession,
    context: ContextDep,
    idempotent: Idempotent,
) -> Response:
    """Create a link that signs one browser in with this key. It works once, within a minute."""

    async def created() -> ConsoleLink:
        return await service.link(session, context, request, caller)

    return await idempotent.run(session, created, is_single_use=True)


def _set_cookie(
    request: Request, response: Response, context: ConsoleContext, token: str, seconds: int
) -> None:
    public = context.settings.public_url
    response.set_cookie(
        COOKIE,
        token,
        max_age=seconds,
        path=f"{prefix_of(request, public)}/",
        secure=request.url.scheme == "https" or (public or "").startswith("https:"),
        httponly=True,
        samesite="strict",
    )
    response.headers["cache-control"] = "no-store"
