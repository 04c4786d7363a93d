"""Fetches of one account do not delay those of another."""

import asyncio
import socket
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from stoker.base.errors import InvalidMediaError
from stoker.base.fairness import CURRENT_CALLER, FairSemaphore, Party
from stoker.media.hosts import Resolver
from tests.media.test_fetch import Site, fetching, site

__all__ = ["site"]


def of(account: str, work: Awaitable[Any]) -> "asyncio.Task[Any]":
    async def run() -> Any:
        CURRENT_CALLER.set(Party(account))
        return await work

    return asyncio.create_task(run())


class TestM3:
    async def test_slow_urls_of_one_leave_room_for_another(self, site: Site) -> None:
        going, begun = asyncio.Event(), 0

        async def slow(_: bytes, writer: asyncio.StreamWriter) -> None:
            nonlocal begun
            begun += 1
            await going.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow")
            await writer.drain()

        site.answers["/slow"] = slow
        async with fetching() as fetcher:
            flood = [
                of("A", fetcher.fetch(site.url("/slow"), limit_bytes=9, timeout_s=60))
                for _ in range(64)
            ]
            while begun < 28:
                await asyncio.sleep(0.01)
            quick = of("B", fetcher.fetch(site.url("/"), limit_bytes=9, timeout_s=60))
            async with asyncio.timeout(20):
                assert await quick == b"hello"
            assert begun == 28, "of 32 places an account leaves some"
            assert not any(task.done() for task in flood)
            going.set()
            assert await asyncio.gather(*flood) == [b"slow"] * 64

    async def test_names_that_hang_hold_their_own_accounts_threads_only(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answering = threading.Event()

        def lookup(host: str, port: int, **_: Any) -> list[Any]:
            if host.startswith("hangs"):
                answering.wait(60)
            return [(socket.AF_INET, 0, 0, "", ("127.0.0.1", port))]

        monkeypatch.setattr("stoker.media.hosts.socket.getaddrinfo", lookup)
        names: Any = Resolver(32)
        try:
            async with fetching(names) as fetcher:
                flood = [
                    of("A", fetcher.fetch(f"http://hangs{at}.test/", limit_bytes=9, timeout_s=0.2))
                    for at in range(64)
                ]
                for task in flood:
                    with pytest.raises(InvalidMediaError, match=r"0\.2 s"):
                        await task
                # Their fetches have ended, but the threads still hang.
                quick = of("B", fetcher.fetch(site.url(), limit_bytes=9, timeout_s=60))
                async with asyncio.timeout(20):
                    assert await quick == b"hello"
                answering.set()
                again = of("A", fetcher.fetch(site.url(), limit_bytes=9, timeout_s=60))
                async with asyncio.timeout(20):
                    assert await again == b"hello"
        finally:
            answering.set()
            names.close()


class TestSlots:
    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def test_those_who_wait_take_turns(self) -> None:
        slots, order = FairSemaphore(1), list[str]()

        async def use(account: str) -> None:
            async with slots.hold(account):
                order.append(account)
                await asyncio.sleep(0)

        await asyncio.gather(*(use(account) for account in "AAAAABBC"))
        assert order == list("ABCABAAA")

    async def test_who_leaves_takes_nothing(self) -> None:
        slots = FairSemaphore(1)
        await slots.acquire("A")
        waiting = [asyncio.create_task(slots.acquire(account)) for account in "BC"]
        await self.settle()
        waiting[0].cancel()
        await self.settle()
        slots.release("A")
        await self.settle()
        assert waiting[1].done()

    async def test_who_leaves_when_it_gets_its_place_gives_it_back(self) -> None:
        slots = FairSemaphore(1)
        await slots.acquire("A")
        waiting = [asyncio.create_task(slots.acquire(account)) for account in "BC"]
        await self.settle()
        slots.release("A")
        waiting[0].cancel()
        await self.settle()
        assert waiting[0].cancelled()
        assert waiting[1].done()
