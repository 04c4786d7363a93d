"""Both ends of a replica's socket, the gateway's and the replica's."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stoker.replica.link import Link
from stoker.runtime.interface import Call
from stoker.runtime.pool.answers import CallStats
from stoker.runtime.pool.handle import ReplicaHandle
from stoker.runtime.pool.pending_calls import WorkerLostError
from stoker.runtime.pool.transport import _STRANGERS, Channel
from stoker.wire.framing import FrameReader, framed
from stoker.wire.protocol import Cancel, Loading, RequestResult, pack
from tests.runtime.pool.world import Flight

CALL = Call(task="fill-mask", items=["a"], parameters={}, single=True)
SECRET = b"known to one"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "replica")


class Peer:
    """Any process that connects to the socket."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.connect(path)
        self._reader = FrameReader()

    def send(self, *frames: bytes) -> None:
        for piece in framed(frames):
            self.socket.send(piece)

    async def receive(self) -> list[list[bytes]]:
        """Returns the next frames. Empty if the connection is closed."""
        async with asyncio.timeout(60):
            while True:
                piece = await asyncio.get_running_loop().sock_recv(self.socket, 65536)
                if not piece:
                    return []
                if frames := list(self._reader.feed(piece)):
                    return frames

    def has_nothing(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except BlockingIOError:
            return True
        except ConnectionError:
            return True


@pytest.fixture
async def channel(path: str) -> AsyncIterator[Channel]:
    channel = Channel(path, SECRET)
    yield channel
    channel.close()


@pytest.fixture
def received(channel: Channel) -> list[list[bytes]]:
    received = list[list[bytes]]()
    channel.listen(received.append)
    return received


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_messages_of_one_turn_arrive_in_order(
    channel: Channel, received: list[list[bytes]], path: str
) -> None:
    peer = Peer(path)
    peer.send(SECRET)
    peer.send(b"ready")
    await until(lambda: received == [[b"ready"]])
    messages = [[b"%d" % number, b"x" * 70_000 * (number == 3)] for number in range(6)]
    for frames in messages[:5]:
        channel.send(frames)
    arrived = await peer.receive()
    while len(arrived) < 5:
        arrived += await peer.receive()
    channel.send(messages[5])
    assert arrived + await peer.receive() == messages


async def test_a_call_to_a_process_that_has_just_ended(channel: Channel, path: str) -> None:
    """The process's socket closes before the host reports its end. Another replica accepts the
    call.
    """
    replica = ReplicaHandle(replica_id="rep_1", flight=Flight(), generation=0, channel=channel)
    ended = Link(path, SECRET)
    ended.send(Loading(0.5, "reading weights"))
    await until(lambda: replica.progress == 0.5)
    ended.close()
    await asyncio.sleep(0.2)
    calling = asyncio.create_task(replica.call(CALL, CallStats()))
    await asyncio.sleep(0.1)
    assert not calling.done()
    replica.mark_ended("signal 9")
    with pytest.raises(WorkerLostError) as caught:
        await calling
    assert not caught.value.begun
    replica.close()


class TestH3:
    """Connections to a replica's socket without the replica's secret."""

    @pytest.mark.parametrize(
        "said", [b"", b"known to all", SECRET[:-1], SECRET + b" ", b"\0" * 1000]
    )
    async def test_who_does_not_know_the_secret_is_sent_away(
        self, channel: Channel, received: list[list[bytes]], path: str, said: bytes
    ) -> None:
        stranger, replica_peer = Peer(path), Peer(path)
        stranger.send(said)
        assert await stranger.receive() == []
        replica_peer.send(SECRET)
        replica_peer.send(b"mine")
        await until(lambda: received == [[b"mine"]])

    @pytest.mark.parametrize(
        "said", [b"\xff" * 64, b"\0\0\0\0", b"\1\0\0\0" + b"\xff" * 8], ids=["count", "0", "size"]
    )
    async def test_who_sends_what_is_no_message_is_sent_away(
        self, channel: Channel, received: list[list[bytes]], path: str, said: bytes
    ) -> None:
        stranger = Peer(path)
        stranger.socket.send(said)
        assert await stranger.receive() == []
        assert received == []

    async def test_the_secret_is_for_once(
        self, channel: Channel, received: list[list[bytes]], path: str
    ) -> None:
        silent, replica_peer = Peer(path), Peer(path)
        replica_peer.send(SECRET)
        replica_peer.send(b"mine")
        await until(lambda: received == [[b"mine"]])
        # The waiting connection is closed, and no new one is accepted.
        assert await silent.receive() == []
        with pytest.raises(OSError, match="refused"):
            Peer(path)
        for number in range(30):
            channel.send([str(number).encode(), b"request"])
        got = list[list[bytes]]()
        while len(got) < 30:
            got += await replica_peer.receive()
        assert got == [[str(number).encode(), b"request"] for number in range(30)]
        replica_peer.send(b"an", b"answer")
        await until(lambda: received == [[b"mine"], [b"an", b"answer"]])

    async def test_nobody_gets_anything_before(
        self, channel: Channel, received: list[list[bytes]], path: str
    ) -> None:
        stranger = Peer(path)
        await asyncio.sleep(0.1)
        channel.send([b"request"])
        await asyncio.sleep(0.1)
        assert stranger.has_nothing()
        assert received == []

    async def test_there_are_only_so_many_who_say_nothing(
        self, channel: Channel, received: list[list[bytes]], path: str
    ) -> None:
        silent = [Peer(path) for _ in range(_STRANGERS)]
        await asyncio.sleep(0.1)
        assert await Peer(path).receive() == []
        # A closed connection makes room for the replica.
        silent[0].socket.close()
        await asyncio.sleep(0.1)
        replica_peer = Peer(path)
        replica_peer.send(SECRET)
        replica_peer.send(b"mine")
        await until(lambda: received == [[b"mine"]])


class TestLink:
    async def test_large_messages_go_both_ways_while_the_other_end_is_slow(
        self, channel: Channel, received: list[list[bytes]], path: str
    ) -> None:
        link = Link(path, SECRET)
        content = bytes(range(256)) * 40_000
        link.send(RequestResult(1), content)
        for number in range(2, 200):
            link.send(RequestResult(number))
        got = list[int]()

        def work() -> None:
            while len(got) < 300:
                got.extend(message.id for message in link.receive(10))  # type: ignore[union-attr]

        thread = threading.Thread(target=work)
        thread.start()
        await until(lambda: len(received) == 199)
        assert received[0][1] == content
        for number in range(300):
            channel.send(pack(Cancel(number)))
        await asyncio.to_thread(thread.join, 10)
        assert got == list(range(300))
        link.close()

    async def test_what_was_said_before_the_end_arrives(
        self, channel: Channel, received: list[list[bytes]], path: str
    ) -> None:
        link = Link(path, SECRET)
        content = bytes(10_000_000)

        def end() -> None:
            link.send(RequestResult(1), content)
            link.close()

        await asyncio.to_thread(end)
        await until(lambda: len(received) == 1)
        assert received[0][1] == content

    async def test_a_gateway_that_ends_keeps_nobody_busy(self, channel: Channel, path: str) -> None:
        link = Link(path, SECRET)
        channel.listen(lambda _frames: None)
        await asyncio.sleep(0.1)
        channel.close()
        await asyncio.to_thread(link.receive, 5)
        began = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(link.receive, 0.3) == []
        assert asyncio.get_running_loop().time() - began >= 0.3
        link.send(RequestResult(1), bytes(10_000_000))
        link.close()
