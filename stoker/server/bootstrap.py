"""The first start: an operator key, so that somebody can get in."""

import json
import logging
import os
from pathlib import Path

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
    """The file with an operator key, made where no operator key exists yet."""
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
    """Have all servers of a database write the same key: sealed, it stands there. A file with a key
    that is good is left as it is, and becomes theirs where they have none.
    """
    await lock_secrets(session)
    sealed = await shared(session, FILE)
    known = secret.unseal(sealed) if sealed else None
    own = _content(path)
    good = [one for one in (own, known) if one and await _is_good(session, one.decode())]
    if not good and not await repository.operator_exists(session):
        good = [_issue(session).encode()]
    if not good:
        # The operators have keys that no server knows.
        return
    if known not in good:
        await keep_shared(session, FILE, secret.seal(good[0]))
    if own not in good:
        write_private(path, good[0].decode() + "\n")


def _content(path: Path) -> bytes | None:
    return path.read_bytes().strip() if path.exists() else None


async def _is_good(session: Session, key: str) -> bool:
    public_id, digest = parsed(key)
    found = await repository.by_public_id(session, public_id)
    return found is not None and found.scope == Scope.OPERATOR and found.secret_sha256 == digest


async def announce(platform: Platform, base_url: str) -> None:
    """Make the operator key and write where the server listens to DATA_DIR/server.json."""
    path = await operator_key(platform)
    state = {"base_url": base_url, "pid": os.getpid()}
    write_private(platform.settings.data_dir.resolve() / "server.json", json.dumps(state) + "\n")
    log.info("serving", extra={"base_url": base_url, "operator_key_file": str(path)})


def write_private(path: Path, content: str) -> None:
    """Write a file that only the owner can read, whole or not at all."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
