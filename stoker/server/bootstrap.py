"""First start: creates an operator key, so that a user can get access."""

import json
import logging
import os
from pathlib import Path

from stoker.base.private_files import write_private
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Scope
from stoker.store.db import Session
from stoker.store.secret import ServerSecret, keep_shared, lock_secrets, shared
from stoker.tenancy.keys import repository, service
from stoker.tenancy.keys.keyring import parsed
from stoker.tenancy.keys.schemas import KeyCreate

log = logging.getLogger(__name__)

FILE = "operator-key"


async def operator_key(platform: Platform) -> Path:
    """Returns the path of the file with an operator key. Creates a key if no operator key
    exists.
    """
    path = platform.settings.data_dir.resolve() / FILE
    async with platform.database.transaction() as session:
        if platform.database.is_sqlite:
            if not await repository.operator_exists(session):
                write_private(path, _issue(session) + "\n")
        else:
            await _share(session, platform.secret, path)
    return path


def _issue(session: Session) -> str:
    request = KeyCreate(scope=Scope.OPERATOR, name="first operator")
    return service.whole(*service.issue(session, None, request))


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
        if candidate and await _is_good(session, candidate.decode())
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


async def _is_good(session: Session, key: str) -> bool:
    public_id, digest = parsed(key)
    row = await repository.by_public_id(session, public_id)
    return row is not None and row.scope == Scope.OPERATOR and row.secret_sha256 == digest


async def announce(platform: Platform, base_url: str) -> None:
    """Creates the operator key and writes the server's base URL to DATA_DIR/server.json."""
    path = await operator_key(platform)
    state = {"base_url": base_url, "pid": os.getpid()}
    write_private(platform.settings.data_dir.resolve() / "server.json", json.dumps(state) + "\n")
    log.info("serving", extra={"base_url": base_url, "operator_key_file": str(path)})
