"""Erasure by deleting a key ("crypto-shredding"; NIST SP 800-88, 2.6 "cryptographic erase").

Deleted data stays in a database's free pages, log, replicas and backups for a while. The content of
a run is therefore never written in the clear. It is encrypted with a key that only the run's row
holds. That key is sealed with the server's secret.
"""

import os
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stoker.base.errors import InternalError
from stoker.store.secret import ServerSecret

_KEY_BYTES = 32
_NONCE_BYTES = 12

_encode = msgspec.json.Encoder().encode


def new_key(secret: ServerSecret) -> bytes:
    """Returns a new key for a run, sealed for storage in its row."""
    return secret.seal(os.urandom(_KEY_BYTES))


class Sealer:
    """Seals JSON values with AES-256-GCM (NIST SP 800-38D) and random nonces."""

    def __init__(self, secret: ServerSecret, key: bytes) -> None:
        """Raises `InternalError` if another server's secret sealed the key."""
        opened = secret.unseal(key)
        if opened is None:
            raise InternalError("This run's content was encrypted by a server with another secret.")
        self._cipher = AESGCM(opened)

    def seal(self, value: Any) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, _encode(value), None)

    def unseal(self, sealed: bytes) -> Any:
        """Raises `InternalError` if the data was changed or was sealed with another key."""
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return msgspec.json.decode(self._cipher.decrypt(nonce, rest, None))
        except InvalidTag as error:
            raise InternalError from error
