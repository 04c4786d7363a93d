"""The server's own secret: a random file in the data folder, made at the first start."""

import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken


class ServerSecret:
    """Encrypts what must be kept and not be read from a copy of the database."""

    def __init__(self, data_dir: Path) -> None:
        self._fernet = Fernet(_load_or_create(data_dir / "server-secret"))

    def seal(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def unseal(self, token: bytes) -> bytes | None:
        """The data, or None where it was sealed with another secret."""
        try:
            return self._fernet.decrypt(token)
        except InvalidToken:
            return None


def _load_or_create(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    key = Fernet.generate_key()
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
