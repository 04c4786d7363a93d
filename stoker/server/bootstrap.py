"""Creates the keys of the first start, so that a user can get access."""

import json
import logging
import os
from pathlib import Path

from stoker.base.private_files import write_private
from stoker.platform.parts import ServerParts
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Scope
from stoker.store.db import Session
from stoker.store.secret import ServerSecret, keep_shared, lock_secrets, shared
from stoker.tenancy.accounts import repository as accounts
from stoker.tenancy.accounts import service as account_service
from stoker.tenancy.keys import repository, service
from stoker.tenancy.keys.keyring import parsed
from stoker.tenancy.keys.repository import KeyRow
from stoker.tenancy.keys.schemas import KeyCreate
from stoker.tenancy.usage.balances import CreditCheck

log = logging.getLogger(__name__)

FILE = "operator-key"
ACCOUNT_FILE = "account-key"
"""Key of the account that the first start creates. Absent if the server uses PostgreSQL."""
DEFAULT_ACCOUNT = "default"


async def first_keys(parts: ServerParts) -> Path:
    """Returns the path of the file with an operator key. Creates a key if no operator key exists.

    On SQLite, the first start also creates an account and the file with its key.
    """
    platform = parts.get(Platform)
    path = platform.settings.data_dir.resolve() / FILE
    async with platform.database.transaction() as session:
        if not platform.database.is_sqlite:
            await _share(session, platform.secret, path)
        elif not await repository.operator_exists(session):
            write_private(path, _issue(session) + "\n")
            if not await accounts.any_exists(session):
                key = await _default_account(session, parts)
                write_private(path.with_name(ACCOUNT_FILE), key + "\n")
    return path


def _issue(session: Session) -> str:
    request = KeyCreate(scope=Scope.OPERATOR, name="first operator")
    return service.whole(*service.issue(session, None, request))


async def _default_account(session: Session, parts: ServerParts) -> str:
    """Creates the account of a server's first user. Returns its key."""
    starting = parts.get(Platform).settings.starting_credits
    known = parts.get(CreditCheck)
    account = await account_service.create(session, known, DEFAULT_ACCOUNT, starting)
    request = KeyCreate(scope=Scope.ACCOUNT, name="first key")
    return service.whole(*service.issue(session, account.id, request))


async def _share(session: Session, secret: ServerSecret, path: Path) -> None:
    """Makes all servers of a database write the same key. The database stores this key sealed. A
    file with a valid key stays unchanged, and its key becomes the shared key if the servers have
    none.
    """
    await lock_secrets(session)
    sealed = await shared(session, FILE)
    known = secret.unseal(sealed) if sealed else None
    file_key = _content(path)
    good = [
        candidate
        for candidate in (file_key, known)
        if candidate and await valid_key(session, candidate.decode(), Scope.OPERATOR)
    ]
    if not good and not await repository.operator_exists(session):
        good = [_issue(session).encode()]
    if not good:
        # Operator keys exist, but no server knows their text.
        return
    if known not in good:
        await keep_shared(session, FILE, secret.seal(good[0]))
    if file_key not in good:
        write_private(path, good[0].decode() + "\n")


def _content(path: Path) -> bytes | None:
    return path.read_bytes().strip() if path.exists() else None


async def valid_key(session: Session, key: str, scope: Scope) -> KeyRow | None:
    """Returns the row of a key if the key is valid and has the scope."""
    public_id, digest = parsed(key)
    row = await repository.by_public_id(session, public_id)
    is_valid = row is not None and row.scope == scope and row.secret_sha256 == digest
    return row if is_valid else None


async def key_in_file(session: Session, path: Path, scope: Scope) -> KeyRow | None:
    """Returns the row of the key in a file. Returns None if the file or the key is not valid."""
    content = _content(path)
    return await valid_key(session, content.decode(errors="replace"), scope) if content else None


async def announce(parts: ServerParts, base_url: str) -> None:
    """Creates the keys of the first start and writes the server's base URL to
    DATA_DIR/server.json.
    """
    path = await first_keys(parts)
    state = {"base_url": base_url, "pid": os.getpid()}
    write_private(path.with_name("server.json"), json.dumps(state) + "\n")
    log.info("serving", extra={"base_url": base_url, "operator_key_file": str(path)})
