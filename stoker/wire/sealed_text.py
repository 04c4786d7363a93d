"""Text that a client keeps for the server, sealed with a key of one response (AES-256-GCM).

A replica knows only the key of the response that it writes.
"""

import base64
import binascii
import os
import re
from typing import Literal

import msgspec

Kind = Literal["reasoning", "compaction"]

_FORM = re.compile(r"stoker1\.([A-Za-z0-9_]{1,64})\.([A-Za-z0-9_-]+)")
_NONCE_BYTES = 12


class TextSeal(msgspec.Struct, frozen=True):
    """Seals and opens the texts of one response."""

    response_id: str
    key: bytes

    def seal(self, text: str, kind: Kind) -> str:
        # A replica loads the library only if a request asks for sealed text.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(_NONCE_BYTES)
        content = text.encode("utf-8", "surrogatepass")
        sealed = nonce + AESGCM(self.key).encrypt(nonce, content, self._bound_to(kind))
        encoded = base64.urlsafe_b64encode(sealed).decode().rstrip("=")
        return f"stoker1.{self.response_id}.{encoded}"

    def open(self, sealed: str, kind: Kind) -> str | None:
        """Returns the text. None if it is damaged, of another kind or sealed with another key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        match = _FORM.fullmatch(sealed)
        if match is None:
            return None
        try:
            data = base64.urlsafe_b64decode(match[2] + "=" * (-len(match[2]) % 4))
            nonce, content = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
            text = AESGCM(self.key).decrypt(nonce, content, self._bound_to(kind))
        except (binascii.Error, InvalidTag, ValueError):
            return None
        return text.decode("utf-8", "surrogatepass")

    def _bound_to(self, kind: Kind) -> bytes:
        return f"{kind}\0{self.response_id}".encode()


def response_of(sealed: str) -> str | None:
    """Returns the id of the response that a text was sealed for. None for any other text."""
    match = _FORM.fullmatch(sealed)
    return match[1] if match else None
