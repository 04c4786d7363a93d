"""The server's own secret. It is given by a setting, or made at the first start: a file in the data
folder, or, where several servers have one database, a row of it.
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
"""Its name in the data folder, and that of its row."""
CHECK = "server-secret-check"
"""The row by which a secret that is given is known again, and cannot be found."""
_LOCK = 0x73746F6B02
"""PostgreSQL's advisory lock, for this alone."""
_SET = "STOKER_SECRET or STOKER_SECRET_FILE"


class OtherSecretError(Exception):
    """What this server is given, or has in its file, is not what its database was sealed with."""


class ServerSecret:
    """Encrypts what must be kept and not be read by everybody, and signs links."""

    _fernet: Fernet
    _signing: bytes

    def __init__(self, data_dir: Path, *, given: bytes | None = None, waits: bool = False) -> None:
        """
        Args:
            given: a Fernet key, which then is written nowhere.
            waits: for what the database says: nothing can be done with it before `agree`.
        """
        self._path = data_dir / FILE
        self._given = given
        if not waits:
            self._use(given or _load_or_create(self._path))

    def _use(self, key: bytes) -> None:
        self._fernet = Fernet(key)
        self._signing = _derived(key, b"stoker signed links")

    async def agree(self, database: Database) -> None:
        """Have the secret that all servers of a database have. One that is given or lies in a file
        is theirs where they have none yet; else the first of them makes one.

        Where it is given, nothing of it stays in the database but what tells it from others.

        Raises `OtherSecretError` where they have another one, or are given one and this is not.
        """
        own = self._own()
        async with database.transaction() as session:
            if not database.is_sqlite:
                await lock_secrets(session)
            check, row = await self._theirs(session, own)
            known = own or row
            if self._given:
                await _keep_check_alone(session, self._given, is_kept=check is not None)
            elif row is None and check is None and not database.is_sqlite:
                known = known or Fernet.generate_key()
                await keep_shared(session, FILE, known)
        self._use(known or _load_or_create(self._path))

    async def look(self, session: Session) -> bool:
        """Have the secret that `agree` would find, and write nothing.

        Returns whether there is one: nobody may have made it yet. Raises as `agree` does.
        """
        own = self._own()
        _, row = await self._theirs(session, own)
        known = own or row
        if known is not None:
            self._use(known)
        return known is not None

    async def _theirs(
        self, session: Session, own: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """What a database has of its servers' secret: by what it is known again, and itself."""
        check, row = await shared(session, CHECK), await shared(session, FILE)
        if check is not None and (own is None or _check(own) != check):
            raise OtherSecretError(self._why_not_given(own))
        if own is not None and row not in (None, own):
            raise OtherSecretError(self._why_not_theirs())
        return check, row

    def _own(self) -> bytes | None:
        """What this server brings."""
        file = self._path.read_bytes().strip() if self._path.exists() else None
        if self._given and file not in (None, self._given):
            raise OtherSecretError(
                f"{self._path} is another secret than the one that is set ({_SET}), which cannot "
                "open what was sealed with it: set the one of the file, or move the file away if "
                "nothing is lost with it."
            )
        return self._given or file

    def _why_not_given(self, own: bytes | None) -> str:
        if own is None:
            return f"The servers of this database are given their secret: set it here, by {_SET}."
        return (
            f"{self._source} is another secret than the one that the servers of this database are "
            f"given, which sealed what is in it: set theirs here, by {_SET}."
        )

    def _why_not_theirs(self) -> str:
        theirs = f"the row '{FILE}' of its table {SharedSecret.__tablename__}"
        what_to_do = (
            f"set theirs, {theirs}, or none, to go on with it"
            if self._given
            else "move the file away to go on with theirs"
        )
        return (
            f"{self._source} is another secret than the one that the servers of this database "
            f"have, and cannot open what they have sealed: {what_to_do}."
        )

    @property
    def _source(self) -> str:
        return "What is set" if self._given else str(self._path)

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


async def _keep_check_alone(session: Session, secret: bytes, *, is_kept: bool) -> None:
    if not is_kept:
        session.add(SharedSecret(name=CHECK, value=_check(secret)))
    await session.execute(delete(SharedSecret).where(SharedSecret.name == FILE))


def _check(secret: bytes) -> bytes:
    return _derived(secret, b"stoker secret check")


def _derived(secret: bytes, use: bytes) -> bytes:
    """A key for one use alone: HKDF's expand step (RFC 5869) for one block."""
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
