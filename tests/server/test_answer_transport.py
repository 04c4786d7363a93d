"""The head of an answer is sent together with the first part of its body, if that part is ready."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from stoker.server.edge.answer_transport import JOINED_BYTES, AnswerTransport


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def written(act: Callable[[AnswerTransport], Any], turns: int = 2) -> Transport:
    """Runs `act` on an answer's transport and returns the transport after `turns` turns of the
    loop.
    """
    transport = Transport()

    async def write() -> None:
        loop = asyncio.get_running_loop()
        act(AnswerTransport(cast("asyncio.Transport", transport), loop))
        for _ in range(turns):
            await asyncio.sleep(0)

    asyncio.run(write())
    return transport


class TestAnswer:
    def test_head_goes_with_the_body(self) -> None:
        def act(answer: AnswerTransport) -> None:
            answer.write(b"head ")
            answer.write(b"body")
            answer.write(b"more")

        assert written(act).written == [b"head body", b"more"]

    def test_head_alone_goes_at_the_end_of_the_turn(self) -> None:
        assert written(lambda answer: answer.write(b"head ")).written == [b"head "]

    def test_later_body(self) -> None:
        def act(answer: AnswerTransport) -> None:
            answer.write(b"head ")
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: answer.write(b"body"))

        assert written(act, turns=3).written == [b"head ", b"body"]

    def test_large_body_is_not_copied(self) -> None:
        body = bytes(JOINED_BYTES + 1)

        def act(answer: AnswerTransport) -> None:
            answer.write(b"head ")
            answer.write(body)

        transport = written(act)
        assert transport.written == [b"head ", body]
        assert transport.written[1] is body

    def test_nothing_is_lost_that_is_closed_at_once(self) -> None:
        def act(answer: AnswerTransport) -> None:
            answer.write(b"head ")
            assert not answer.is_closing()
            answer.close()
            assert answer.is_closing()

        transport = written(act)
        assert transport.written == [b"head "]
        assert transport.is_closed
