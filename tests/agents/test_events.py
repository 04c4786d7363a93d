"""Events of a run: as a list, as a live stream, and resumed after an interruption."""

import asyncio
import time
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.agents.support import (
    ANSWERED,
    COUNT,
    FRANCE,
    IDLE_S,
    PARIS,
    WAIT_S,
    WEATHER,
    Account,
    check_sequence,
    data,
    parsed,
    spoken,
)
from tests.deployments.support import check_error
from tests.support.server import Server
from tools.stand_ins.tool_servers import Tools

RUNS, TOKENS = 100, 120


@pytest.fixture(scope="module")
def agent(account: Account) -> str:
    return account.agent(config={"max_tokens": TOKENS})


@pytest.fixture(scope="module")
def ended(account: Account, agent: str) -> str:
    """Starts a run that counts up to its limit. Returns the path of the ended run."""
    run = account.run(agent, COUNT)
    account.until(run)
    return run


class TestList:
    def test_pages_both_ways(self, account: Account, ended: str) -> None:
        events = account.events(ended)
        assert len(events) > 4
        path = f"{ended}/events"
        first = account.get(path, order="asc", limit=2)
        assert first["data"] == events[:2]
        assert (first["first_id"], first["last_id"], first["has_more"]) == ("1", "2", True)
        second = account.get(path, order="asc", limit=2, after="2")
        assert second["data"] == events[2:4]
        newest = account.get(path, limit=2)
        assert newest["data"] == events[:-3:-1]
        older = account.get(path, limit=2, after=newest["last_id"])
        assert older["data"] == events[-3:-5:-1]
        beyond = account.get(path, order="asc", after=str(len(events)))
        assert (beyond["data"], beyond["has_more"]) == ([], False)
        assert account.get(path, after="1")["data"] == []

    def test_shape(self, account: Account, ended: str) -> None:
        events = account.events(ended)
        run_id = ended.rpartition("/")[2]
        for event in events:
            assert list(event) == [
                "id",
                "object",
                "run_id",
                "sequence",
                "type",
                "data",
                "created_at",
            ]
            assert (event["object"], event["run_id"]) == ("agent.run.event", run_id)
        assert all(earlier["created_at"] <= two["created_at"] for earlier, two in pairwise(events))

    def test_pieces_are_the_message(self, account: Account, ended: str) -> None:
        events = account.events(ended)
        (completed,) = data(events, "message.completed")
        current = account.get(ended)
        assert spoken(events) == {1: completed["message"]["content"]}
        assert current["output"] == completed["message"]["content"]
        messages = [{"role": "user", "content": COUNT}]
        same = account.post(
            "/v1/chat/completions", 200, model="chat", messages=messages, max_tokens=TOKENS
        )
        assert current["output"] == same["choices"][0]["message"]["content"]

    @pytest.mark.parametrize("after", ["a", "-1", "1.5", "٣", "2147483648", "run_1"])
    def test_bad_after(self, account: Account, ended: str, after: str) -> None:
        answer = account.client.get(f"{ended}/events", params={"after": after})
        check_error(answer, 400, "InvalidRequestError", "invalid_request", "after")


