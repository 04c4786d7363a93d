"""Shares the machine's cores out between accounts: who has long used more than a share of them
gives way to the others.

An account alone has all cores. With others, whoever computes on more than its share is given a
lower priority, with all of its replicas, until it is below again: no core is idle for that, and a
call of another account's does not wait for it.
"""

import math
import os
import time
from collections.abc import Callable

from stoker.runtime.local.memory.replica_table import ReplicaTable
from stoker.runtime.local.processes.machine import computed
from stoker.sandbox.priority import set_nice

NICE = 15
"""Of a nice value of 15, the kernel's weight is a twenty-eighth of what it is of 0."""
MEMORY_S = 5.0
"""How long what was used counts: its weight falls to a third in that time."""
ABOVE, BELOW = 1.1, 0.9
"""Shares above which an account is lowered, and below which that ends."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Cores:
    def __init__(
        self,
        residents: ReplicaTable,
        pid: Callable[[str], int | None],
        *,
        cores: int,
        ticks: Callable[[int], int] = computed,
        give_way: Callable[[int, int], bool] = set_nice,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            pid: the process of a replica; None: there is none.
            ticks: how long a process has computed, in the kernel's ticks.
            give_way: set the nice value of a process and its session; whether that is done.
        """
        self._residents = residents
        self._pid = pid
        self._cores = cores
        self._ticks = ticks
        self._give_way = give_way
        self._clock = clock
        self._looked_at = clock()
        self._known: dict[str, tuple[int, int]] = {}
        """Replica → ticks that it had computed, and its nice value."""
        self._used: dict[str, float] = {}
        """Account → cores that it has used lately."""
        self._lowered: set[str] = set()

    def look(self) -> None:
        """Measure all replicas, and lower or raise the accounts whose share that changes."""
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        if elapsed <= 0:
            return
        computed_s = self._computed_s()
        self._known = {one: seen for one, seen in self._known.items() if one in self._residents}
        kept = math.exp(-elapsed / MEMORY_S)
        self._used = {
            account: kept * self._used.get(account, 0) + (1 - kept) * seconds / elapsed
            for account, seconds in computed_s.items()
        }
        self._judge()
        for replica_id, resident in self._residents.items():
            self._set(replica_id, NICE if resident.spec.account_id in self._lowered else 0)

    def _computed_s(self) -> dict[str, float]:
        """Account → seconds of a core since the last look."""
        found: dict[str, float] = {}
        for replica_id, resident in self._residents.items():
            account, pid = resident.spec.account_id, self._pid(replica_id)
            found.setdefault(account, 0)
            if pid is None:
                continue
            ticks = self._ticks(pid)
            before, nice = self._known.get(replica_id, (ticks, 0))
            self._known[replica_id] = (ticks, nice)
            found[account] += max(0, ticks - before) / _TICKS
        return found

    def _judge(self) -> None:
        self._lowered &= self._used.keys()
        if len(self._used) < 2:
            self._lowered.clear()
            return
        share = self._cores / len(self._used)
        for account, used in self._used.items():
            if used > ABOVE * share:
                self._lowered.add(account)
            elif used < BELOW * share:
                self._lowered.discard(account)

    def _set(self, replica_id: str, nice: int) -> None:
        if replica_id not in self._known or self._known[replica_id][1] == nice:
            return
        pid = self._pid(replica_id)
        if pid is not None and self._give_way(pid, nice):
            self._known[replica_id] = (self._known[replica_id][0], nice)
