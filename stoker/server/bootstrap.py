"""The first start: an operator key, so that somebody can get in."""

import json
import logging
import os
from pathlib import Path

from stoker.keys import repository, service
from stoker.keys.schemas import KeyCreate
from stoker.web.context import Platform
from stoker.web.principal import Scope

log = logging.getLogger(__name__)


async def operator_key(platform: Platform) -> Path:
    """The file with an operator key, made where no operator key exists yet."""
    path = platform.settings.data_dir.resolve() / "operator-key"
    async with platform.database.transaction() as session:
        if not await repository.operator_exists(session):
            request = KeyCreate(scope=Scope.OPERATOR, name="first operator")
            key, secret = service.issue(session, None, request)
            write_private(path, service.whole(key, secret) + "\n")
    return path


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
