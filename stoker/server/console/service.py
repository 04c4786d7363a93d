"""Signs browsers in and out."""

import secrets
from datetime import datetime, timedelta

from fastapi import Request

from stoker.base.errors import InvalidAPIKeyError
from stoker.platform.web.prefix import base_url
from stoker.platform.web.principal import Principal, Scope
from stoker.server.console import repository, schemas
from stoker.server.console.context import ConsoleContext
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.console import ConsoleLink, ConsoleSession
from stoker.tenancy.keys.auth import key_of
from stoker.tenancy.keys.keyring import parsed
from stoker.tenancy.keys.sessions import BrowserSession, cookie_of, csrf_token, digest

LINK_LIFE = timedelta(seconds=60)
MOST_SESSIONS, MOST_LINKS = 100, 20
"""Maximum number of sessions and links per key. A new one replaces the oldest."""


async def sign_in(context: ConsoleContext, asked: schemas.SessionCreate) -> str:
    """Opens a session and returns its token. Raises the same `InvalidAPIKeyError` for any cause."""
    if asked.key is not None:
        principal = await context.keyring.check(asked.key)
        _, secret_sha256 = parsed(asked.key)
        async with context.database.transaction() as session:
            return await _open(session, context, principal, secret_sha256)
    async with context.database.transaction() as session:
        link_key = await repository.take_link(session, digest(asked.link or ""), db.now())
    # The link is already used up, even if the following steps fail.
    if link_key is None:
        raise InvalidAPIKeyError
    principal = await context.keyring.admitted(*link_key)
    async with context.database.transaction() as session:
        return await _open(session, context, principal, link_key[1])


async def _open(
    session: Session, context: ConsoleContext, principal: Principal, secret_sha256: bytes
) -> str:
    token, now = secrets.token_urlsafe(32), db.now()
    await repository.make_room(session, ConsoleSession, principal.key_id, MOST_SESSIONS)
    session.add(
        ConsoleSession(
            token_sha256=digest(token),
            key_id=principal.key_id,
            secret_sha256=secret_sha256,
            created_at=now,
            expires_at=now + timedelta(hours=context.settings.console_session_h),
        )
    )
    return token


async def sign_out(session: Session, context: ConsoleContext, found: BrowserSession) -> None:
    token_sha256 = found.row.token_sha256
    await repository.end_session(session, token_sha256)
    session.after_commit(lambda: context.sessions.forget(token_sha256))


async def link(
    session: Session, context: ConsoleContext, request: Request, caller: Principal
) -> schemas.ConsoleLink:
    """Creates a link that signs one browser in with the caller's key."""
    if cookie := cookie_of(request):
        secret_sha256 = (await context.sessions.check(cookie)).row.secret_sha256
    else:
        _, secret_sha256 = parsed(key_of(request))
    base = base_url(request, context.settings.public_url)
    return await create_link(session, base, caller.key_id, secret_sha256)


async def create_link(
    session: Session,
    base: str,
    key_id: str,
    secret_sha256: bytes,
    life: timedelta = LINK_LIFE,
) -> schemas.ConsoleLink:
    """Creates a link that signs one browser in with a key.

    Args:
        base: address of the server, without a trailing slash.
        secret_sha256: digest of the key's secret.
    """
    token, now = secrets.token_urlsafe(32), db.now()
    await repository.make_room(session, ConsoleLink, key_id, MOST_LINKS)
    session.add(
        ConsoleLink(
            token_sha256=digest(token),
            key_id=key_id,
            secret_sha256=secret_sha256,
            created_at=now,
            expires_at=now + life,
        )
    )
    # The token follows the '#': browsers do not send this part, and logs do not contain it.
    return schemas.ConsoleLink(url=f"{base}/console/#link={token}", expires_at=now + life)


def response(found: BrowserSession, token: str) -> schemas.ConsoleSession:
    caller = found.principal
    is_narrow = caller.scope is Scope.DEPLOYMENT
    return schemas.ConsoleSession(
        scope=caller.scope,
        account_id=caller.account_id,
        deployments=sorted(caller.deployment_ids) if is_narrow else None,
        csrf=csrf_token(token),
        expires_at=found.row.expires_at,
    )


async def forget_expired(context: ConsoleContext, now: datetime) -> None:
    async with context.database.transaction() as session:
        await repository.forget_expired(session, now)
