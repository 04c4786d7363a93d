"""Erasing by forgetting a key ("crypto-shredding"; NIST SP 800-88, 2.6 "cryptographic erase").

What a database deletes stays in its free pages, its log, its replicas and its backups for a while.
So nothing that is said in a run is ever written in the clear: it is encrypted with a key that only
the run's row has, and that is itself sealed with the server's secret.
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
    """A run's key, as its row keeps it."""
    return secret.seal(os.urandom(_KEY_BYTES))


class Sealer:
    """Seals values that JSON can say, with AES-256-GCM (NIST SP 800-38D) and random nonces."""

    def __init__(self, secret: ServerSecret, key: bytes) -> None:
        """Raises `InternalError` for a key that another server's secret has sealed."""
        opened = secret.unseal(key)
        if opened is None:
            raise InternalError("This run's content was encrypted by a server with another secret.")
        self._cipher = AESGCM(opened)

    def seal(self, value: Any) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, _encode(value), None)

    def unseal(self, sealed: bytes) -> Any:
        """Raises `InternalError` for what was changed since, or sealed with another key."""
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return msgspec.json.decode(self._cipher.decrypt(nonce, rest, None))
        except InvalidTag as error:
            raise InternalError from error
