"""Replicas on few cores compute in turn. None waits for a process that has ended."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stoker.base.media_limits import MediaLimits
from stoker.replica.host import Locks
from stoker.replica.passes import FIRST_S, MOST_S, PATIENCE, Passes
from stoker.replica.shared_lock import SharedLock
from stoker.wire.protocol import Cell, ReplicaSpec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no such locks")

LONG_S = 60.0


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[tuple[int, Callable[[], None]]]:
    """Forks a process that works and then waits. Yields its id and a function that waits until the
    work is done.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(write, b".")
            time.sleep(LONG_S)
        finally:
            os._exit(1)

    def has_worked() -> None:
        assert os.read(read, 1) == b"."

    try:
        yield pid, has_worked
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


class TestSharedLock:
    def test_one_at_a_time_among_processes(self) -> None:
        lock = SharedLock()
        with forked(lambda: lock.take(LONG_S)) as (_, has_worked):
            has_worked()
            assert not lock.take(0.0)
            assert not lock.take(0.01)

    def test_given_back(self) -> None:
        lock = SharedLock()

        def work() -> None:
            assert lock.take(0.0)
            lock.give()

        with forked(work) as (_, has_worked):
            has_worked()
            assert lock.take(0.0)

    def test_killed_holder_gives_it_on(self) -> None:
        lock = SharedLock()
        for _ in range(3):
            with forked(lambda: lock.take(LONG_S)) as (_, has_worked):
                has_worked()
            assert lock.take(LONG_S)
            lock.give()

    def test_note(self) -> None:
        lock = SharedLock()
        assert lock.note == 0.0

        def work() -> None:
            lock.note = 1.5

        with forked(work) as (_, has_worked):
            has_worked()
            assert lock.note == 1.5


class Lock:
    """Fake of the lock that `Passes` uses. Records the requested timeouts."""

    def __init__(self, note: float = 0.0, *, is_free: bool = True) -> None:
        self.note = note
        self.is_free = is_free
        self.waits: list[float] = []
        self.given = 0

    def take(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        return self.is_free

    def give(self) -> None:
        self.given += 1


def passes(lock: Lock) -> Passes:
    return Passes(lock)  # type: ignore[arg-type]


class TestPasses:
    def test_waits_for_some_of_its_own_passes(self) -> None:
        lock = Lock()
        turns = passes(lock)
        with turns:
            time.sleep(0.02)
        with turns:
            pass
        assert lock.waits[0] == PATIENCE * FIRST_S
        assert PATIENCE * 0.02 <= lock.waits[1] <= MOST_S
        assert lock.note >= 0.02
        assert lock.given == 2

    def test_does_not_wait_for_one_with_long_passes(self) -> None:
        lock = Lock(note=PATIENCE * FIRST_S * 2, is_free=False)
        with passes(lock):
            pass
        assert lock.waits == [0.0]
        # The holder's note stays unchanged, and its lock is not released.
        assert lock.note == PATIENCE * FIRST_S * 2
        assert lock.given == 0

    def test_computes_at_last_whoever_holds_it(self) -> None:
        lock = Lock(is_free=False)
        done = False
        with passes(lock):
            done = True
        assert done
        assert lock.given == 0

    def test_failed_pass_gives_it_back(self) -> None:
        lock = Lock()
        with pytest.raises(ZeroDivisionError), passes(lock):
            raise ZeroDivisionError
        assert lock.given == 1

    def test_nobody_takes_turns(self) -> None:
        with Passes():
            pass


class TestLocks:
    def spec(self, identifier: str, turns_with: str) -> ReplicaSpec:
        return ReplicaSpec(
            id=identifier,
            pipeline="",
            model_dir="",
            address="",
            log_path="",
            flight_path="",
            engine="",
            device="cpu",
            dtype="",
            threads=2,
            batch_budgets={},
            limits=MediaLimits(),
            cell=Cell("", "", None),
            secret_path="",
            turns_with=turns_with,
        )

    def test_of_an_account(self) -> None:
        locks = Locks()
        lock = locks.of(self.spec("a", "account"))
        assert lock is not None
        assert locks.of(self.spec("b", "account")) is lock
        assert locks.of(self.spec("c", "another")) is not lock
        assert locks.of(self.spec("d", "")) is None

    def test_goes_with_the_last_that_has_it(self) -> None:
        locks = Locks()
        lock = locks.of(self.spec("a", "account"))
        locks.of(self.spec("b", "account"))
        locks.ended("a")
        assert locks.of(self.spec("c", "account")) is lock
        for name in ("b", "c", "unknown"):
            locks.ended(name)
        assert locks.of(self.spec("d", "account")) is not lock

    def test_fork_keeps_its_own(self) -> None:
        locks = Locks()
        first, other = (locks.of(self.spec(name, name)) for name in "ab")
        assert first
        assert other

        def work() -> None:
            locks.forget_all_but(first)
            assert first.take(0.0)
            with pytest.raises(ValueError, match="closed"):
                _ = other.note

        with forked(work) as (_, has_worked):
            has_worked()
            assert other.take(0.0)
