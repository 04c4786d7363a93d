"""Inspection in separate processes, bounded in memory and time, and shared fairly by account."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import psutil
import pytest

from stoker.inspection import FailureCode, InspectionError, Inspectors, inspect
from stoker.inspection.inspectors import InspectorError
from stoker.models.tasks.registry import PIPELINES
from stoker.store.blobs import Folder
from tests.support.models import tiny_bert

MIB = 1 << 20
Files = Mapping[str, tuple[str, int]]
ROOT = Folder(Path("/"))
SLEEPY = "tests.inspection.sleepy"


@pytest.fixture
async def inspectors() -> AsyncIterator[Inspectors]:
    created = Inspectors(memory_bytes=512 * MIB)
    yield created
    await created.close()


@pytest.fixture
def bert(tmp_path: Path) -> Files:
    folder = tiny_bert(tmp_path)
    return {path.name: (path.name, path.stat().st_size) for path in folder.iterdir()}


def processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if "stoker.inspection.process" in child.cmdline()]


def large_tokenizer(folder: Path, bert: Files) -> Files:
    """Writes 11 MiB of small objects, which occupy thirty times as much memory."""
    content = b'{"model": [' + b",".join([b'{"a":0}'] * 1_400_000) + b"]}"
    (folder / "large").write_bytes(content)
    return {**bert, "tokenizer.json": ("large", len(content))}


async def refusal(
    inspectors: Inspectors, files: Files, root: Path = Path("/"), account: str = "A"
) -> InspectionError:
    with pytest.raises(InspectionError) as caught:
        await inspectors.inspect(account, Folder(root), files, None)
    return caught.value


class TestM7:
    async def test_finds_what_inspection_here_finds(
        self, inspectors: Inspectors, bert: Files, tmp_path: Path
    ):
        inspection = await inspectors.inspect("A", Folder(tmp_path), bert, None)
        assert inspection == inspect(Folder(tmp_path).files(bert), None, PIPELINES)
        # The process is kept for the next inspection.
        (process,) = processes()
        assert await inspectors.inspect("B", Folder(tmp_path), bert, None) == inspection
        assert processes() == [process]
        await inspectors.close()
        assert not process.is_running()

    async def test_refuses_what_inspection_here_refuses(
        self, inspectors: Inspectors, bert: Files, tmp_path: Path
    ):
        files = {name: value for name, value in bert.items() if name != "config.json"}
        error = await refusal(inspectors, files, tmp_path)
        with pytest.raises(InspectionError) as here:
            inspect(Folder(tmp_path).files(files), None, PIPELINES)
        assert (error.code, error.message) == (here.value.code, here.value.message)
        assert error.code is FailureCode.MISSING_CONFIG

    @pytest.mark.parametrize("mib", [420, 512, 600])
    async def test_memory_is_bounded_and_not_the_servers(
        self, mib: int, bert: Files, tmp_path: Path
    ):
        """Memory may run out at any point of reading."""
        inspectors = Inspectors(memory_bytes=mib * MIB)
        files = large_tokenizer(tmp_path, bert)
        before = psutil.Process().memory_info().rss
        error = await refusal(inspectors, files, tmp_path)
        assert error.code is FailureCode.TOO_COMPLEX
        assert f"{mib} MiB of memory" in error.message
        assert psutil.Process().memory_info().rss - before < 30 * MIB
        # A process that used so much memory is not kept.
        assert processes() == []
        assert await inspectors.inspect("A", Folder(tmp_path), bert, None)
        await inspectors.close()

    async def test_time_is_bounded(self):
        inspectors = Inspectors(module=SLEEPY, deadline_s=0.5)
        error = await refusal(inspectors, {"slow": ("slow", 1)})
        assert error.code is FailureCode.TOO_COMPLEX
        assert "longer than 0.5 s" in error.message
        await inspectors.close()

    async def test_one_account_leaves_a_place_to_others(self):
        inspectors = Inspectors(module=SLEEPY)
        flood = [
            asyncio.create_task(inspectors.inspect("A", ROOT, {"slow": ("slow", 1)}, None))
            for _ in range(12)
        ]
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            error = await refusal(inspectors, {"quick": ("quick", 1)}, account="B")
        assert error.message == "It is quick."
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        await inspectors.close()

    async def test_process_that_was_ended_is_replaced(
        self, inspectors: Inspectors, bert: Files, tmp_path: Path
    ):
        inspection = await inspectors.inspect("A", Folder(tmp_path), bert, None)
        (process,) = processes()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        assert await inspectors.inspect("A", Folder(tmp_path), bert, None) == inspection

    async def test_files_that_end_it_every_time_are_refused(self):
        inspectors = Inspectors(module=SLEEPY)
        error = await refusal(inspectors, {"ends": ("ends", 1)})
        assert error.code is FailureCode.TOO_COMPLEX
        await inspectors.close()

    async def test_files_that_are_not_there_are_nobodys_fault(
        self, inspectors: Inspectors, tmp_path: Path
    ):
        with pytest.raises(InspectorError, match="no-such-file"):
            await inspectors.inspect("A", Folder(tmp_path), {"a.json": ("no-such-file", 5)}, None)
