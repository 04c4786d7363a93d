"""A background job that ends is restarted. `/health` reports the problem in the meantime."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response

from stoker.server import health
from stoker.server.background import Background


class Work:
    def __init__(self, error: Exception | None) -> None:
        self.begun = 0
        self.error = error
        self.again = asyncio.Event()

    async def run(self) -> None:
        self.begun += 1
        if self.begun > 1:
            self.again.set()
            await asyncio.Event().wait()
        if self.error:
            raise self.error


async def told(background: Background) -> int:
    """Returns the status of `/health` for a server with no other problem to report."""

    async def ping() -> None: ...

    platform: Any = SimpleNamespace(
        runtime=SimpleNamespace(check=lambda: None), database=SimpleNamespace(ping=ping)
    )
    response = Response()
    answer = await health.health(platform, background, response)
    assert (answer.status == "ok") == (response.status_code == 200)
    return response.status_code


class TestBackground:
    @pytest.mark.parametrize("error", [None, ValueError("x"), MemoryError(), RecursionError()])
    async def test_m6_is_begun_again(self, error: Exception | None):
        background, work = Background(restart_s=0.2), Work(error)
        background.start("journal", work.run)
        while not background.problem:
            await asyncio.sleep(0)
        assert "journal" in background.problem
        assert await told(background) == 503
        async with asyncio.timeout(10):
            await work.again.wait()
        assert background.problem is None
        assert await told(background) == 200
        await background.stop_all()

    async def test_m6_that_has_died_is_told(self):
        """A job that ends with an exception that no handler catches is reported."""
        background = Background(restart_s=60)

        async def cancelled() -> None:
            raise asyncio.CancelledError

        background.start("journal", cancelled)
        await asyncio.sleep(0.01)
        assert "journal" in (background.problem or "")
        await background.stop_all()

    async def test_names_differ(self):
        background, work = Background(), Work(None)
        work.begun = 1
        background.start("journal", work.run)
        with pytest.raises(ValueError, match="'journal'"):
            background.start("journal", work.run)
        await background.stop("journal")
        background.start("journal", work.run)
        await background.stop_all()

    async def test_stopped_ones_are_no_problem(self):
        background, work = Background(), Work(None)
        work.begun = 1
        background.start("videos", work.run)
        background.start("journal", work.run)
        await background.stop("videos")
        assert background.problem is None
        await background.stop_all()
        assert background.problem is None
