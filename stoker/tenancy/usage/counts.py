"""Counts of calls: requests, tokens, images and seconds, as reported by the replicas."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from stoker.base.fairness import CURRENT_CALLER, Tier
from stoker.base.ids import Prefix, new_id
from stoker.runtime.listening import CANCELLED, OK, RuntimeListener, Served
from stoker.runtime.metering import HOUR_MS

WORKED_ON = ("input_tokens", "output_tokens", "images", "audio_ms", "video_ms")
NAMES = ("requests", "errors", "mirrored", *WORKED_ON)
_MOST = 10**9
"""Maximum count of one call. Replicas are not trusted with more."""

COLLECTED: ContextVar[list[Served] | None] = ContextVar("collected", default=None)
"""List that receives the calls of the current task instead of `Counts`. The task's own transaction
then counts them.
"""


def amounts(call: Served) -> dict[str, int]:
    """Returns the counts of one call by name."""
    counted: dict[str, int] = dict.fromkeys(NAMES, 0)
    counted["requests"] = 1
    counted["errors"] = int(call.outcome not in (OK, CANCELLED))
    counted["mirrored"] = int(call.is_copy)
    for name, count in call.counts.items():
        if name in WORKED_ON:
            counted[name] = max(0, min(_MOST, count))
    return counted


@dataclass(frozen=True, kw_only=True)
class Counted:
    """This server's counts so far for a key, a version, a tier and an hour.

    Counts only grow. A repeated report with the same id replaces the earlier one. If the outcome of
    a commit is unknown, nothing is counted twice.
    """

    id: str
    account_id: str
    deployment_id: str
    version_id: str
    """Id of the version. Empty if the deployment has no separate version."""
    key: str
    """Public id of the key. Empty if the server itself made the calls."""
    tier: Tier
    model: str
    hour: int
    values: Mapping[str, int]


@dataclass(eq=False)
class _CountRow:
    account_id: str
    model: str
    id: str = field(default_factory=lambda: new_id(Prefix.USAGE))
    values: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    reported: Mapping[str, int] | None = None


class Counts(RuntimeListener):
    def __init__(self, wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._wall_ms = wall_ms
        self._rows: dict[tuple[str, str, str, Tier, int], _CountRow] = {}

    def served(self, call: Served) -> None:
        # The listener runs in the context of the task that made the call.
        collected = COLLECTED.get()
        if collected is not None and not call.is_copy:
            collected.append(call)
            return
        caller, hour = CURRENT_CALLER.get(), self._wall_ms() // HOUR_MS
        of = (call.deployment_id, call.version_id, caller.key, caller.tier, hour)
        if of not in self._rows:
            self._rows[of] = _CountRow(call.account_id, call.model)
        values = self._rows[of].values
        for name, count in amounts(call).items():
            values[name] += count

    def take(self) -> list[Counted]:
        """Returns all counts that have changed since they were acknowledged."""
        return [
            Counted(
                id=row.id,
                account_id=row.account_id,
                deployment_id=deployment_id,
                version_id=version_id,
                key=key,
                tier=tier,
                model=row.model,
                hour=hour,
                values=dict(row.values),
            )
            for (deployment_id, version_id, key, tier, hour), row in self._rows.items()
            if row.reported != row.values
        ]

    def acknowledge(self, reported: Sequence[Counted]) -> None:
        """Marks counts as stored. Forgets stored counts of other hours than the current one."""
        for count in reported:
            of = (count.deployment_id, count.version_id, count.key, count.tier, count.hour)
            if row := self._rows.get(of):
                row.reported = count.values
        this_hour = self._wall_ms() // HOUR_MS
        for of, row in list(self._rows.items()):
            if of[-1] != this_hour and row.reported == row.values:
                # If the clock is set back, a row with another id continues the hour.
                del self._rows[of]
