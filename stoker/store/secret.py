"""The server's own secret, made at the first start: a file in the data folder, or, where several
servers have one database, a row of it.
"""

import hashlib
import hmac
import logging
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert

from stoker.store.db import Database, Session
from stoker.store.tables.servers import SharedSecret

log = logging.getLogger(__name__)

FILE = "server-secret"
_LOCK = 0x73746F6B02
"""PostgreSQL's advisory lock, for this alone."""


class OtherSecretError(Exception):
    """This server's file has another secret than the servers of its database."""


class ServerSecret:
    """Encrypts what must be kept and not be read by everybody, and signs links."""

    _fernet: Fernet
    _signing: bytes

    def __init__(self, data_dir: Path, *, is_shared: bool = False) -> None:
        """
        Args:
            is_shared: it is the database's: nothing can be done with it before `share`.
        """
        self._path = data_dir / FILE
        if not is_shared:
            self._use(_load_or_create(self._path))

    def _use(self, key: bytes) -> None:
        self._fernet = Fernet(key)
        # A key of its own for each use: HKDF's expand step (RFC 5869) for one block.
        self._signing = hmac.digest(key, b"stoker signed links\x01", hashlib.sha256)

    async def share(self, database: Database) -> None:
        """Have the secret that all servers of a database have, made by the first of them; a file
        that is there is the one, where the database has none yet.

        Raises `OtherSecretError` where the file is another one.
        """
        own = self._path.read_bytes().strip() if self._path.exists() else None
        async with database.transaction() as session:
            await lock_secrets(session)
            known = await shared(session, FILE)
            if known is None:
                known = own or Fernet.generate_key()
                await keep_shared(session, FILE, known)
        if own is not None and own != known:
            raise OtherSecretError(
                f"{self._path} is another secret than the one that the servers of this database "
                "have. What was sealed with it cannot be read by them: move the file away to go on "
                "with theirs."
            )
        self._use(known)

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


async def lock_secrets(session: Session) -> None:
    """Wait for whoever makes a secret of PostgreSQL's, until the transaction's end."""
    await session.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))


async def shared(session: Session, name: str) -> bytes | None:
    found = await session.get(SharedSecret, name)
    return found.value if found else None


async def keep_shared(session: Session, name: str, value: bytes) -> None:
    """Have all servers get this, in the place of what there was."""
    row = insert(SharedSecret).values(name=name, value=value)
    await session.execute(
        row.on_conflict_do_update(index_elements=[SharedSecret.name], set_={"value": value})
    )


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
