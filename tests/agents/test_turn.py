"""Handling of model calls that a real model cannot be made to produce."""

from typing import Any, cast

import pytest

from stoker.store import db
from stoker.store.tables.agents import Run
from stoker.store.tables.usage import Price
from stoker.workloads.agents import events
from stoker.workloads.agents.costs import charge
from stoker.workloads.agents.events import JournalEvent
from stoker.workloads.agents.journal import JournalWriter
from stoker.workloads.agents.outbound import Outbound
from stoker.workloads.agents.tool_servers import ToolServers
from stoker.workloads.agents.transcript import McpServer, RunInput, RunTranscript
from stoker.workloads.agents.work import Turn
from tests.agents.support import FRANCE, SUNNY, WEATHER
from tools.stand_ins.tool_servers import Tools

NOWHERE = "http://127.0.0.1:1/mcp"
LISTED = {
    "name": "get_time",
    "tool": "get_weather",
    "description": None,
    "parameters": {"type": "object"},
}


def call(number: int, name: str, arguments: str = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def asked(url: str = NOWHERE) -> RunInput:
    return RunInput(
        input=FRANCE,
        instructions="Be brief.",
        functions=[WEATHER],
        servers=[McpServer(label="time", url=url, headers={})],
        max_steps=4,
        config={},
    )


def transcript(
    *history: tuple[str, dict[str, Any]], url: str = "http://127.0.0.1:1/"
) -> RunTranscript:
    recorded = [
        JournalEvent(number, name, data, db.now())
        for number, (name, data) in enumerate(history, start=1)
    ]
    return RunTranscript.read(asked(url), recorded)


def called(*calls: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    message = {"content": None, "tool_calls": [*calls]}
    return [
        (events.CREATED, {}),
        (events.TOOLS_LISTED, {"server_label": "time", "tools": [LISTED]}),
        (events.STEP_STARTED, {"step": 1}),
        (
            events.MESSAGE_COMPLETED,
            {"step": 1, "message": message, "finish_reason": "tool_calls", "usage": {}},
        ),
    ]


class Notes:
    """Replacement for a writer. Records the added events and how many of them each commit made
    durable.
    """

    def __init__(self) -> None:
        self.added: list[tuple[str, dict[str, Any]]] = []
        self.durable = 0

    def add(self, name: str, data: dict[str, Any]) -> None:
        self.added.append((name, data))

    def set(self, values: Any) -> None:
        """Does nothing: counts are tested over HTTP."""

    async def commit(self) -> None:
        self.hurry()

    def hurry(self) -> None:
        self.durable = len(self.added)


def turn(notes: Notes, found: RunTranscript) -> Turn:
    servers = ToolServers(Outbound(allowed_private=["127.0.0.1"]), 5)
    return Turn(
        cast("Any", None),
        Run(steps=1, prompt_tokens=0, completion_tokens=0, worked_ms=0, microcredits=0, carry=0),
        found,
        cast("JournalWriter", notes),
        servers,
        price=cast("Any", None),
    )


class TestCalls:
    async def test_of_no_tool(self) -> None:
        notes, history = Notes(), transcript(*called(call(1, "launch_rockets")))
        assert await turn(notes, history)._settle() == []
        ((name, data),) = notes.added
        assert (name, data["is_error"]) == (events.CALL_COMPLETED, True)
        assert data["output"] == "There is no tool 'launch_rockets'."
        assert history.messages[-1] == {
            "role": "tool",
            "tool_call_id": "call_1",
            "content": data["output"],
        }
        assert history.calls == []

    @pytest.mark.parametrize("arguments", ["[1]", "{", '"a"', "[" * 100_000, "null"])
    async def test_with_arguments_that_are_no_object(self, arguments: str) -> None:
        notes, history = Notes(), transcript(*called(call(1, "get_time", arguments)))
        assert await turn(notes, history)._settle() == []
        ((name, data),) = notes.added
        assert (name, data["is_error"]) == (events.CALL_COMPLETED, True)
        assert data["output"] == "The arguments are not a JSON object."

    @pytest.mark.parametrize("finish", ["length", "stop"])
    async def test_that_was_cut_off(self, finish: str) -> None:
        """An incomplete call is executed neither by a tool server nor by the run's owner. Complete
        calls are executed.
        """
        calls = call(1, "get_weather", '{"city": "Paris"}'), call(2, "get_weather", '{"city": "')
        history = called(*calls)
        history[-1][1]["finish_reason"] = finish
        notes, past = Notes(), transcript(*history)
        assert [pending.id for pending in await turn(notes, past)._settle()] == ["call_1"]
        (first, data), (second, _) = notes.added
        assert (first, data["tool_call_id"]) == (events.CALL_COMPLETED, "call_2")
        assert data["is_error"]
        assert second == events.CALL_STARTED

    async def test_that_was_begun_before(self) -> None:
        history = [
            *called(call(1, "get_time")),
            (events.CALL_STARTED, {"tool_call_id": "call_1"}),
        ]
        notes, past = Notes(), transcript(*history)
        assert await turn(notes, past)._settle() == []
        ((name, data),) = notes.added
        assert name == events.CALL_COMPLETED
        assert data["is_error"] is data["is_interrupted"] is True

    async def test_of_all_kinds(self, weather_tools: Tools) -> None:
        """Calls to the owner's functions wait while the others are answered. The model receives all
        outputs in the order of calls.
        """
        calls = (
            call(1, "get_weather", '{"city": "Paris"}'),
            call(2, "get_time", '{"city": "Rome"}'),
            call(3, "nothing"),
        )
        notes, history = Notes(), transcript(*called(*calls), url=weather_tools.url)
        current = turn(notes, history)
        waiting = await current._settle()
        await current._servers.close()
        assert [each.id for each in waiting] == ["call_1"]
        assert weather_tools.cities("weather")[-1] == "Rome"
        assert [each.id for each in history.calls if each.output is None] == ["call_1"]
        assert history.messages[-1]["role"] == "assistant", "the model waits for all of them"
        history.note(events.CALL_COMPLETED, {"tool_call_id": "call_1", "output": SUNNY})
        assert [current["tool_call_id"] for current in history.messages[-3:]] == [
            "call_1",
            "call_2",
            "call_3",
        ]

    async def test_are_durable_before_they_are_made(self, weather_tools: Tools) -> None:
        notes = Notes()
        history = transcript(
            *called(call(1, "get_time", '{"city": "Oslo"}')), url=weather_tools.url
        )
        current_turn = turn(notes, history)
        made = current_turn._servers.call

        async def checked(*given: Any) -> Any:
            assert [name for name, _ in notes.added[: notes.durable]] == [events.CALL_STARTED]
            return await made(*given)

        current_turn._servers.call = checked  # type: ignore[method-assign]
        assert await current_turn._settle() == []
        await current_turn._servers.close()
        assert [name for name, _ in notes.added] == [events.CALL_STARTED, events.CALL_COMPLETED]
        assert notes.durable == 2
        assert weather_tools.cities("weather")[-1] == "Oslo"


class TestCost:
    @pytest.mark.parametrize(
        ("mib_ms", "steps", "cost"), [(1, 1, 1), (3600, 1024, 1), (4000, 1024, 2)]
    )
    def test_many_small_steps_cost_what_they_hold(self, mib_ms: int, steps: int, cost: int) -> None:
        run, price = Run(microcredits=0, carry=0), Price(memory=1000, storage=0)
        for _ in range(steps):
            charge(run, mib_ms, price)
        assert run.cost == cost

    def test_of_nothing(self) -> None:
        run = Run(microcredits=0, carry=0)
        charge(run, 0, Price(memory=1000, storage=0))
        assert run.cost == 0


class TestTranscript:
    def test_of_nothing(self) -> None:
        history = transcript()
        assert history.messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": FRANCE},
        ]
        assert (history.answer, history.steps, history.calls, history.last) == (None, 0, [], 0)

    def test_of_an_answer(self) -> None:
        message = {"content": "Paris."}
        history = transcript(
            (events.STEP_STARTED, {"step": 1}),
            (
                events.MESSAGE_COMPLETED,
                {"step": 1, "message": message, "finish_reason": "stop", "usage": {}},
            ),
        )
        assert (history.answer, history.finish_reason, history.last) == ("Paris.", "stop", 2)

    def test_of_a_step_that_was_not_completed(self) -> None:
        history = transcript((events.STEP_STARTED, {"step": 1}))
        assert (history.attempted, history.steps, history.answer) == (1, 0, None)
