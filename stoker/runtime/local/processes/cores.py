"""Shares the machine's cores between accounts. Accounts that exceeded their share for long get a
lower priority.

A single account has all cores. Among several, an account that computes on more than its share gets
a lower priority. This applies to all of its replicas until it is below the share again. No core
stays idle for that, and calls of other accounts do not wait for it.
"""

import math
import time
from collections.abc import Callable

from stoker.runtime.local.memory.replica_table import ReplicaTable
from stoker.runtime.local.processes.machine import computed
from stoker.runtime.local.processes.processor_time import TICKS
from stoker.sandbox.priority import set_nice

NICE = 15
"""Lowered nice value. With 15, the kernel's weight is a twenty-eighth of the weight with 0."""
MEMORY_S = 5.0
"""Time constant of the usage average in seconds: old usage decays to a third in this time."""
ABOVE, BELOW = 1.1, 0.9
"""Multiples of the fair share. Above `ABOVE` an account is lowered, below `BELOW` it is raised
again.
"""
LEAST_CORES = 3
"""Minimum number of cores for preparation processes by default."""


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
            pid: returns the process of a replica. None means no process.
            ticks: returns the computing time of a process in the kernel's ticks.
            give_way: sets the nice value of a process and its session. Returns True if that
                succeeded.
        """
        self._residents = residents
        self._pid = pid
        self._cores = cores
        self._ticks = ticks
        self._give_way = give_way
        self._clock = clock
        self._looked_at = clock()
        self._known: dict[str, tuple[int, int]] = {}
        """Maps a replica to its last known ticks and its nice value."""
        self._used: dict[str, float] = {}
        """Maps an account to the number of cores that it used recently."""
        self._lowered: set[str] = set()

    def look(self) -> None:
        """Measures all replicas, and lowers or raises the priority of accounts with a changed
        share.
        """
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        if elapsed <= 0:
            return
        computed_s = self._computed_s()
        self._known = {
            known_id: state
            for known_id, state in self._known.items()
            if known_id in self._residents
        }
        decay = math.exp(-elapsed / MEMORY_S)
        self._used = {
            account: decay * self._used.get(account, 0) + (1 - decay) * seconds / elapsed
            for account, seconds in computed_s.items()
        }
        self._judge()
        for replica_id, resident in self._residents.items():
            self._set(replica_id, NICE if resident.spec.account_id in self._lowered else 0)

    def _computed_s(self) -> dict[str, float]:
        """Returns the core seconds of each account since the last call."""
        seconds_by_account: dict[str, float] = {}
        for replica_id, resident in self._residents.items():
            account, pid = resident.spec.account_id, self._pid(replica_id)
            seconds_by_account.setdefault(account, 0)
            if pid is None:
                continue
            ticks = sum(map(self._ticks, (pid, *resident.descendants)))
            before, nice = self._known.get(replica_id, (ticks, 0))
            self._known[replica_id] = (ticks, nice)
            seconds_by_account[account] += max(0, ticks - before) / TICKS
        return seconds_by_account

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


def most_preparation_processes(setting: int | None, cores: int, *, is_on_device: bool) -> int:
    """Returns the machine's maximum number of preparation processes, for a new replica.

    Args:
        setting: value of `STOKER_PREPARATION_PROCESSES`.
        is_on_device: True if the replica runs on a GPU. Other replicas need all cores for their
            passes.
    """
    if setting is not None:
        return setting
    return cores - 1 if is_on_device and cores >= LEAST_CORES else 0
