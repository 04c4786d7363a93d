"""Local copies of models: bounded, complete, and not deleted while they are used."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stoker.base.errors import CapacityError
from stoker.registry.deployments.copies import ASKED_S, Copies
from stoker.runtime.interface import LoadError

SIZE = 1000


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copies(tmp_path: Path, clock: Clock) -> Copies:
    return Copies(tmp_path / "models", 3 * SIZE, lambda _: None, clock)


def of(size: int = SIZE) -> Callable[[Path], Awaitable[None]]:
    async def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(size))

    return fill


async def bring(copies: Copies, clock: Clock, *names: str) -> None:
    for name in names:
        clock.seconds += 1
        await copies.bring(name, SIZE, of())
        copies.touch(name)
        # Set the times in the order of use, regardless of the resolution of the files' clock.
        os.utime(copies._root / name, (clock.seconds, clock.seconds))


def there(copies: Copies) -> set[str]:
    return {path.name for path in copies._root.iterdir()}


async def test_the_one_used_longest_ago_goes(copies: Copies, clock: Clock) -> None:
    await bring(copies, clock, "a", "b", "c", "a")
    clock.seconds += ASKED_S
    await bring(copies, clock, "d")
    assert there(copies) == {"a", "c", "d"}


async def test_never_one_that_is_used(copies: Copies, clock: Clock) -> None:
    running = {"one"}
    copies.runs = running.__contains__
    copies.note("a", "one")
    await bring(copies, clock, "a", "b", "c")
    clock.seconds += ASKED_S
    with copies.held("b"):
        await bring(copies, clock, "d")
        assert there(copies) == {"a", "b", "d"}
        # Copies that were requested a moment ago stay, because they are about to be read.
        with pytest.raises(LoadError, match="STOKER_MODEL_CACHE_GIB"):
            await bring(copies, clock, "e")
    running.clear()
    await bring(copies, clock, "e")
    assert there(copies) == {"b", "d", "e"}


async def test_ahead_of_time_nothing_goes_for_it(copies: Copies, clock: Clock) -> None:
    await bring(copies, clock, "a", "b", "c")
    clock.seconds += ASKED_S
    with pytest.raises(LoadError):
        await copies.bring("d", SIZE, of(), may_evict=False)
    assert there(copies) == {"a", "b", "c"}


async def test_one_that_is_larger_than_all(copies: Copies, clock: Clock) -> None:
    with pytest.raises(LoadError, match="4000"):
        await copies.bring("a", 4 * SIZE, of())


async def test_all_wait_for_the_same_and_who_leaves_ends_nothing(
    copies: Copies, clock: Clock
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    times = 0

    async def fill(folder: Path) -> None:
        nonlocal times
        times += 1
        begun.set()
        await go_on.wait()
        (folder / "weights").write_bytes(b"w")

    waiting = [asyncio.create_task(copies.bring("a", SIZE, fill)) for _ in range(3)]
    await begun.wait()
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    assert not (copies._root / "a").exists()
    go_on.set()
    await asyncio.gather(*waiting[1:])
    assert times == 1
    assert (copies._root / "a" / "weights").read_bytes() == b"w"


async def test_what_fails_leaves_nothing(copies: Copies, clock: Clock) -> None:
    async def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(b"w")
        raise OSError(28, "No space left on device")

    with pytest.raises(LoadError, match="disk"):
        await copies.bring("a", SIZE, fill)
    assert there(copies) == set()
    await bring(copies, clock, "a")


async def test_what_would_fill_the_disk_is_not_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise CapacityError("The server's disk has 1 bytes left.", code="insufficient_storage")

    copies = Copies(tmp_path / "models", 3 * SIZE, full)
    with pytest.raises(LoadError, match="no room"):
        await copies.bring("a", SIZE, of())
    assert [record.__dict__["reason"] for record in caplog.records] == [
        "The server's disk has 1 bytes left."
    ]
    assert not (tmp_path / "models").exists()
