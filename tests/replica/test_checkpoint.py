"""Tests of the program that moves GPU memory, with a library that stands in for the CUDA driver.

libcuda.c follows the driver's documentation. The real driver was not available.
"""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.runtime.local.processes import checkpoints
from stoker.runtime.local.processes.checkpoints import DriverCheckpoints
from stoker.runtime.pool.launcher import SleepError

PROGRAM = (sys.executable, "-m", "stoker.replica.checkpoint")
SOURCE = Path(__file__).with_name("libcuda.c")
PID = 1234
RUNNING, LOCKED, CHECKPOINTED = "0", "1", "2"

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    return path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the file with the state of a process that uses the GPU."""
    monkeypatch.setenv("DRIVER_STATES", str(tmp_path))
    path = tmp_path / str(PID)
    path.write_text(RUNNING)
    return path


@pytest.fixture
async def moves(library: Path, state: Path) -> AsyncIterator[DriverCheckpoints]:
    driver = DriverCheckpoints([*PROGRAM, str(library)])
    yield driver
    await driver.close()


async def test_there_and_back(moves: DriverCheckpoints, state: Path):
    await moves.start()
    assert moves.is_supported
    for _ in range(2):
        await moves.sleep(PID)
        assert state.read_text() == CHECKPOINTED
        await moves.wake(PID)
        assert state.read_text() == RUNNING


async def test_a_machine_without_the_driver():
    driver = DriverCheckpoints([*PROGRAM, "libno-driver.so.1"])
    await driver.start()
    assert not driver.is_supported
    with pytest.raises(SleepError, match=r"libno-driver\.so\.1"):
        await driver.sleep(PID)


async def test_an_old_driver():
    # A library without these functions.
    driver = DriverCheckpoints([*PROGRAM, "libc.so.6"])
    await driver.start()
    assert not driver.is_supported
    with pytest.raises(SleepError, match="older than version 570"):
        await driver.sleep(PID)


async def test_a_failed_move_leaves_the_process_running(
    moves: DriverCheckpoints, state: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("Lock", "Checkpoint"):
        monkeypatch.setenv("DRIVER_FAILS", name)
        with pytest.raises(SleepError, match=f"cuCheckpointProcess{name} returned error"):
            await moves.sleep(PID)
        assert state.read_text() == RUNNING
        await moves.close()


async def test_a_failed_restore(
    moves: DriverCheckpoints, state: Path, monkeypatch: pytest.MonkeyPatch
):
    await moves.sleep(PID)
    await moves.close()
    monkeypatch.setenv("DRIVER_FAILS", "Restore")
    with pytest.raises(SleepError, match="cuCheckpointProcessRestore returned error 2"):
        await moves.wake(PID)
    assert state.read_text() == CHECKPOINTED


async def test_a_process_that_does_not_use_the_gpu(moves: DriverCheckpoints):
    with pytest.raises(SleepError, match="returned error 1"):
        await moves.sleep(PID + 1)


async def test_a_process_in_another_state(moves: DriverCheckpoints, state: Path):
    state.write_text(LOCKED)
    with pytest.raises(SleepError, match="CUDA_ERROR_ILLEGAL_STATE"):
        await moves.sleep(PID)


async def test_a_driver_that_hangs(moves: DriverCheckpoints, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRIVER_HANGS", "1")
    monkeypatch.setattr(checkpoints, "_MOVE_S", 0.2)
    await moves.start()
    assert moves.is_supported
    with pytest.raises(SleepError, match=r"the driver did not answer within 0\.2 s"):
        await moves.sleep(PID)
    assert not moves.is_supported, "later replicas are unloaded at once"


async def test_the_program_is_reused(moves: DriverCheckpoints, state: Path):
    await moves.sleep(PID)
    first = [process.pid for process in moves._spare]
    await moves.wake(PID)
    assert [process.pid for process in moves._spare] == first


async def test_a_program_that_is_killed_while_it_waits(moves: DriverCheckpoints, state: Path):
    await moves.sleep(PID)
    (spare,) = moves._spare
    spare.kill()
    await spare.wait()
    await moves.wake(PID)
    assert state.read_text() == RUNNING


@pytest.mark.parametrize("action", ["sleep", "wake"])
async def test_a_program_that_is_killed_during_a_move(
    moves: DriverCheckpoints, state: Path, monkeypatch: pytest.MonkeyPatch, action: str
):
    if action == "wake":
        await moves.sleep(PID)
        await moves.close()
    monkeypatch.setenv("DRIVER_HANGS", "1")
    await moves.start()
    (program,) = moves._spare
    move = asyncio.create_task(getattr(moves, action)(PID))
    await asyncio.sleep(0.1)
    assert not move.done()
    program.kill()
    with pytest.raises(SleepError, match="the program ended"):
        await move
    monkeypatch.delenv("DRIVER_HANGS")
    # Another process can move, and so can this one: its state did not change.
    await getattr(moves, action)(PID)


async def test_a_program_that_cannot_be_started(tmp_path: Path):
    driver = DriverCheckpoints([str(tmp_path / "none")])
    with pytest.raises(SleepError, match="could not be started"):
        await driver.sleep(PID)
