"""Private resources of each process that runs a model: a folder, and a user if the server runs as
root.
"""

import asyncio
import logging
import os
import random
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from stoker.base.config import Settings
from stoker.base.temporary_folder import TemporaryFolder, remove_abandoned
from stoker.sandbox import identity, landlock
from stoker.wire.protocol import Cell

log = logging.getLogger(__name__)

_PREFIX = "stoker-run-"
_MODELS_PREFIX = "prepared-"
_SOCKET, _SECRET, _FLIGHT = "socket", "secret", "flight"


@dataclass
class _Made:
    folder: Path
    user: int | None
    models: Path | None = None
    """Folder for the model of a prepared worker."""


class Sandboxes:
    """Sandboxes by process id. Their folders are in a folder that is removed when the server
    ends.
    """

    def __init__(self, settings: Settings) -> None:
        self._kept_back = str(settings.data_dir.resolve())
        self._models_base = settings.data_dir.resolve() / "cache"
        self._users = settings.replica_users
        # Another server on this machine may use the same range.
        self._next = random.randrange(len(self._users)) if self._users else 0  # noqa: S311
        self._made: dict[str, _Made] = {}
        self._models_root: TemporaryFolder | None = None

    def open(self) -> None:
        # A separate, short path: the kernel allows at most 107 bytes for a socket's path.
        self._temporary = TemporaryFolder(_PREFIX)
        self._root = self._temporary.path
        remove_abandoned(self._models_base, _MODELS_PREFIX)
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
        if self._models_root:
            self._models_root.remove()

    def make(self, name: str) -> Cell:
        """Creates a sandbox. `remove` deletes it."""
        folder = self._root / name
        folder.mkdir(mode=0o700)
        self._made[name] = _Made(folder, self._free_user())
        return self.cell(name)

    def cell(self, name: str) -> Cell:
        made = self._made[name]
        return Cell(str(made.folder), made.user, self._kept_back)

    def make_models(self, name: str) -> Path:
        """Creates the folder for the model of a sandbox's process. `remove` deletes it, too.

        It is on the same file system as uploaded models, so that they can be linked into it. The
        process may read it only.
        """
        if self._models_root is None:
            self._models_base.mkdir(parents=True, exist_ok=True)
            self._models_root = TemporaryFolder(_MODELS_PREFIX, self._models_base)
        models = self._models_root.path / name
        models.mkdir(mode=0o755)
        self._made[name].models = models
        return models

    def rename(self, name: str, new: str) -> None:
        """Gives a sandbox to another process id. Its folders keep their paths."""
        self._made[new] = self._made.pop(name)

    def hand_over(self, name: str) -> None:
        """Gives the socket and the secret to the process's user, if the process runs already."""
        user = self._made[name].user
        if user is not None:
            for path in (self.address(name), self.secret_path(name)):
                os.chown(path, user, user, follow_symlinks=False)

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
        made = self._made.pop(name)
        folders = [folder for folder in (made.folder, made.models) if folder]
        try:
            asyncio.get_running_loop().run_in_executor(None, _remove, folders)
        except RuntimeError:
            _remove(folders)

    def folder(self, name: str) -> Path:
        made = self._made.get(name)
        return made.folder if made else self._root / name

    def address(self, name: str) -> str:
        return str(self.folder(name) / _SOCKET)

    def secret_path(self, name: str) -> Path:
        return self.folder(name) / _SECRET

    def flight_path(self, name: str) -> Path:
        return self.folder(name) / _FLIGHT

    def _free_user(self) -> int | None:
        if os.geteuid() != 0 or not self._users:
            return None
        used_users = {made.user for made in self._made.values()}
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


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
