"""Tool servers that hang, lie, redirect to private addresses or die. Runs end or continue within
limits.
"""

import asyncio
import contextlib
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stoker.base.errors import CapacityError, InvalidRequestError, StokerError
from stoker.workloads.agents.outbound import CONNECT_TIMEOUT_S, Outbound
from stoker.workloads.agents.tool_servers import MAX_OUTPUT_CHARS, ToolServers
from stoker.workloads.agents.transcript import McpServer
from tests.agents.hostile import CANARY, TEXT, Hostile
from tests.agents.support import ANSWERED, FRANCE, PARIS, Account, data, mcp
from tests.support.server import Server
from tools.stand_ins.tool_servers import Tools, listening

TIMEOUT_S = 2.0
LONGEST_S = TIMEOUT_S + 10.0
"""Maximum duration in seconds on a busy machine, including the second that closing a session may
take.
"""
PATIENT_S = 30.0
WAYS = (
    "hang",
    "head",
    "comments",
    "no-json",
    "no-json-events",
    "no-rpc",
    "half",
    "bomb",
    "large",
    "large-event",
    "failing",
    "redirect",
)


@pytest.fixture(scope="module")
def hostile() -> Hostile:
    return Hostile()


@pytest.fixture(scope="module")
def url(hostile: Hostile) -> Iterator[str]:
    with listening(hostile) as url:
        yield url


@pytest.fixture(scope="module")
def inside(hostile: Hostile) -> Iterator[Hostile]:
    """Starts the server that redirects lead to."""
    inside = Hostile()
    with listening(inside) as url:
        hostile.redirects_to = f"{url}/text-result"
        yield inside


@contextlib.asynccontextmanager
async def reaching(
    *private: str, timeout_s: float = PATIENT_S, **settings: Any
) -> AsyncIterator[ToolServers]:
    outbound = Outbound(allowed_private=private, **settings)
    servers = ToolServers(outbound, timeout_s)
    try:
        # Import the library first, so that its first use delays no call.
        await asyncio.to_thread(__import__, "mcp")
        yield servers
    finally:
        await servers.close()
        outbound.close()


@pytest.fixture
async def servers() -> AsyncIterator[ToolServers]:
    async with reaching("127.0.0.1") as servers:
        yield servers


@pytest.fixture
async def hurried() -> AsyncIterator[ToolServers]:
    async with reaching("127.0.0.1", timeout_s=TIMEOUT_S) as servers:
        yield servers


def server(url: str, label: str = "odd", **fields: Any) -> McpServer:
    return McpServer(label=label, url=url, headers={}, **fields)


class TestListing:
    @pytest.mark.parametrize("way", [*WAYS, "empty-endless", "no-list", "number", "nameless"])
    async def test_that_does_not_answer_well(
        self, hurried: ToolServers, url: str, inside: Hostile, way: str
    ) -> None:
        began = time.monotonic()
        with pytest.raises(CapacityError) as caught:
            await hurried.list(server(f"{url}/{way}"), ())
        assert time.monotonic() - began < LONGEST_S
        assert caught.value.code == "tool_server_unreachable"
        assert "'odd'" in caught.value.message
        assert CANARY not in caught.value.message and "127.0.0.1" not in caught.value.message
        assert inside.requests == []

    @pytest.mark.parametrize(
        ("way", "why"),
        [
            ("deep", "nested more than 32 levels"),
            ("wide", "more than 2048 values"),
            ("many", "more than 128 tools"),
            ("endless", "more than 128 tools"),
            ("huge-number", "more than 63 bits"),
            ("long-name", "has 7000000 characters; the limit is 128"),
            ("schemas", "more than 1048576 characters together"),
        ],
    )
    async def test_too_much(self, servers: ToolServers, url: str, way: str, why: str) -> None:
        with pytest.raises(InvalidRequestError, match=why) as caught:
            await servers.list(server(f"{url}/{way}"), ())
        assert caught.value.code == "tool_server_unusable"

    async def test_m5_too_many_objects_are_not_parsed(self, hurried: ToolServers, url: str) -> None:
        with pytest.raises(CapacityError):
            await hurried.list(server(f"{url}/lists"), ())

    async def test_names_are_made_usable(self, servers: ToolServers, url: str) -> None:
        used_names = {"get_weather_", "tool"}
        tools = await servers.list(server(f"{url}/names"), used_names)
        names = [tool.name for tool in tools]
        assert len(names) == len(set(names)) == 7
        assert not used_names & set(names)
        assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
        assert [tool.tool for tool in tools][:2] == ["get weather!", "get weather?"]

    async def test_another_servers_name(self, servers: ToolServers, url: str) -> None:
        used_names: set[str] = set()
        for label, expected in (
            ("one", "get_weather"),
            ("two", "two_get_weather"),
            ("three", "three_get_weather"),
        ):
            (tool,) = await servers.list(server(f"{url}/fine", label), used_names)
            assert (tool.name, tool.tool) == (expected, "get_weather")
            used_names.add(tool.name)


