"""Private resources of each process that runs a model: a folder, and a user if the server runs as
root.
"""

import asyncio
import logging
import os
import random
import secrets
import shutil
from pathlib import Path

from stoker.base.config import Settings
from stoker.base.temporary_folder import TemporaryFolder
from stoker.sandbox import identity, landlock
from stoker.wire.protocol import Cell

log = logging.getLogger(__name__)

_PREFIX = "stoker-run-"
_SOCKET, _SECRET, _FLIGHT = "socket", "secret", "flight"


class Sandboxes:
    """Sandboxes by process id. Their folders are in a folder that is removed when the server
    ends.
    """

    def __init__(self, settings: Settings) -> None:
        self._kept_back = str(settings.data_dir.resolve())
        self._users = settings.replica_users
        # Another server on this machine may use the same range.
        self._next = random.randrange(len(self._users)) if self._users else 0  # noqa: S311
        self._made: dict[str, int | None] = {}
        """Maps a process to its user."""

    def open(self) -> None:
        # A separate, short path: the kernel allows at most 107 bytes for a socket's path.
        self._temporary = TemporaryFolder(_PREFIX)
        self._root = self._temporary.path
        if os.geteuid() == 0:
            # Each user can open its own folder below, but cannot list this one.
            self._root.chmod(0o711)
            self._look_at_users()
        if not landlock.version():
            log.warning(
                "kernel has no Landlock: code in a replica may read every file that the "
                "server's user may read, keys and database included"
            )

    def close(self) -> None:
        self._temporary.remove()

    def make(self, name: str) -> Cell:
        """Creates a sandbox. `remove` deletes it."""
        self.folder(name).mkdir(mode=0o700)
        user = self._made[name] = self._free_user()
        return Cell(str(self.folder(name)), user, self._kept_back)

    def new_secret(self, name: str) -> bytes:
        """Creates the secret that identifies the process to the gateway. The process reads and
        deletes it.

        The secret is in a file and not in the command. Replicas inherit the memory of the engine
        host, and would get the secrets of earlier replicas from it.
        """
        secret = secrets.token_bytes(32)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(self.secret_path(name), flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
        return secret

    def remove(self, name: str) -> None:
        """Removes a sandbox if it exists. The files are deleted in a thread, because they may be
        many.
        """
        if name not in self._made:
            return
        del self._made[name]
        folder = self.folder(name)
        try:
            asyncio.get_running_loop().run_in_executor(None, _remove, folder)
        except RuntimeError:
            _remove(folder)

    def folder(self, name: str) -> Path:
        return self._root / name

    def address(self, name: str) -> str:
        return str(self.folder(name) / _SOCKET)

    def secret_path(self, name: str) -> Path:
        return self.folder(name) / _SECRET

    def flight_path(self, name: str) -> Path:
        return self.folder(name) / _FLIGHT

    def _free_user(self) -> int | None:
        if os.geteuid() != 0 or not self._users:
            return None
        used_users = {*self._made.values()}
        for _ in self._users:
            user = self._users[self._next]
            self._next = (self._next + 1) % len(self._users)
            if user not in used_users:
                return user
        return None

    def _look_at_users(self) -> None:
        users = self._users
        if not users:
            log.warning("replicas run as root: STOKER_REPLICA_UIDS is empty")
        elif not identity.is_mapped(users[0], users[-1]):
            self._users = range(0)
            log.warning(
                "replicas run as root: the users of STOKER_REPLICA_UIDS do not exist in this "
                "container",
                extra={"users": f"{users[0]}-{users[-1]}"},
            )


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