class TestStream:
    def test_from_the_beginning_to_the_end(self, account: Account) -> None:
        run = account.run(account.agent(tools=[WEATHER]))
        streamed: list[dict[str, Any]] = []
        for event in account.stream(run):
            streamed.append(event)
            if event["type"] == "run.requires_action":
                account.answer(run)
        check_sequence(streamed)
        assert streamed == account.events(run)
        assert streamed[-1]["data"]["output"] == ANSWERED

    def test_pieces_come_while_it_speaks(self, account: Account, agent: str) -> None:
        streamed: list[dict[str, Any]] = []
        with account.slowed():
            run = account.run(agent, COUNT)
            for event in account.stream(run):
                if event["type"] == "message.delta" and not data(streamed, "message.delta"):
                    assert account.get(run)["status"] == "in_progress"
                streamed.append(event)
        check_sequence(streamed)
        assert len(data(streamed, "message.delta")) > 1

    def test_of_an_ended_run_ends(self, account: Account, ended: str) -> None:
        began = time.monotonic()
        assert [*account.stream(ended)] == account.events(ended)
        # A continuing stream would be kept alive.
        assert time.monotonic() - began < 30

    def test_goes_on_after_any_event(self, account: Account, ended: str) -> None:
        events = account.events(ended)
        for after in range(len(events) + 1):
            assert [*account.stream(ended, str(after))] == events[after:]

    def test_goes_on_while_the_run_does(self, account: Account, agent: str) -> None:
        run = account.run(agent, COUNT)
        streamed: list[dict[str, Any]] = []
        while not streamed or streamed[-1]["type"] != "run.completed":
            last = streamed[-1]["id"] if streamed else None
            for event in account.stream(run, last):
                streamed.append(event)
                if len(streamed) % 3 == 0:
                    break
        check_sequence(streamed)
        assert streamed == account.events(run)

    def test_empty_last_event_id(self, account: Account, ended: str) -> None:
        """An empty Last-Event-ID is ignored, and `after` decides the position."""
        headers = {"accept": "text/event-stream", "last-event-id": ""}
        for query, after in (("", 0), ("?after=2", 2)):
            answer = account.client.get(f"{ended}/events{query}", headers=headers)
            assert answer.status_code == 200, answer.text
            lines = answer.text.splitlines()
            ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
            assert ids == [event["id"] for event in account.events(ended)[after:]]

    @pytest.mark.parametrize("last", ["a", "-1", "1 2", "9" * 20])
    def test_bad_last_event_id(self, account: Account, ended: str, last: str) -> None:
        headers = {"accept": "text/event-stream", "last-event-id": last}
        answer = account.client.get(f"{ended}/events", headers=headers)
        check_error(answer, 400, "InvalidRequestError", "invalid_request", "Last-Event-ID")

    @pytest.mark.fault("e4")
    def test_deletion_ends_it(self, account: Account, weather_tools: Tools) -> None:
        waiting = account.run(account.agent(tools=[WEATHER]))
        account.until(waiting, "requires_action")
        with account.slowed():
            speaking = account.run(account.agent(), COUNT)
            for run, until in ((waiting, "run.requires_action"), (speaking, "message.delta")):
                stream = account.stream(run)
                assert any(event["type"] == until for event in stream)
                deleted = account.client.delete(run)
                assert deleted.json() == {
                    "id": run.rpartition("/")[2],
                    "object": "agent.run.deleted",
                    "deleted": True,
                }
                assert [event["type"] for event in stream][-1] == "run.deleted"
                headers = {"accept": "text/event-stream"}
                answer = account.client.get(f"{run}/events", headers=headers)
                check_error(answer, 404, "NotFoundError", "run_not_found")
            account.wait_idle(IDLE_S)

    def test_slow_reader_misses_nothing(self, account: Account) -> None:
        """A slow reader misses nothing, even with more bytes than socket buffers hold."""
        long = "a " * 500_000
        run = account.run(account.agent(tools=[WEATHER]))
        headers = {"accept": "text/event-stream"}
        with account.client.stream("GET", f"{run}/events", headers=headers) as response:
            account.until(run, "requires_action")
            account.answer(run, long)
            account.until(run)
            streamed = [*parsed(response.iter_lines())]
        assert streamed == account.events(run)
        assert data(streamed, "tool_call.completed")[0]["output"] == long


class TestManyAtOnce:
    async def follow(self, client: httpx.AsyncClient, agent: str, asked: str) -> None:
        made = (await client.post(f"{agent}/runs", json={"input": asked})).raise_for_status()
        run = f"{agent}/runs/{made.json()['id']}"
        lines: list[str] = []
        headers = {"accept": "text/event-stream"}
        async with client.stream("GET", f"{run}/events", headers=headers) as response:
            async for line in response.aiter_lines():
                lines.append(line)
        streamed = [*parsed(lines)]
        check_sequence(streamed)
        assert streamed[-1]["type"] == "run.completed", streamed[-1]
        finished = (await client.get(run)).json()
        expected = PARIS if asked == FRANCE else ANSWERED
        assert (finished["status"], finished["output"]) == ("completed", expected)
        stored: list[dict[str, Any]] = []
        while len(stored) < len(streamed):
            params = {"order": "asc", "limit": 100, "after": len(stored)}
            page = (await client.get(f"{run}/events", params=params)).json()
            assert page["data"]
            stored += page["data"]
        assert streamed == stored and page["has_more"] is False

    async def test_nothing_is_lost(
        self, agent_server: Server, account: Account, agent: str
    ) -> None:
        async with httpx.AsyncClient(
            base_url=agent_server.base_url,
            headers={"authorization": account.client.headers["authorization"]},
            limits=httpx.Limits(max_connections=2 * RUNS),
            timeout=120,
            verify=False,
        ) as client:
            await asyncio.gather(*(self.follow(client, agent, FRANCE) for _ in range(RUNS)))
        account.wait_idle(WAIT_S)
