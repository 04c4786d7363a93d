"""Checks an account's quota before each addition, in the same transaction."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stoker.base.config import MIB, Settings
from stoker.base.errors import CapacityError, PayloadTooLargeError, RateLimitError, StokerError
from stoker.platform.quotas import repository
from stoker.platform.quotas.limits import LIMITS, Quota
from stoker.store.blobs import is_local
from stoker.store.db import Session

_AMPLE = 10_000
"""Number of rows that exceeds the additions of all servers to an account within `_TRUSTED_S`."""
_AMPLE_BYTES = 10 << 30
"""Like `_AMPLE`, for bytes of stored responses."""
_TRUSTED_S = 10.0
_RESERVED_PART = 20
"""Divisor of the disk's size. The reserve of free space is at most this fraction of the disk."""
_GROWING = (Quota.STORAGE_BYTES, Quota.FILES)
"""Quotas with use that also grows outside these checks: a started video becomes a file."""


@dataclass
class _Room:
    """Amount that an account may add before it must be counted again. Never too large, because all
    additions pass this check.
    """

    limit: int
    left: int
    at: float


class QuotaService:
    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._defaults = {quota: limit.default(settings) for quota, limit in LIMITS.items()}
        self._data_dir = settings.data_dir
        self._is_kept_here = is_local(settings.blob_url)
        self._disk_reserve = settings.disk_reserve_mib * MIB
        self._clock = clock
        self._rooms: dict[tuple[str, Quota], _Room] = {}
        self._stores: dict[str, _Room] = {}
        self.refused: Counter[Quota] = Counter()

    async def take(
        self, session: Session, account_id: str | None, quota: Quota, amount: int = 1
    ) -> None:
        """Reserves an amount of an account's quota in this transaction. Exact under concurrent
        additions.

        Call it after locking other rows of the account, to avoid deadlocks. Does nothing if
        `account_id` is None, which stands for operators. Raises `RateLimitError`, or
        `PayloadTooLargeError` for bytes, with the numbers.
        """
        if account_id is None or amount <= 0:
            return
        account_limits = await repository.locked(session, account_id)
        limit = account_limits.get(quota, self._defaults[quota])
        if not limit or self._has_room(session, account_id, quota, limit, amount):
            return
        used = await repository.used(session, quota, account_id)
        if used + amount > limit:
            self.refused[quota] += 1
            raise exceeded(quota, used=used, asked=amount, limit=limit)
        if quota not in _GROWING:
            room = _Room(limit, limit - used - amount, self._clock())
            self._rooms[account_id, quota] = room

    async def took(self, session: Session, account_id: str, quota: Quota, amount: int) -> None:
        """Like `take`, but this transaction has already added the amount."""
        limit = (await repository.locked(session, account_id)).get(quota, self._defaults[quota])
        if not limit:
            return
        used = await repository.used(session, quota, account_id)
        if used > limit:
            self.refused[quota] += 1
            raise exceeded(quota, used=used - amount, asked=amount, limit=limit)

    async def check_storage(self, session: Session, account_id: str, amount: int) -> None:
        """Like `take` for bytes, but reserves and locks nothing: concurrent additions may exceed
        the limit. Trusts the last count for some seconds if it left ample room.
        """
        quota = Quota.STORAGE_BYTES
        limit = self.limits(await repository.own(session, account_id))[quota]
        room = self._stores.get(account_id)
        if not limit or (room and self._is_ample(room, limit, amount)):
            return
        used = await repository.used(session, quota, account_id)
        if used + amount > limit:
            self.refused[quota] += 1
            raise exceeded(quota, used=used, asked=amount, limit=limit)
        self._stores[account_id] = _Room(limit, limit - used, self._clock())

    async def left(self, session: Session, account_id: str, quota: Quota) -> int | None:
        """Returns the amount that an account may still add. None means no limit. `take` alone is
        exact.
        """
        limit = self.limits(await repository.own(session, account_id))[quota]
        if not limit:
            return None
        return max(0, limit - await repository.used(session, quota, account_id))

    def check_disk(self, more_bytes: int) -> None:
        """Raises `CapacityError` if the additional bytes would fill the disk, because a database
        that cannot write serves no requests.

        A bucket has room, and uploads to it need little of the disk.
        """
        self.check_local_disk(more_bytes if self._is_kept_here else 0)

    def check_local_disk(self, more_bytes: int) -> None:
        """Like `check_disk`, but for bytes that always go to this machine's disk, wherever blobs
        are stored.
        """
        disk = shutil.disk_usage(self._data_dir)
        reserve = min(self._disk_reserve, disk.total // _RESERVED_PART)
        if disk.free - more_bytes < reserve:
            raise CapacityError(
                f"The server's disk has {disk.free} bytes left, of which {reserve} stay "
                f"free, but this request needs {more_bytes}. Acknowledged data is safe. "
                "Continue when the operator has freed space.",
                code="insufficient_storage",
            )

    async def report(self, session: Session, account_id: str) -> dict[Quota, tuple[int, int]]:
        """Returns an account's use and limit of each quota. A limit of 0 means no limit."""
        limits = self.limits(await repository.own(session, account_id))
        return {
            quota: (await repository.used(session, quota, account_id), limit)
            for quota, limit in limits.items()
        }

    def forget(self, account_id: str) -> None:
        """Forgets a deleted account."""
        self._stores.pop(account_id, None)
        for quota in Quota:
            self._rooms.pop((account_id, quota), None)

    def limits(self, own: Mapping[str, int]) -> dict[Quota, int]:
        """Returns the server's limits, overridden by the operator's limits for an account."""
        return {quota: own.get(quota, default) for quota, default in self._defaults.items()}

    def _is_ample(self, room: _Room, limit: int, amount: int) -> bool:
        is_recent = room.limit == limit and self._clock() - room.at < _TRUSTED_S
        return is_recent and room.left - amount > _AMPLE_BYTES

    def _has_room(
        self, session: Session, account_id: str, quota: Quota, limit: int, amount: int
    ) -> bool:
        """Returns True if the last count leaves enough room. Avoids a new count, which reads all of
        the account's rows.
        """
        room = self._rooms.get((account_id, quota))
        if room is None or room.limit != limit or room.left < amount:
            return False
        is_alone = session.get_bind().dialect.name == "sqlite"
        is_ample = room.left > _AMPLE and self._clock() - room.at < _TRUSTED_S
        if is_alone or is_ample:
            room.left -= amount
            return True
        return False


def exceeded(quota: Quota, *, used: int, asked: int, limit: int) -> StokerError:
    words = LIMITS[quota]
    error = PayloadTooLargeError if quota is Quota.STORAGE_BYTES else RateLimitError
    return error(
        f"The account may have {limit} {words.counted} (quota '{quota}'); it has {used} and asks "
        f"for {asked} more. {words.remedy}, or ask an operator for a higher limit.",
        code="quota_exceeded",
        is_lasting=True,
    )
