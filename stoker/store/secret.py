"""The server's own secret. A setting provides it, or the first start creates it: as a file in the
data folder, or as a database row if several servers share a database.
"""

import hashlib
import hmac
import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from sqlalchemy import delete, text
from sqlalchemy.dialects.postgresql import insert

from stoker.store.db import Database, Session
from stoker.store.tables.servers import SharedSecret

FILE = "server-secret"
"""Name of the file in the data folder and of the database row."""
CHECK = "server-secret-check"
"""Name of the row that verifies a configured secret without revealing it."""
_LOCK = 0x73746F6B02
"""PostgreSQL advisory lock for the secret."""
_SET = "STOKER_SECRET or STOKER_SECRET_FILE"


class OtherSecretError(Exception):
    """Raised if the secret of this server, from a setting or a file, differs from the one that
    sealed its database.
    """


class ServerSecret:
    """Encrypts stored data that must stay confidential, and signs links."""

    _fernet: Fernet
    _signing: bytes

    def __init__(self, data_dir: Path, *, given: bytes | None = None, waits: bool = False) -> None:
        """
        Args:
            given: a Fernet key from the settings. It is never written to disk.
            waits: True to use the database's secret. The object cannot be used before `agree`.
        """
        self._path = data_dir / FILE
        self._given = given
        if not waits:
            self._use(given or _load_or_create(self._path))

    def _use(self, key: bytes) -> None:
        self._fernet = Fernet(key)
        self._signing = _derived(key, b"stoker signed links")
        self._deriving = _derived(key, b"stoker derived keys")

    async def agree(self, database: Database) -> None:
        """Adopts the secret that all servers of a database share. If they have none yet, the
        configured secret or the one in the file becomes theirs. Without either, the first server
        creates one.

        For a configured secret, the database keeps only a check value.

        Raises `OtherSecretError` if the servers share a different secret, or use a configured one
        that this server does not have.
        """
        own_secret = self._own()
        async with database.transaction() as session:
            if not database.is_sqlite:
                await lock_secrets(session)
            check, row = await self._theirs(session, own_secret)
            known = own_secret or row
            if self._given:
                await _keep_check_alone(session, self._given, is_kept=check is not None)
            elif row is None and check is None and not database.is_sqlite:
                known = known or Fernet.generate_key()
                await keep_shared(session, FILE, known)
        self._use(known or _load_or_create(self._path))

    async def look(self, session: Session) -> bool:
        """Adopts the secret that `agree` would find, without writing anything.

        Returns False if no secret exists yet. Raises the same errors as `agree`.
        """
        own_secret = self._own()
        _, row = await self._theirs(session, own_secret)
        known = own_secret or row
        if known is not None:
            self._use(known)
        return known is not None

    async def _theirs(
        self, session: Session, own: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Returns a database's check value and secret, each None if missing."""
        check, row = await shared(session, CHECK), await shared(session, FILE)
        if check is not None and (own is None or _check(own) != check):
            raise OtherSecretError(self._why_not_given(own))
        if own is not None and row not in (None, own):
            raise OtherSecretError(self._why_not_theirs())
        return check, row

    def _own(self) -> bytes | None:
        """Returns this server's secret from its settings or its file. None if it has neither."""
        file = self._path.read_bytes().strip() if self._path.exists() else None
        if self._given and file not in (None, self._given):
            raise OtherSecretError(
                f"{self._path} differs from the configured secret ({_SET}), which cannot decrypt "
                "data that was encrypted with the file. Set the secret of the file, or move the "
                "file away if no such data is needed."
            )
        return self._given or file

    def _why_not_given(self, own: bytes | None) -> str:
        if own is None:
            return f"The servers of this database use a configured secret. Set it here in {_SET}."
        return (
            f"{self._source} differs from the configured secret of this database's servers, "
            f"which encrypted its data. Set their secret here in {_SET}."
        )

    def _why_not_theirs(self) -> str:
        theirs = f"the row '{FILE}' of its table {SharedSecret.__tablename__}"
        what_to_do = (
            f"set theirs, {theirs}, or unset the secret to use theirs"
            if self._given
            else "move the file away to use theirs"
        )
        return (
            f"{self._source} differs from the secret of this database's servers and cannot "
            f"decrypt their data: {what_to_do}."
        )

    @property
    def _source(self) -> str:
        return "What is set" if self._given else str(self._path)

    def sign(self, text: str) -> str:
        """Returns the HMAC-SHA256 of a text, 64 hexadecimal digits."""
        return hmac.new(self._signing, text.encode(), hashlib.sha256).hexdigest()

    def signed(self, text: str, signature: str) -> bool:
        """Returns True if a signature, which may be any string, matches the text."""
        return hmac.compare_digest(self.sign(text).encode(), signature.encode())

    def derive(self, purpose: str) -> bytes:
        """Returns a key of 32 bytes for a purpose."""
        return hmac.digest(self._deriving, purpose.encode(), hashlib.sha256)

    def seal(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def unseal(self, token: bytes) -> bytes | None:
        """Returns the data. None if it was sealed with another secret."""
        try:
            return self._fernet.decrypt(token)
        except InvalidToken:
            return None


async def lock_secrets(session: Session) -> None:
    """Waits for other servers that create a secret in PostgreSQL. Holds the lock until the
    transaction's end.
    """
    await session.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))


async def shared(session: Session, name: str) -> bytes | None:
    row = await session.get(SharedSecret, name)
    return row.value if row else None


async def keep_shared(session: Session, name: str, value: bytes) -> None:
    """Stores a value for all servers and replaces the old one."""
    row = insert(SharedSecret).values(name=name, value=value)
    await session.execute(
        row.on_conflict_do_update(index_elements=[SharedSecret.name], set_={"value": value})
    )


async def _keep_check_alone(session: Session, secret: bytes, *, is_kept: bool) -> None:
    if not is_kept:
        session.add(SharedSecret(name=CHECK, value=_check(secret)))
    await session.execute(delete(SharedSecret).where(SharedSecret.name == FILE))


def _check(secret: bytes) -> bytes:
    return _derived(secret, b"stoker secret check")


def _derived(secret: bytes, use: bytes) -> bytes:
    """Derives a key for one purpose: HKDF's expand step (RFC 5869) for one block."""
    return hmac.digest(secret, use + b"\x01", hashlib.sha256)


def _load_or_create(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes().strip()
    key = Fernet.generate_key()
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
