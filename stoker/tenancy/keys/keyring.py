"""Checks API keys: from memory while fresh, from the database otherwise."""

import asyncio
import hashlib
import hmac
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

PREFIX = "sk"
REVOKED_KEPT = timedelta(days=30)
"""How long the operator's database still tells of a key that was revoked."""
_CACHE_LIMIT = 10_000


@dataclass(frozen=True)
class _Entry:
    principal: Principal
    digests: tuple[tuple[bytes, datetime | None], ...]
    expires_at: datetime | None
    checked: float


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def digest(secret: str) -> bytes:
    """SHA-256 of the secret part. It has 256 random bits: a slow hash would add nothing."""
    return hashlib.sha256(secret.encode()).digest()


class Keyring:
    """A cache of checked keys, each trusted for `ttl_s` seconds.

    A revocation made in this process drops the key at once (`forget`); one made in another takes
    effect when the entry has aged.
    """

    def __init__(
        self, database: Database, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._used: dict[str, datetime] = {}
        self._looking: dict[str, asyncio.Task[_Entry | None]] = {}
        """Look-ups under way: requests that come together with a key share one."""

    async def check(self, token: str) -> Principal:
        """The principal of a key. Raises `InvalidAPIKeyError`, in the same way for any cause."""
        public_id, secret = _split(token)
        presented = digest(secret)
        entry = self._entries.get(public_id)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = None
        # Every failure costs one look-up, and compares as often, whoever is or is not found: its
        # time tells nothing about the cause.
        if not _admits(entry or _NOBODY, presented) or entry is None:
            entry = await self._looked_up(public_id)
            if not _admits(entry or _NOBODY, presented) or entry is None:
                raise InvalidAPIKeyError
        self._used[entry.principal.key_id] = db.now()
        return entry.principal

    async def principal(self, public_id: str) -> Principal:
        """Of a key that work was given with: it may have been revoked since.

        Raises `InvalidAPIKeyError` where it has been, or has expired.
        """
        entry = self._entries.get(public_id)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = await self._looked_up(public_id)
        if entry is None or not _is_alive(entry):
            raise InvalidAPIKeyError
        return entry.principal

    async def admitted(self, public_id: str, secret_sha256: bytes) -> Principal:
        """Of a key whose secret was checked before, and is known by its digest since.

        Raises `InvalidAPIKeyError` where the key, or that secret of it, has ended.
        """
        entry = self._entries.get(public_id)
        if entry is None or self._clock() - entry.checked >= self._ttl_s:
            entry = await self._looked_up(public_id)
        if entry is None or not _admits(entry, secret_sha256):
            raise InvalidAPIKeyError
        self._used[entry.principal.key_id] = db.now()
        return entry.principal

    def forget(self, public_id: str) -> None:
        self._entries.pop(public_id, None)
        # What is being read may be what was there before.
        self._looking.pop(public_id, None)

    async def flush_last_used(self) -> None:
        """Write down when keys were last used. Called by the janitor, off the hot path."""
        used, self._used = self._used, {}
        if used:
            async with self._database.transaction() as session:
                await repository.touch(session, used)

    async def forget_revoked(self, now: datetime) -> None:
        """Drop the rows of keys that were revoked long ago. Called by the janitor."""
        async with self._database.transaction() as session:
            await repository.forget_revoked(session, now - REVOKED_KEPT)

    async def _looked_up(self, public_id: str) -> _Entry | None:
        task = self._looking.get(public_id)
        if task is None:
            task = self._looking[public_id] = asyncio.create_task(self._look_up(public_id))
        # One client that goes away must not take it from the others.
        return await asyncio.shield(task)

    async def _look_up(self, public_id: str) -> _Entry | None:
        try:
            async with self._database.reading() as session:
                key = await repository.by_public_id(session, public_id)
        finally:
            # Where it was revoked meanwhile, what was read is not kept.
            current = self._looking.get(public_id) is asyncio.current_task()
            if current:
                del self._looking[public_id]
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
    """A key's public id and the digest of its secret; of nothing, where it is no key."""
    public_id, secret = _split(token)
    return public_id, digest(secret)


def _split(token: str) -> tuple[str, str]:
    parts = token.split("-", 2) if token.isascii() and len(token) <= 256 else []
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == PREFIX else ("", "")


def _entry(key: KeyRow, checked: float) -> _Entry:
    digests: list[tuple[bytes, datetime | None]] = [(key.secret_sha256, None)]
    if key.previous_sha256:
        digests.append((key.previous_sha256, key.previous_expires_at))
    return _Entry(
        principal=Principal(
            key_id=key.id,
            public_id=key.public_id,
            scope=Scope(key.scope),
            account_id=key.account_id,
            deployment_ids=frozenset(key.deployment_ids),
            limits=_limits(key),
        ),
        digests=tuple(digests),
        expires_at=key.expires_at,
        checked=checked,
    )


def _limits(key: KeyRow) -> dict[str, int]:
    given = {"requests": key.requests_per_minute, "tokens": key.tokens_per_minute}
    return {what: limit for what, limit in given.items() if limit is not None}


def _is_alive(entry: _Entry) -> bool:
    return entry.expires_at is None or db.now() < entry.expires_at


def _admits(entry: _Entry, presented: bytes) -> bool:
    moment = db.now()
    matches = [
        hmac.compare_digest(known, presented) and (until is None or moment < until)
        for known, until in entry.digests
    ]
    return any(matches) and _is_alive(entry)


_NO_KEY = KeyRow(
    id="",
    public_id="",
    # Of a secret that nobody was told.
    secret_sha256=digest(new_secret()),
    previous_sha256=None,
    previous_expires_at=None,
    scope=Scope.DEPLOYMENT,
    account_id=None,
    deployment_ids=[],
    expires_at=None,
    requests_per_minute=None,
    tokens_per_minute=None,
)
_NOBODY = _entry(_NO_KEY, 0.0)
"""What a secret is compared with where there is no key."""
