"""Bodies, transfers and locks, without a server."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import ClientDisconnect

from stoker.base.errors import ConflictError, InvalidRequestError, PayloadTooLargeError
from stoker.registry.artifacts.streaming import (
    BLOCK_BYTES,
    Body,
    KeyedLocks,
    Transfers,
    UploadTransfer,
)

TOO_LARGE = PayloadTooLargeError("too large")
CLOSED = ConflictError("closed", code="upload_closed")


async def _chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def _silence() -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


def _body(*chunks: bytes, limit: int = 10 * BLOCK_BYTES) -> Body:
    return Body(_chunks(*chunks), UploadTransfer(), limit, TOO_LARGE)


class TestBody:
    async def test_blocks_are_full_and_no_larger(self) -> None:
        body = _body(*[bytes(100_000)] * 25)
        sizes = [len(await body.block(BLOCK_BYTES)) for _ in range(4)]
        assert sizes == [BLOCK_BYTES, BLOCK_BYTES, 2_500_000 - 2 * BLOCK_BYTES, 0]

    async def test_cut_where_the_part_ends(self) -> None:
        body = _body(b"abcdef", b"gh")
        assert [await body.block(4), await body.block(4), await body.block(4)] == [
            b"abcd",
            b"efgh",
            b"",
        ]

    async def test_limit(self) -> None:
        body = _body(b"abc", b"def", limit=5)
        with pytest.raises(PayloadTooLargeError):
            await body.block(10)

    async def test_end(self) -> None:
        body = _body(b"abc", limit=3)
        assert await body.block(3) == b"abc"
        await body.end()
        with pytest.raises(PayloadTooLargeError):
            await _body(b"abc", b"d", limit=3).end()


class TestTransfer:
    async def test_client_that_is_gone(self) -> None:
        """A disconnected client ends its transfer. A silent client ends in the same way, because
        the connection's timeout closes it.
        """

        async def left() -> AsyncIterator[bytes]:
            yield b"first"
            raise ClientDisconnect

        chunks = left()
        transfer = UploadTransfer()
        assert await transfer.next(chunks) == b"first"
        with pytest.raises(InvalidRequestError, match="ended early"):
            await transfer.next(chunks)

    async def test_ended_while_it_waits(self) -> None:
        chunks = _silence()
        transfer = UploadTransfer()
        await transfer.next(chunks)
        waiting = asyncio.ensure_future(transfer.next(chunks))
        await asyncio.sleep(0)
        transfer.end(CLOSED)
        with pytest.raises(ConflictError, match="closed"):
            await waiting

    async def test_ended_by_several(self) -> None:
        """The first of several ends counts. The second arrives after the first has woken the
        transfer and before the transfer runs.
        """
        transfer = UploadTransfer()
        waiting = asyncio.ensure_future(transfer.next(_stalled()))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        loop.call_soon(transfer.end, CLOSED)
        for delay in (0, 1e-9, 1e-6):
            loop.call_later(delay, transfer.end, TOO_LARGE)
        with pytest.raises(ConflictError, match="closed"):
            await waiting

    async def test_ended_before_it_waits(self) -> None:
        transfer = UploadTransfer()
        transfer.end(CLOSED)
        transfer.end(TOO_LARGE)
        with pytest.raises(ConflictError, match="closed"):
            await transfer.next(_chunks(b"abc"))


class TestTransfers:
    async def test_end_waits_for_the_last_byte(self) -> None:
        transfers = Transfers()
        finished: list[str] = []

        async def receive() -> None:
            async with transfers.enter("upl_1") as transfer:
                with pytest.raises(ConflictError):
                    await transfer.next(_stalled())
                await asyncio.sleep(0.01)
                finished.append("written")

        task = asyncio.create_task(receive())
        await asyncio.sleep(0)
        await transfers.end("upl_1", CLOSED)
        assert finished == ["written"]
        await task

    async def test_other_sessions_go_on(self) -> None:
        transfers = Transfers()
        async with transfers.enter("upl_1") as transfer:
            await transfers.end("upl_2", CLOSED)
            assert await transfer.next(_chunks(b"abc")) == b"abc"

    async def test_nothing_is_remembered(self) -> None:
        transfers = Transfers()
        async with transfers.enter("upl_1"), transfers.enter("upl_1", "a.txt"):
            pass
        assert transfers._active == {}


class TestKeyedLocks:
    async def test_one_at_a_time_by_key(self) -> None:
        locks = KeyedLocks()
        inside = most = 0

        async def work(key: int) -> None:
            nonlocal inside, most
            async with locks.hold("blob", key):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*[work(1) for _ in range(5)])
        assert most == 1
        await asyncio.gather(*[work(key) for key in range(5)])
        assert most == 5
        assert len(locks._locks) == 0


async def _stalled() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""