class TestCalling:
    @pytest.mark.parametrize("way", WAYS)
    async def test_that_does_not_answer_well(
        self, hurried: ToolServers, url: str, inside: Hostile, way: str
    ) -> None:
        odd = server(f"{url}/{way}/call")
        await hurried.list(odd, ())
        began = time.monotonic()
        output = await hurried.call(odd, "get_weather", {"city": "Paris"})
        assert time.monotonic() - began < LONGEST_S
        assert output.is_error
        assert output.text.startswith("The tool failed: ")
        assert len(output.text) < 4096
        assert inside.requests == []

    @pytest.mark.parametrize("way", ["string-content", "number-result", "odd-block", "long"])
    async def test_wrong_result(self, servers: ToolServers, url: str, way: str) -> None:
        output = await servers.call(server(f"{url}/{way}"), "get_weather", {})
        assert output.is_error
        assert len(output.text) < MAX_OUTPUT_CHARS

    @pytest.mark.parametrize(
        ("way", "text", "is_error"),
        [
            ("text-result", TEXT, False),
            ("image", "[image, not shown]", False),
            ("structured", '{"temperature":21}', False),
            ("error-result", "no such city", True),
        ],
    )
    async def test_result(
        self, servers: ToolServers, url: str, way: str, text: str, is_error: bool
    ) -> None:
        output = await servers.call(server(f"{url}/{way}"), "get_weather", {})
        assert (output.text, output.is_error) == (text, is_error)

    async def test_m5_too_many_parts(self, servers: ToolServers, url: str) -> None:
        output = await servers.call(server(f"{url}/parts"), "get_weather", {})
        assert output.is_error
        assert "5000 parts; the limit is 4096" in output.text
        output = await servers.call(server(f"{url}/many-parts"), "get_weather", {})
        assert output.is_error
        assert len(output.text) < 1000

    async def test_m5_schema_of_a_result_is_not_matched(
        self, servers: ToolServers, url: str
    ) -> None:
        """A result is not matched against its schema. The schema's pattern would block the event
        loop practically forever.
        """
        odd = server(f"{url}/catastrophic")
        await servers.list(odd, ())
        output = await servers.call(odd, "get_weather", {})
        assert (json.loads(output.text), output.is_error) == ({"a": "a" * 40 + "!"}, False)

    async def test_arguments_that_are_no_text(self, servers: ToolServers, url: str) -> None:
        odd = server(f"{url}/text-result")
        output = await servers.call(odd, "get_weather", json.loads('{"city": "\\ud800"}'))
        assert output.is_error
        assert not (await servers.call(odd, "get_weather", {"city": "Paris"})).is_error

    async def test_servers_own_error_keeps_the_session(
        self, servers: ToolServers, url: str, hostile: Hostile
    ) -> None:
        """A server's own error keeps the session, although the library uses the same code for an
        ended session.
        """
        odd = server(f"{url}/own-error")
        for _ in range(2):
            output = await servers.call(odd, "get_weather", {})
            assert (output.text, output.is_error) == ("The tool failed: out of order", True)
        assert hostile.requests.count(("own-error", "initialize")) == 1

    async def test_slow_one_does_not_end_others(
        self, hurried: ToolServers, url: str, hostile: Hostile
    ) -> None:
        slow, quick = server(f"{url}/hang/call", "slow"), server(f"{url}/fine", "quick")
        late, fine = await asyncio.gather(
            hurried.call(slow, "get_weather", {}), hurried.call(quick, "get_weather", {})
        )
        assert (late.is_error, fine.is_error) == (True, False)
        assert "did not answer in time" in late.text

    async def test_that_dies_and_comes_back(self, servers: ToolServers) -> None:
        app = Hostile()
        with listening(app) as url:
            tool_server = server(f"{url}/fine")
            assert not (await servers.call(tool_server, "get_weather", {})).is_error
        dead = await servers.call(tool_server, "get_weather", {})
        assert dead.is_error
        with listening(app, int(url.rpartition(":")[2])):
            assert not (await servers.call(tool_server, "get_weather", {})).is_error


