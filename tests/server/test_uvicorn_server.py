"""Uvicorn without its timer: the Date header is current, and an exit is noticed at once."""

import asyncio

import pytest
import uvicorn

from stoker.server.edge import uvicorn_server
from stoker.server.edge.uvicorn_server import DatedState, EventServer


class TestDatedState:
    def test_the_header_shows_the_current_second(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = uvicorn.Config("none", server_header=False, headers=[("x-fixed", "1")])
        config.encoded_headers = [(b"x-fixed", b"1")]
        state = DatedState(config)
        monkeypatch.setattr(uvicorn_server.time, "time", lambda: 784111777.9)
        first = state.default_headers
        assert first == [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"), (b"x-fixed", b"1")]
        assert state.default_headers is first
        monkeypatch.setattr(uvicorn_server.time, "time", lambda: 784111778.0)
        assert state.default_headers[0] == (b"date", b"Sun, 06 Nov 1994 08:49:38 GMT")


class TestEventServer:
    async def test_it_exits_without_a_tick(self) -> None:
        server = EventServer(uvicorn.Config("none"))
        running = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0)
        assert not running.done()
        server.should_exit = True
        await asyncio.wait_for(running, 1)
