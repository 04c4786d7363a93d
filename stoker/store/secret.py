"""The server's own secret: a random file in the data folder, made at the first start."""

import hashlib
import hmac
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken


class ServerSecret:
    """Encrypts what must be kept and not be read from a copy of the database, and signs links."""

    def __init__(self, data_dir: Path) -> None:
        key = _load_or_create(data_dir / "server-secret")
        self._fernet = Fernet(key)
        # A key of its own for each use: HKDF's expand step (RFC 5869) for one block.
        self._signing = hmac.digest(key, b"stoker signed links\x01", hashlib.sha256)

    def sign(self, text: str) -> str:
        """HMAC-SHA256 of a text, 64 hexadecimal digits."""
        return hmac.new(self._signing, text.encode(), hashlib.sha256).hexdigest()

    def signed(self, text: str, signature: str) -> bool:
        """Whether a signature, which may be anything, is the text's."""
        return hmac.compare_digest(self.sign(text).encode(), signature.encode())

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
