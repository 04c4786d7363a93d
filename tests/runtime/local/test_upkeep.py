"""Selection of the deployments that the supervisor handles."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.base.config import Settings
from stoker.base.errors import ModelLoadingError
from stoker.runtime.interface import LoadError
from stoker.runtime.local.processes import processes
from stoker.runtime.local.runtime import LocalRuntime
from stoker.runtime.pool.transport import Channel
from stoker.runtime.specification import DeploymentSpec, Readiness
from tests.runtime.pool.world import CALL, SPEC, settle


class Folders:
    """Fake of the model folders. Finds no folder if the test wants it."""

    def __init__(self) -> None:
        self.looked = asyncio.Event()
        self.found: Path | None = None

    async def folder(self, spec: DeploymentSpec, *, is_ahead: bool = False) -> Path:
        await self.looked.wait()
        if self.found is None:
            raise LoadError("it is not there.")
        return self.found

    async def content(self, spec: DeploymentSpec) -> str:
        return ""


@pytest.fixture
async def folders() -> Folders:
    return Folders()


@pytest.fixture
async def runtime(tmp_path: Path, folders: Folders, monkeypatch: pytest.MonkeyPatch):
    runtime = LocalRuntime(Settings(data_dir=tmp_path, memory_budget_mib=100_000), folders)
    monkeypatch.setattr(runtime._host, "start", lambda: None)
    for number in range(100):
        runtime.apply(replace(SPEC, id=f"cold_{number}"), running=True)
    return runtime


def tended(runtime: LocalRuntime) -> set[str]:
    """Returns the due deployments after idle ones are removed."""
    runtime._pools.tick()
    return set(runtime._pools.due)


async def test_idle_ones_cost_nothing(runtime: LocalRuntime) -> None:
    assert not tended(runtime)


async def test_what_stays_loaded_is_tended_until_it_is_stopped(
    runtime: LocalRuntime, folders: Folders
) -> None:
    warm = replace(SPEC, id="warm", readiness=Readiness.WARM)
    least = replace(SPEC, id="least", min_replicas=1)
    runtime.apply(warm, running=True)
    runtime.apply(least, running=True)
    assert tended(runtime) == {"warm", "least"}
    runtime.apply(warm, running=False)
    runtime.apply(replace(least, min_replicas=0), running=True)
    assert tended(runtime) == {"warm", "least"}, "their starts are not over"
    folders.looked.set()
    await settle()
    assert not tended(runtime)


async def test_one_that_is_called_is_tended_while_it_starts(
    runtime: LocalRuntime, folders: Folders
) -> None:
    assert not tended(runtime)
    call = asyncio.create_task(runtime.call("cold_7", CALL, wait_s=60, timeout_s=60))
    await settle()
    assert tended(runtime) == {"cold_7"}
    folders.looked.set()
    with pytest.raises(ModelLoadingError, match="not there"):
        await call
    assert not tended(runtime)


@pytest.mark.fault("e2")
async def test_l6_start_of_one_that_is_deleted_leaves_nothing(
    runtime: LocalRuntime, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment is deleted while its start waits for the model's folder."""
    sockets: list[Channel] = []

    def noted(*arguments: Any) -> Channel:
        sockets.append(Channel(*arguments))
        return sockets[-1]

    monkeypatch.setattr(processes, "Channel", noted)
    (tmp_path / "model").mkdir()
    folders.found = tmp_path / "model"
    runtime._cells.open()
    runtime._host._ready.set()
    try:
        call = asyncio.create_task(runtime.call("cold_7", CALL, wait_s=60, timeout_s=60))
        await settle()
        await runtime.remove("cold_7")
        folders.looked.set()
        await asyncio.gather(call, return_exceptions=True)
        await settle()
        assert [channel.closed for channel in sockets] == [True]
        assert runtime._memory.main.held == 0
        assert not runtime._residents
        assert not tended(runtime)
        assert not runtime._cells._made
        assert not list((tmp_path / "cache").rglob("openvino/*"))
    finally:
        runtime._processes.close()
        runtime._cells.close()
