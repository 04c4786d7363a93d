"""Checks API keys, from memory if they were checked recently, otherwise from the database."""

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from stoker.base.errors import InvalidAPIKeyError
from stoker.platform.web.principal import Principal, Scope
from stoker.store import db
from stoker.store.db import Database
from stoker.tenancy.keys import repository
from stoker.tenancy.keys.repository import KeyRow

log = logging.getLogger(__name__)

PREFIX = "sk"
REVOKED_KEPT = timedelta(days=30)
"""Time for which the database keeps the row of a revoked key."""
_CACHE_LIMIT = 10_000
_SCOPES = frozenset(scope.value for scope in Scope)


@dataclass(frozen=True)
class _CheckedKey:
    principal: Principal
    digests: tuple[tuple[bytes, datetime | None], ...]
    expires_at: datetime | None
    checked: float


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """Returns the SHA-256 of the secret part. The secret has 256 random bits, so a slow hash would
    add nothing.
    """
    return hashlib.sha256(secret.encode()).digest()


class Keyring:
    """Cache of checked keys. Each key is trusted for `ttl_s` seconds.

    A revocation in this process drops the key at once (`forget`). A revocation in another process
    takes effect when the entry has expired.
    """

    def __init__(
        self, database: Database, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: dict[str, _CheckedKey] = {}
        self._used: dict[str, datetime] = {}
        self._looking: dict[str, asyncio.Task[_CheckedKey | None]] = {}
        """Running lookups by public id. Concurrent requests with the same key share a lookup."""

    async def check(self, token: str) -> Principal:
        """Returns the principal of a key. Raises `InvalidAPIKeyError` in the same way for any
        cause.
        """
        return await self.check_digest(*parsed(token))

    async def check_digest(self, public_id: str, presented: bytes) -> Principal:
        """Returns the principal of a key, given its public id and the digest of its secret. Raises
        `InvalidAPIKeyError` in the same way for any cause.
        """
        now = db.now()
        entry = self._entries.get(public_id)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = None
        # Every failure costs one lookup and the same number of comparisons, whether or not the key
        # exists. Its duration does not reveal the cause.
        if not _admits(entry or _NOBODY, presented, now) or entry is None:
            entry = await self._looked_up(public_id)
            now = db.now()
            if not _admits(entry or _NOBODY, presented, now) or entry is None:
                raise InvalidAPIKeyError
        self._used[entry.principal.key_id] = now
        return entry.principal

    async def principal(self, public_id: str) -> Principal:
        """Returns the principal of the key that submitted some work. The key may have been revoked
        since.

        Raises `InvalidAPIKeyError` if the key was revoked or has expired.
        """
        entry = self._entries.get(public_id)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = await self._looked_up(public_id)
        if entry is None or not _is_alive(entry, db.now()):
            raise InvalidAPIKeyError
        return entry.principal

    async def admitted(self, public_id: str, secret_sha256: bytes) -> Principal:
        """Returns the principal of a key with a previously checked secret, identified by its
        digest.

        Raises `InvalidAPIKeyError` if the key or that secret is no longer valid.
        """
        entry = self._entries.get(public_id)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = await self._looked_up(public_id)
        now = db.now()
        if entry is None or not _admits(entry, secret_sha256, now):
            raise InvalidAPIKeyError
        self._used[entry.principal.key_id] = now
        return entry.principal

    def forget(self, public_id: str) -> None:
        self._entries.pop(public_id, None)
        # A running lookup may return the old state.
        self._looking.pop(public_id, None)

    async def flush_last_used(self) -> None:
        """Stores when keys were last used. Called by the janitor, off the hot path."""
        used, self._used = self._used, {}
        if used:
            async with self._database.transaction() as session:
                await repository.touch(session, used)

    async def forget_revoked(self, now: datetime) -> None:
        """Deletes the rows of keys that were revoked long ago. Called by the janitor."""
        async with self._database.transaction() as session:
            await repository.forget_revoked(session, now - REVOKED_KEPT)

    async def _looked_up(self, public_id: str) -> _CheckedKey | None:
        task = self._looking.get(public_id)
        if task is None:
            task = self._looking[public_id] = asyncio.create_task(self._look_up(public_id))
        # A client that disconnects must not cancel the lookup for others.
        return await asyncio.shield(task)

    async def _look_up(self, public_id: str) -> _CheckedKey | None:
        try:
            async with self._database.reading() as session:
                key = await repository.by_public_id(session, public_id)
        finally:
            # If the key was revoked in the meantime, the result is not cached.
            current = self._looking.get(public_id) is asyncio.current_task()
            if current:
                del self._looking[public_id]
        if key is not None and key.scope not in _SCOPES:
            log.warning("key has a scope of a later release: refused", extra={"key": public_id})
            key = None
        entry = _entry(key or _NO_KEY, self._clock())
        if key is None:
            self._entries.pop(public_id, None)
            return None
        if current:
            if len(self._entries) >= _CACHE_LIMIT:
                self._entries.clear()
            self._entries[public_id] = entry
        return entry


def parsed(token: str) -> tuple[str, bytes]:
    """Returns a key's public id and the digest of its secret. If the token is not a key, the id is
    empty and the digest is that of an empty secret.
    """
    public_id, secret = _split(token)
    return public_id, digest(secret)


def _split(token: str) -> tuple[str, str]:
    parts = token.split("-", 2) if token.isascii() and len(token) <= 256 else []
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == PREFIX else ("", "")


def _entry(key: KeyRow, checked: float) -> _CheckedKey:
    digests: list[tuple[bytes, datetime | None]] = [(key.secret_sha256, None)]
    if key.previous_sha256:
        digests.append((key.previous_sha256, key.previous_expires_at))
    return _CheckedKey(
        principal=Principal(
            key_id=key.id,
            public_id=key.public_id,
            scope=Scope(key.scope),
            account_id=key.account_id,
            deployment_ids=frozenset(key.deployment_ids),
            limits=_limits(key),
            may_prioritize=key.may_prioritize,
        ),
        digests=tuple(digests),
        expires_at=key.expires_at,
        checked=checked,
    )


def _limits(key: KeyRow) -> dict[str, int]:
    limits = {"requests": key.requests_per_minute, "tokens": key.tokens_per_minute}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _is_alive(entry: _CheckedKey, now: datetime) -> bool:
    return entry.expires_at is None or now < entry.expires_at


def _admits(entry: _CheckedKey, presented: bytes, now: datetime) -> bool:
    matches = [
        hmac.compare_digest(known, presented) and (until is None or now < until)
        for known, until in entry.digests
    ]
    return any(matches) and _is_alive(entry, now)


_NO_KEY = KeyRow(
    id="",
    public_id="",
    # Digest of a secret that was never issued.
    secret_sha256=digest(new_secret()),
    previous_sha256=None,
    previous_expires_at=None,
    scope=Scope.DEPLOYMENT,
    account_id=None,
    deployment_ids=[],
    expires_at=None,
    requests_per_minute=None,
    tokens_per_minute=None,
    may_prioritize=False,
)
_NOBODY = _entry(_NO_KEY, 0.0)
"""Entry that a secret is compared with if the key does not exist."""