@pytest.mark.case(23)
class TestHosts:
    @pytest.mark.parametrize(
        "address", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0"]
    )
    async def test_inside(self, url: str, hostile: Hostile, address: str) -> None:
        before = len(hostile.requests)
        port = url.rpartition(":")[2]
        async with reaching() as servers:
            with pytest.raises(InvalidRequestError) as caught:
                await servers.list(server(f"http://{address}:{port}/fine"), ())
        assert caught.value.code == "tool_server_unusable"
        assert "TOOL_PRIVATE_HOSTS" in caught.value.message
        assert len(hostile.requests) == before

    async def test_another_port(self, url: str, hostile: Hostile, inside: Hostile) -> None:
        port = hostile.redirects_to.rpartition(":")[2].partition("/")[0]
        async with reaching(f"127.0.0.1:{port}") as servers:
            with pytest.raises(InvalidRequestError):
                await servers.list(server(f"{url}/fine"), ())

    async def test_not_among_those_allowed(self) -> None:
        resolved: list[str] = []

        async def resolve(host: str, port: int) -> list[str]:
            resolved.append(host)
            return ["10.0.0.1"]

        async with reaching(allowed_hosts=["tools.example"], resolve=resolve) as servers:
            for host in ("other.example", "tools.example"):
                with pytest.raises(InvalidRequestError, match="STOKER_TOOL_HOSTS"):
                    await servers.list(server(f"http://{host}/mcp"), ())
        assert resolved == ["tools.example"], "the other one is not even looked up"

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (socket.gaierror(socket.EAI_AGAIN, "later"), "tool_server_unreachable"),
            (socket.gaierror(socket.EAI_NONAME, "never"), "tool_server_unusable"),
        ],
    )
    async def test_that_is_not_resolved(self, error: OSError, code: str) -> None:
        """A failed lookup is temporary if no resolver answers, and permanent if the name does not
        exist.
        """

        async def resolve(host: str, port: int) -> list[str]:
            raise error

        async with reaching(resolve=resolve) as servers:
            with pytest.raises(StokerError) as caught:
                await servers.list(server("http://tools.example/mcp"), ())
        assert caught.value.code == code

    @pytest.mark.parametrize("target", ["http://10.0.0.1/", "http://169.254.169.254/latest"])
    async def test_redirect_inward(
        self, servers: ToolServers, url: str, hostile: Hostile, inside: Hostile, target: str
    ) -> None:
        previous, hostile.redirects_to = hostile.redirects_to, target
        began = time.monotonic()
        with pytest.raises((CapacityError, InvalidRequestError)):
            await servers.list(server(f"{url}/redirect"), ())
        hostile.redirects_to = previous
        # A connection to the target would have timed out.
        assert time.monotonic() - began < CONNECT_TIMEOUT_S


class TestRuns:
    def failed(self, account: Account, url: str) -> dict[str, Any]:
        finished = account.until(account.run(account.agent(tools=[mcp(url, "odd")])))
        assert finished["status"] == "failed"
        return finished["error"]

    def test_unusable_ones_fail_at_once(self, account: Account, url: str, hostile: Hostile) -> None:
        began, before = time.monotonic(), len(hostile.requests)
        error = self.failed(account, url.replace("127.0.0.1", "localhost") + "/fine")
        assert error["code"] == "tool_server_unusable"
        assert "TOOL_PRIVATE_HOSTS" in error["message"]
        assert len(hostile.requests) == before
        for way in ("many", "deep", "endless"):
            assert self.failed(account, f"{url}/{way}")["code"] == "tool_server_unusable"
        assert time.monotonic() - began < 15

    @pytest.mark.parametrize("way", ["prompt", "names", "image"])
    def test_goes_on(self, account: Account, url: str, way: str) -> None:
        prompt = FRANCE if way == "names" else "What is the weather in Paris?"
        run = account.run(account.agent(tools=[mcp(f"{url}/{way}")], max_steps=4), prompt)
        finished = account.until(run)
        assert (
            finished["status"] == "completed" or finished["error"]["code"] == "step_limit_exceeded"
        )
        for completed_call in data(account.events(run), "tool_call.completed"):
            assert completed_call["is_error"] is False

    def test_hanging_tool_is_told_to_the_model(self, account: Account, url: str) -> None:
        run = account.run(account.agent(tools=[mcp(f"{url}/hang/call")], max_steps=2))
        finished = account.until(run)
        completed = data(account.events(run), "tool_call.completed")
        assert completed and all(tool_call["is_error"] for tool_call in completed)
        assert "did not answer in time" in completed[0]["output"]
        assert finished["usage"]["seconds"] > 3

    def test_that_comes_up_later(self, account: Account, weather_tools: Tools) -> None:
        app = Hostile()
        with listening(app) as url:
            pass
        run = account.run(account.agent(tools=[mcp(f"{url}/text-result")]))
        deadline = time.monotonic() + 60
        while account.get(run)["status"] != "in_progress":
            assert time.monotonic() < deadline
        with listening(app, int(url.rpartition(":")[2])):
            assert account.until(run)["output"] == ANSWERED
        assert len(data(account.events(run), "tools.listed")) == 1

    def test_cancelled_while_it_hangs(self, account: Account, url: str) -> None:
        run = account.run(account.agent(tools=[mcp(f"{url}/comments")]))
        account.until(run, "in_progress")
        assert account.post(f"{run}/cancel", 200)["status"] == "cancelled"
        assert [event["type"] for event in account.events(run)] == ["run.created", "run.cancelled"]

    def test_nothing_of_it_is_logged(
        self, agent_server: Server, account: Account, url: str
    ) -> None:
        ways = ("no-json/call", "no-json-events/call", "string-content", "no-rpc/call")
        for way in ways:
            account.until(account.run(account.agent(tools=[mcp(f"{url}/{way}")], max_steps=1)))
        run = account.run(account.agent(tools=[mcp(f"{url}/no-json")]))
        account.until(run, "in_progress")
        account.client.delete(run).raise_for_status()
        assert CANARY not in agent_server.log.read_text()

    def test_the_server_is_well(self, agent_server: Server, account: Account) -> None:
        assert account.until(account.run(account.agent(), FRANCE))["output"] == PARIS
        account.client.get("/ready").raise_for_status()
        assert "Traceback" not in agent_server.log.read_text()
