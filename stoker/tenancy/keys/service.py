"""API keys: `sk-<public id>-<secret>`. Only a digest of the secret is stored."""

import secrets
from datetime import timedelta

from stoker.base.errors import InvalidAPIKeyError, InvalidRequestError, NotFoundError
from stoker.base.ids import Prefix, new_id
from stoker.platform.quotas.limits import Quota
from stoker.platform.quotas.service import QuotaService
from stoker.platform.web.principal import Principal, Scope
from stoker.store import db
from stoker.store.db import Session
from stoker.store.tables.keys import ApiKey
from stoker.tenancy.keys import repository
from stoker.tenancy.keys.keyring import PREFIX, Keyring, digest, new_secret
from stoker.tenancy.keys.schemas import KeyCreate, KeyUpdate
from stoker.tenancy.keys.sessions import Sessions

MAX_LIFE = timedelta(days=36_525)


def whole(key: ApiKey, secret: str) -> str:
    return f"{PREFIX}-{key.public_id}-{secret}"


async def create(
    session: Session, quotas: QuotaService, caller: Principal, request: KeyCreate
) -> tuple[ApiKey, str]:
    """Creates a key. Returns it with its secret part, which is not stored."""
    account_id = await _account_for(session, caller, request)
    if request.scope is Scope.DEPLOYMENT:
        await _check_deployments(session, account_id, request.deployment_ids)
    elif request.deployment_ids:
        raise InvalidRequestError(
            f"A key of scope '{request.scope}' cannot have deployment_ids.", param="deployment_ids"
        )
    if request.expires_at is not None:
        if request.expires_at.tzinfo is None:
            raise InvalidRequestError(
                "'expires_at' needs a time zone, such as 2030-01-01T00:00:00Z.", param="expires_at"
            )
        if request.expires_at <= db.now():
            raise InvalidRequestError("'expires_at' is in the past.", param="expires_at")
        if request.expires_at - db.now() > MAX_LIFE:
            raise InvalidRequestError(
                "'expires_at' is more than a century ahead. Leave it out for a key that "
                "never expires.",
                param="expires_at",
            )
    await quotas.take(session, account_id, Quota.KEYS)
    return issue(session, account_id, request)


def issue(session: Session, account_id: str | None, request: KeyCreate) -> tuple[ApiKey, str]:
    """Adds a key. The request must have been checked."""
    secret = new_secret()
    key = ApiKey(
        id=new_id(Prefix.KEY),
        public_id=secrets.token_hex(8),
        secret_sha256=digest(secret),
        scope=request.scope.value,
        account_id=account_id,
        deployment_ids=request.deployment_ids,
        name=request.name,
        created_at=db.now(),
        expires_at=request.expires_at,
        requests_per_minute=request.requests_per_minute,
        tokens_per_minute=request.tokens_per_minute,
        may_prioritize=request.may_prioritize,
    )
    session.add(key)
    return key, secret


async def get(session: Session, caller: Principal, key_id: str, *, lock: bool = False) -> ApiKey:
    key = await repository.get(session, visible_account(caller), key_id, lock=lock)
    if key is None:
        raise NotFoundError("API key not found", code="api_key_not_found")
    return key


async def update(
    session: Session, keyring: Keyring, caller: Principal, key_id: str, change: KeyUpdate
) -> ApiKey:
    """Changes a key's rights. Its secret stays as it is."""
    key = await get(session, caller, key_id, lock=True)
    key.may_prioritize = change.may_prioritize
    session.after_commit(lambda: keyring.forget(key.public_id))
    return key


async def revoke(
    session: Session, keyring: Keyring, sessions: Sessions, caller: Principal, key_id: str
) -> ApiKey:
    """Revokes a key, and ends the browser sessions that were signed in with it."""
    key = await get(session, caller, key_id, lock=True)
    await _end(session, keyring, sessions, key)
    return key


async def revoke_all(
    session: Session, keyring: Keyring, sessions: Sessions, account_id: str
) -> None:
    """Revokes all keys of an account, and ends the browser sessions that were signed in with
    them.
    """
    for key in await repository.live_of(session, account_id):
        await _end(session, keyring, sessions, key)


async def _end(session: Session, keyring: Keyring, sessions: Sessions, key: ApiKey) -> None:
    key.revoked_at = db.now()
    ended = await repository.sign_out(session, key.id)

    def forget() -> None:
        keyring.forget(key.public_id)
        for token_sha256 in ended:
            sessions.forget(token_sha256)

    session.after_commit(forget)


async def rotate(
    session: Session, keyring: Keyring, caller: Principal, key_id: str, grace_s: float
) -> tuple[ApiKey, str]:
    """Creates a new secret for the key. The old secret stays valid for another `grace_s`
    seconds.
    """
    key = await get(session, caller, key_id, lock=True)
    secret = new_secret()
    key.previous_sha256 = key.secret_sha256
    key.previous_expires_at = db.now() + timedelta(seconds=grace_s)
    key.secret_sha256 = digest(secret)
    session.after_commit(lambda: keyring.forget(key.public_id))
    return key, secret


def visible_account(caller: Principal) -> str | None:
    """Returns the account with keys that the caller may see. None means all keys."""
    return caller.account_id


async def _account_for(session: Session, caller: Principal, request: KeyCreate) -> str | None:
    if caller.scope is Scope.ACCOUNT:
        if request.scope is Scope.OPERATOR:
            raise InvalidAPIKeyError(
                "The API key is valid, but its scope is 'account'. Only a key of scope "
                "'operator' can create keys of scope 'operator'."
            )
        if request.account_id not in (None, caller.account_id):
            raise NotFoundError("Account not found", code="account_not_found", param="account_id")
        return caller.account_id
    if request.scope is Scope.OPERATOR:
        if request.account_id is not None:
            raise InvalidRequestError("An operator key has no account.", param="account_id")
        return None
    account_id = request.account_id or caller.account_id
    if account_id is None:
        raise InvalidRequestError(
            "'account_id' is required: the account that the key belongs to. It may also be named "
            "in the header x-stoker-account.",
            param="account_id",
        )
    if caller.account_id not in (None, account_id):
        raise InvalidRequestError(
            "'account_id' differs from the account that the request acts for. Leave it out.",
            param="account_id",
        )
    if not await repository.account_exists(session, account_id):
        raise NotFoundError("Account not found", code="account_not_found", param="account_id")
    return account_id


async def _check_deployments(session: Session, account_id: str | None, ids: list[str]) -> None:
    if not ids:
        raise InvalidRequestError(
            "A key of scope 'deployment' needs at least one id in deployment_ids.",
            param="deployment_ids",
        )
    known = await repository.deployment_ids(session, account_id or "", ids)
    for index, identifier in enumerate(ids):
        if identifier not in known:
            raise NotFoundError(
                "Deployment not found",
                code="deployment_not_found",
                param=f"deployment_ids[{index}]",
            )
