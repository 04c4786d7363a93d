"""A hanging engine host is detected, with an injected clock and a real process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stoker.runtime.local.processes.engine_host import (
    _IMPORTS_S,
    _PING_S,
    _SILENCE_S,
    SPINS,
    EngineHost,
    environment,
)
from stoker.runtime.pool.exit_status import how_it_ended, is_crash
from stoker.wire.host_messages import (
    Exited,
    HostCommand,
    HostEvent,
    HostReady,
    Ping,
    Pong,
    Preload,
    Preloaded,
    Prepare,
)
from stoker.wire.protocol import Cell, WorkerSpec
from tests.runtime.pool.world import Clock

DEAF = "import time; time.sleep(600)"
IN_REAL_TIME = """
import os, sys
from stoker.replica import host
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    sys.exit(3)
host.import_libraries = lambda: None
host.Host.run = lambda self: sys.exit(os.sched_getscheduler(0) != os.SCHED_OTHER)
host.main()
"""

SKIPPING = """
from stoker.replica import cuda_guard, host

def imported(name):
    raise AssertionError(name)

host.import_libraries = lambda: None
host.IMPORTERS = {"transformers": imported}
cuda_guard.problem_of_import = lambda run: "the driver was called"
host.main()
"""
"""Engine host with imports that initialise CUDA."""
USING_CUDA = """
from stoker.replica import cuda_guard, host

errors = [cuda_guard.CudaRefusedError("refused")]

def import_heavy():
    if errors:
        raise errors.pop()

host.import_libraries = import_heavy
host.IMPORTERS = {"transformers": lambda name: None}
cuda_guard.problem_of_forks = lambda: "" if errors else "forks are bad"
cuda_guard.problem_of_import = lambda run: "not attempted"
host.main()
"""
"""Engine host whose own imports initialise CUDA."""
PRELOAD = Preload("bert")
UNABLE_TO_FORK = """
import errno, os
from stoker.replica import host

def fork():
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

host.import_libraries = lambda: None
os.fork = fork
host.main()
"""


class World:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.host = EngineHost(folder / "host.log", lambda _id, _status: None, self.clock)

    async def begin(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(sys.executable, "-c", DEAF, stdin=pipe)
        self.host._process = self.process
        self.host._started_at = self.clock.now

    def passes(self, seconds: float) -> None:
        """Advances the clock and polls the host every second."""
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.host.look()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.begin()
    yield world
    if world.process.returncode is None:
        world.process.kill()
    await world.process.wait()


async def ended(world: World) -> int:
    return await asyncio.wait_for(world.process.wait(), 10)


async def test_one_that_gives_no_sign_of_life_is_ended(world: World) -> None:
    world.host._handle(HostReady(threads=1))
    world.passes(_PING_S + _SILENCE_S)
    assert world.process.returncode is None
    world.passes(1)
    assert await ended(world) == -signal.SIGKILL


async def test_one_that_gives_some_is_left_alone(world: World) -> None:
    world.host._handle(HostReady(threads=1))
    for _ in range(10):
        world.passes(_SILENCE_S)
        world.host._handle(Pong())
    await asyncio.sleep(0.05)
    assert world.process.returncode is None


async def test_one_that_imports_for_ever_is_ended(world: World) -> None:
    world.passes(_IMPORTS_S)
    assert world.process.returncode is None
    world.passes(1)
    assert await ended(world) == -signal.SIGKILL


def events_of(script: str, command: HostCommand = PRELOAD) -> list[HostEvent]:
    """Returns the events of a host that receives this command and `Ping`."""
    commands = b"".join(msgspec.json.encode(each) + b"\n" for each in (command, Ping()))
    arguments = [sys.executable, "-c", script]
    done = subprocess.run(arguments, input=commands, capture_output=True, timeout=60, check=True)
    return [msgspec.json.decode(line, type=HostEvent) for line in done.stdout.splitlines()]


def test_code_that_initialises_cuda_is_not_imported() -> None:
    assert events_of(SKIPPING) == [
        HostReady(threads=1),
        Preloaded(threads=1, name="bert", cuda_problem="the driver was called"),
        Pong(),
    ]


def test_a_host_whose_own_imports_initialise_cuda_still_starts() -> None:
    assert events_of(USING_CUDA) == [
        HostReady(threads=1, cuda_problem="forks are bad"),
        Preloaded(threads=1, name="bert"),
        Pong(),
    ]


def test_a_host_that_cannot_fork_continues(tmp_path: Path) -> None:
    cell = Cell(str(tmp_path), None, str(tmp_path))
    worker = WorkerSpec(id="work", device="cpu", visible_devices="", cell=cell, models="")
    assert events_of(UNABLE_TO_FORK, Prepare(worker)) == [
        HostReady(threads=1),
        Exited("work", os.EX_OSERR),
        Pong(),
    ]
    assert "lack of memory or processes" in how_it_ended(os.EX_OSERR)
    assert not is_crash(os.EX_OSERR)


async def test_skipped_imports_are_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.host._handle(HostReady(threads=1))
    world.host._handle(Preloaded(threads=1, name="bert"))
    assert caplog.records == []
    world.host._handle(Preloaded(threads=1, name="bert", cuda_problem="the driver was called"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert (vars(record)["preload"], vars(record)["why"]) == ("bert", "the driver was called")


def test_models_take_turns_however_the_server_was_started() -> None:
    """As root, some libraries switch themselves to real-time scheduling, which their child
    processes inherit.
    """
    done = subprocess.run([sys.executable, "-c", IN_REAL_TIME], check=False, timeout=60)
    if done.returncode == 3:
        pytest.skip("this user may choose no real time")
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SPINS),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_an_operator_says_how_long_threads_spin(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    variables = environment()
    assert {name: variables[name] for name in names if name in variables} == expected
