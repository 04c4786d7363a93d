"""The gateway's end of a replica's socket."""

import asyncio
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


async def test_a_call_to_a_process_that_has_just_ended(tmp_path: Path) -> None:
    """Its socket is closed before the host has told of its end: another replica takes the call."""
    with zmq.Context() as context:
        address = f"ipc://{tmp_path}/replica"
        channel = Channel(context, address)
        replica = ReplicaHandle(id="rep_1", flight=Flight(), generation=0, channel=channel)
        ended: Any = context.socket(zmq.DEALER)
        ended.connect(address)
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
