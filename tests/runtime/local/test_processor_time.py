"""Processor times, and readings that are kept while a process does not compute."""

import os
import subprocess
import sys
import time

from stoker.runtime.local.processes.machine import computed
from stoker.runtime.local.processes.process_tree import ProcessTree
from stoker.runtime.local.processes.processor_time import (
    COMPUTED_S,
    FRESH_S,
    TICKS,
    KeptReadings,
    processor_s,
)


class World:
    """A process with a fake processor time, and the number of its readings."""

    def __init__(self) -> None:
        self.computed_s: float | None = 1.0
        self.now = 0.0
        self.reads = 0
        self.kept = KeptReadings(
            self.read, computed_s=lambda _pid: self.computed_s, clock=lambda: self.now
        )

    def read(self, _pid: int) -> int:
        self.reads += 1
        return self.reads


class TestProcessorTime:
    def test_of_this_process(self) -> None:
        seconds = processor_s(os.getpid())
        assert seconds is not None
        assert abs(seconds - time.process_time()) < 0.1
        assert abs(computed(os.getpid()) - seconds * TICKS) <= TICKS / 10

    def test_of_an_ended_process(self) -> None:
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        assert processor_s(process.pid) is None
        assert processor_s(0) is None
        assert computed(0) == computed(process.pid) == 0


class TestKeptReadings:
    def test_is_read_again_after_it_computed(self) -> None:
        world = World()
        assert [world.kept(7), world.kept(7)] == [1, 1]
        world.computed_s = 1 + COMPUTED_S / 2
        assert world.kept(7) == 1
        world.computed_s = 1 + COMPUTED_S * 1.01
        assert world.kept(7) == 2

    def test_is_read_again_after_a_while(self) -> None:
        world = World()
        world.kept(7)
        world.now = FRESH_S
        assert world.kept(7) == 2

    def test_another_process_with_the_same_id(self) -> None:
        world = World()
        world.kept(7)
        world.computed_s = 0.5
        assert world.kept(7) == 2

    def test_is_always_read_without_a_processor_time(self) -> None:
        world = World()
        world.computed_s = None
        assert [world.kept(7), world.kept(7)] == [1, 2]


class TestProcessTree:
    def test_only_new_processes_are_read(self) -> None:
        last_pid, now, reads = 5, 0.0, list[int]()
        parents = {1: 0, 3: 1, 4: 3, 5: 2}

        def parent(pid: int) -> int:
            reads.append(pid)
            return parents[pid]

        tree = ProcessTree(
            last_pid=lambda: last_pid, pids=lambda: [*parents], parent=parent, clock=lambda: now
        )
        assert tree([1, 2]) == tree([1, 2]) == {1: [3, 4], 2: [5]}
        assert reads == [1, 3, 4, 5]
        parents[6] = 2
        assert tree([1, 2])[2] == [5], "the kernel says that no process was created"
        last_pid = 6
        assert tree([1, 2]) == {1: [3, 4], 2: [5, 6]}
        assert reads[4:] == [1, 6], "the parent of 1 is unknown"
        del parents[4]
        now = 5.0
        assert tree([1, 2])[1] == [3], "without a new process, a list is five seconds old at most"

    def test_a_new_child_is_noticed(self) -> None:
        tree, pid = ProcessTree(), os.getpid()
        before = tree([pid])[pid]
        with subprocess.Popen(["sleep", "60"]) as process:
            assert process.pid not in before
            assert process.pid in tree([pid])[pid]
            process.kill()
