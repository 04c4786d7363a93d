from typing import Annotated

from fastapi import APIRouter, Response

from stoker.base.errors import ConflictError, NotFoundError, responses
from stoker.platform.web.context import PlatformDep, ReadSession, WriteSession, part
from stoker.platform.web.idempotency import Idempotent
from stoker.platform.web.lists import ListResponse, Paging
from stoker.platform.web.schemas import Deleted
from stoker.store.tables.keys import ApiKey
from stoker.tenancy.keys import repository, service
from stoker.tenancy.keys.auth import KeyedRoute, KeyManager
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.schemas import Key, KeyCreate, KeyRotate, KeyUpdate, KeyWithSecret
from stoker.tenancy.keys.sessions import Sessions

KeyringDep = Annotated[Keyring, part(Keyring)]
SessionsDep = Annotated[Sessions, part(Sessions)]

router = APIRouter(prefix="/v1/api-keys", tags=["API keys"], route_class=KeyedRoute)


def _with_secret(key: ApiKey, secret: str) -> KeyWithSecret:
    return KeyWithSecret(**Key.model_validate(key).model_dump(), key=service.whole(key, secret))


@router.post(
    "",
    status_code=201,
    response_model=KeyWithSecret,
    responses=responses(NotFoundError, ConflictError),
)
async def create_key(
    body: KeyCreate,
    caller: KeyManager,
    session: WriteSession,
    platform: PlatformDep,
    idempotent: Idempotent,
) -> Response:
    """Create an API key. Only this response shows its secret."""

    async def created() -> KeyWithSecret:
        return _with_secret(*await service.create(session, platform.quotas, caller, body))

    return await idempotent.run(session, created)


@router.get("", responses=responses())
async def list_keys(caller: KeyManager, session: ReadSession, paging: Paging) -> ListResponse[Key]:
    """List the account's keys."""
    page = await repository.page(session, service.visible_account(caller), paging)
    return page.response(Key.model_validate)


@router.get("/{key_id}", responses=responses(NotFoundError))
async def get_key(key_id: str, caller: KeyManager, session: ReadSession) -> Key:
    """Get a key, without its secret."""
    return Key.model_validate(await service.get(session, caller, key_id))


@router.patch("/{key_id}", responses=responses(NotFoundError))
async def update_key(
    key_id: str, body: KeyUpdate, caller: KeyManager, session: WriteSession, keyring: KeyringDep
) -> Key:
    """Change a key's rights. Its secret stays valid."""
    return Key.model_validate(await service.update(session, keyring, caller, key_id, body))


@router.delete("/{key_id}", responses=responses(NotFoundError))
async def revoke_key(
    key_id: str,
    caller: KeyManager,
    session: WriteSession,
    keyring: KeyringDep,
    sessions: SessionsDep,
) -> Deleted:
    """Revoke a key at once, and sign out the browsers that were signed in with it."""
    key = await service.revoke(session, keyring, sessions, caller, key_id)
    return Deleted(id=key.id, object="api_key.deleted")


@router.post("/{key_id}/rotate", responses=responses(NotFoundError))
async def rotate_key(
    key_id: str,
    caller: KeyManager,
    session: WriteSession,
    keyring: KeyringDep,
    body: KeyRotate | None = None,
) -> KeyWithSecret:
    """Create a new secret for a key. The old secret stays valid for the grace time."""
    grace_s = (body or KeyRotate()).grace_s
    return _with_secret(*await service.rotate(session, keyring, caller, key_id, grace_s))
