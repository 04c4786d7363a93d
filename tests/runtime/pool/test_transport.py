"""The gateway's end of a replica's socket."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from stoker.runtime.interface import Call
from stoker.runtime.pool.answers import CallStats
from stoker.runtime.pool.handle import ReplicaHandle, WorkerLostError
from stoker.runtime.pool.transport import Channel
from stoker.wire.protocol import Loading
from tests.runtime.pool.world import Flight

CALL = Call(task="fill-mask", items=["a"], parameters={}, single=True)
SECRET = b"known to one"


async def test_a_call_to_a_process_that_has_just_ended(tmp_path: Path) -> None:
    """Its socket is closed before the host has told of its end: another replica takes the call."""
    with zmq.Context() as context:
        address = f"ipc://{tmp_path}/replica"
        channel = Channel(context, address, SECRET)
        replica = ReplicaHandle(id="rep_1", flight=Flight(), generation=0, channel=channel)
        ended: Any = context.socket(zmq.DEALER)
        ended.connect(address)
        ended.send(SECRET)
        ended.send(msgspec.msgpack.encode(Loading(0.5, "reading weights")))
        async with asyncio.timeout(10):
            while replica.progress != 0.5:
                await asyncio.sleep(0.01)
        ended.close(linger=0)
        await asyncio.sleep(0.2)
        calling = asyncio.create_task(replica.call(CALL, CallStats()))
        await asyncio.sleep(0.1)
        assert not calling.done()
        replica.lost(1)
        with pytest.raises(WorkerLostError) as caught:
            await calling
        assert not caught.value.begun
        replica.close()


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)


class TestH3:
    """Whoever connects to a replica's socket, without what the replica proves itself by."""

    async def test_another_one_gets_nothing_and_is_not_heard(self, tmp_path: Path) -> None:
        with zmq.Context() as context:
            address = f"ipc://{tmp_path}/replica"
            channel = Channel(context, address, SECRET)
            received = list[list[bytes]]()
            channel.listen(received.append)
            own, first, later = (_peer(context, address) for _ in range(3))
            # It comes first, and asks for all that it may.
            for said in (b"", b"known to all", SECRET[:-1], SECRET + b" "):
                first.send(said)
            own.send(SECRET)
            own.send(b"mine")
            await _until(lambda: received == [[b"mine"]])
            # The secret is for once.
            later.send(SECRET)
            later.send_multipart([b"forged", b"answer"])
            first.send(b"forged")
            await asyncio.sleep(0.2)
            for number in range(30):
                channel.send([str(number).encode(), b"request"])
            got = [own.recv_multipart() for _ in range(30)]
            assert got == [[str(number).encode(), b"request"] for number in range(30)]
            assert received == [[b"mine"]]
            for one in (first, later):
                with pytest.raises(zmq.Again):
                    one.recv_multipart(zmq.NOBLOCK)
            own.send_multipart([b"an", b"answer"])
            await _until(lambda: len(received) == 2)
            assert received[1] == [b"an", b"answer"]
            channel.close()
            for one in (own, first, later):
                one.close(linger=0)

    async def test_nobody_is_heard_before(self, tmp_path: Path) -> None:
        with zmq.Context() as context:
            address = f"ipc://{tmp_path}/replica"
            channel = Channel(context, address, SECRET)
            received = list[list[bytes]]()
            channel.listen(received.append)
            stranger = _peer(context, address)
            stranger.send(b"hello")
            await asyncio.sleep(0.2)
            channel.send([b"request"])
            await asyncio.sleep(0.1)
            with pytest.raises(zmq.Again):
                stranger.recv(zmq.NOBLOCK)
            assert received == []
            channel.close()
            stranger.close(linger=0)


def _peer(context: Any, address: str) -> Any:
    made: Any = context.socket(zmq.DEALER)
    made.setsockopt(zmq.RCVTIMEO, 10_000)
    made.connect(address)
    return made
