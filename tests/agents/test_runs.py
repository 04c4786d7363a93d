"""Runs of the demo's chat model over HTTP, up to their correct answers."""

import json
import time
from typing import Any

import pytest

from tests.agents.support import (
    ANSWERED,
    ASKED,
    COUNT,
    FRANCE,
    IDLE_S,
    PARIS,
    SUNNY,
    WEATHER,
    Account,
    data,
    mcp,
    spoken,
)
from tests.deployments.support import check_error
from tests.support.server import Server
from tools.stand_ins.tool_servers import Tools

ABOUT_ANNA = "Describe Anna, who is 31 and lives in Berlin, as JSON."
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def weather(account: Account) -> str:
    """Creates an agent with a weather function and returns its path."""
    return account.agent(tools=[WEATHER])


@pytest.fixture(scope="module")
def plain(account: Account) -> str:
    return account.agent()


class TestAnswers:
    def test_plain(self, account: Account, plain: str) -> None:
        run = account.run(plain, FRANCE)
        finished = account.until(run)
        assert (finished["status"], finished["output"], finished["finish_reason"]) == (
            "completed",
            PARIS,
            "stop",
        )
        assert (finished["input"], finished["error"], finished["required_action"]) == (
            FRANCE,
            None,
            None,
        )
        assert finished["completed_at"] >= finished["created_at"]
        assert [
            event["type"] for event in account.events(run) if event["type"] != "message.delta"
        ] == [
            "run.created",
            "step.started",
            "message.completed",
            "run.completed",
        ]

    def test_function(self, account: Account, weather: str) -> None:
        run = account.run(weather)
        (call,) = account.until(run, "requires_action")["required_action"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
        answered = account.answer(run)
        assert (answered["status"], answered["required_action"]) == ("in_progress", None)
        finished = account.until(run)
        assert (finished["status"], finished["output"]) == ("completed", ANSWERED)
        events = account.events(run)
        assert [event["type"] for event in events if event["type"] != "message.delta"] == [
            "run.created",
            "step.started",
            "message.completed",
            "tool_call.started",
            "run.requires_action",
            "tool_call.completed",
            "step.started",
            "message.completed",
            "run.completed",
        ]
        assert spoken(events)[2] == ANSWERED
        (started,) = data(events, "tool_call.started")
        assert started == {
            "step": 1,
            "tool_call_id": call["id"],
            "name": "get_weather",
            "arguments": call["function"]["arguments"],
            "server_label": None,
        }
        (completed,) = data(events, "tool_call.completed")
        assert completed == {"tool_call_id": call["id"], "output": SUNNY, "is_error": False}
        assert events[-1]["data"] == {"usage": finished["usage"], "output": ANSWERED}

    def test_usage_is_that_of_the_steps(self, account: Account, weather: str) -> None:
        run = account.run(weather)
        account.answer(run)
        usage = account.until(run)["usage"]
        steps = [item["usage"] for item in data(account.events(run), "message.completed")]
        assert usage["steps"] == len(steps) == 2
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[name] == sum(item[name] for item in steps) > 0
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert 0 < usage["seconds"] < 30
        assert usage["microcredits"] > 0
        # The second step's prompt contains the first step's prompt, its answer and the output.
        body = {"model": "chat", "tools": [WEATHER], "max_tokens": 64, "temperature": 0}
        messages = [{"role": "user", "content": ASKED}]
        same = account.post("/v1/chat/completions", 200, messages=messages, **body)["usage"]
        assert steps[0]["prompt_tokens"] == same["prompt_tokens"]
        assert steps[0]["completion_tokens"] == same["completion_tokens"]

    def test_conversation(self, account: Account, plain: str) -> None:
        conversation: list[dict[str, Any]] = [
            {"role": "user", "content": "Hello!"},
            {"role": "assistant", "content": "Hello! How can I help you?"},
            {"role": "user", "content": [{"type": "text", "text": FRANCE}]},
        ]
        run = account.run(plain, conversation)
        finished = account.until(run)
        assert finished["output"] == PARIS
        assert finished["input"] == conversation
        messages = [*conversation[:2], {"role": "user", "content": FRANCE}]
        same = account.post("/v1/chat/completions", 200, model="chat", messages=messages)
        assert finished["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]

    def test_instructions_come_first(self, account: Account) -> None:
        instructions = "You are a helpful assistant."
        agent = account.agent(instructions=instructions)
        finished = account.until(account.run(agent, FRANCE))
        messages = [
            {"role": "system", "content": instructions},
            {"role": "user", "content": FRANCE},
        ]
        same = account.post(
            "/v1/chat/completions", 200, model="chat", messages=messages, max_tokens=900
        )
        assert finished["output"] == same["choices"][0]["message"]["content"]
        assert finished["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]

    def test_json_schema(self, account: Account) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        agent = account.agent(config={"response_format": form, "temperature": 0})
        finished = account.until(account.run(agent, ABOUT_ANNA))
        assert json.loads(finished["output"]) == {"name": "Anna", "age": 31, "city": "Berlin"}

    def test_a_function_and_a_schema(self, account: Account) -> None:
        """The model calls the function first and then reports its result in the schema's format."""
        schema = {
            "type": "object",
            "properties": {"conditions": {"enum": ["sunny", "rainy"]}},
            "required": ["conditions"],
        }
        form = {"name": "report", "schema": schema, "strict": True}
        config = {"response_format": {"type": "json_schema", "json_schema": form}}
        for choice in ("auto", "required"):
            more = {**config, "tool_choice": choice, "temperature": 0}
            run = account.run(account.agent(tools=[WEATHER], config=more))
            account.until(run, "requires_action")
            account.answer(run)
            finished = account.until(run)
            assert finished["status"] == "completed"
            assert json.loads(finished["output"]) == {"conditions": "sunny"}

    def test_stop_and_max_tokens(self, account: Account) -> None:
        stopped = account.run(account.agent(config={"stop": " France"}), FRANCE)
        cut = account.run(account.agent(config={"max_tokens": 3}), FRANCE)
        assert account.until(stopped)["output"] == "The capital of"
        finished = account.until(cut)
        assert (finished["status"], finished["finish_reason"]) == ("completed", "length")
        assert finished["usage"]["completion_tokens"] == 3
        assert PARIS.startswith(finished["output"])

    def test_runs_go_on_with_the_agent_as_it_was(self, account: Account) -> None:
        agent = account.agent(tools=[WEATHER])
        run = account.run(agent)
        account.until(run, "requires_action")
        body = {"tools": [], "model": "chat", "max_steps": 1, "config": {"max_tokens": 1}}
        account.client.patch(agent, json=body).raise_for_status()
        account.answer(run)
        assert account.until(run)["output"] == ANSWERED
        later = account.until(account.run(agent, FRANCE))
        assert later["usage"]["completion_tokens"] == 1


class TestServers:
    def test_tool_of_a_server(self, account: Account, weather_tools: Tools) -> None:
        tool = mcp(weather_tools.url, headers={"authorization": "Bearer secret"})
        before = len(weather_tools.cities("weather"))
        run = account.run(account.agent(tools=[tool]))
        finished = account.until(run)
        assert (finished["status"], finished["output"]) == ("completed", ANSWERED)
        assert weather_tools.cities("weather")[before:] == ["Paris"]
        events = account.events(run)
        (listed,) = data(events, "tools.listed")
        assert (listed["server_label"], [item["name"] for item in listed["tools"]]) == (
            "weather",
            ["get_weather"],
        )
        (started,) = data(events, "tool_call.started")
        assert (started["server_label"], started["name"]) == ("weather", "get_weather")
        (completed,) = data(events, "tool_call.completed")
        assert json.loads(completed["output"]) == json.loads(SUNNY)
        assert completed["is_error"] is False

    def test_both_kinds(self, account: Account, weather_tools: Tools) -> None:
        time_of_day = {
            "name": "get_time",
            "description": "Tell the current time.",
            "parameters": {},
        }
        function = {"type": "function", "function": time_of_day}
        agent = account.agent(tools=[function, mcp(weather_tools.url)])
        weather, clock = account.run(agent), account.run(agent, "What time is it?")
        (call,) = account.until(clock, "requires_action")["required_action"]["tool_calls"]
        assert call["function"]["name"] == "get_time"
        account.answer(clock, '{"time": "12:30"}')
        assert "12:30" in account.until(clock)["output"]
        assert account.until(weather)["output"] == ANSWERED

    def test_name_of_a_function_is_the_functions(
        self, account: Account, weather_tools: Tools
    ) -> None:
        agent = account.agent(
            tools=[WEATHER, mcp(weather_tools.url, "one"), mcp(weather_tools.url, "two")]
        )
        before = len(weather_tools.calls)
        run = account.run(agent)
        waiting = account.until(run, "requires_action", "completed")
        names = [
            listing["tools"][0]["name"] for listing in data(account.events(run), "tools.listed")
        ]
        assert names == ["one_get_weather", "two_get_weather"]
        if waiting["status"] == "requires_action":
            assert len(weather_tools.calls) == before

    def test_tool_that_fails(self, account: Account, weather_tools: Tools) -> None:
        run = account.run(account.agent(tools=[mcp(weather_tools.failing_url)], max_steps=3))
        finished = account.until(run)
        completed = data(account.events(run), "tool_call.completed")
        assert completed and all(tool_call["is_error"] for tool_call in completed)
        assert "no such city" in completed[0]["output"]
        assert (
            finished["status"] == "completed" or finished["error"]["code"] == "step_limit_exceeded"
        )

    def test_only_allowed_tools(self, account: Account, weather_tools: Tools) -> None:
        tool = mcp(weather_tools.url, allowed_tools=["another"])
        run = account.run(account.agent(tools=[tool]), FRANCE)
        assert account.until(run)["output"] == PARIS
        assert data(account.events(run), "tools.listed") == [
            {"server_label": "weather", "tools": []}
        ]


class TestToolOutputs:
    def test_of_another_run(self, account: Account, weather: str) -> None:
        first, second = account.run(weather), account.run(weather)
        account.until(first, "requires_action")
        (call,) = account.until(second, "requires_action")["required_action"]["tool_calls"]
        outputs = [{"tool_call_id": call["id"], "output": SUNNY}]
        answer = account.client.post(f"{first}/tool-outputs", json={"tool_outputs": outputs})
        field = "tool_outputs[0].tool_call_id"
        check_error(answer, 400, "InvalidRequestError", "invalid_request", field)
        assert account.get(first)["status"] == "requires_action"
        assert account.until(account.answer(second) and second)["output"] == ANSWERED

    def test_twice(self, account: Account, weather: str) -> None:
        run = account.run(weather)
        (call,) = account.until(run, "requires_action")["required_action"]["tool_calls"]
        outputs = [{"tool_call_id": call["id"], "output": SUNNY}]
        twice = account.client.post(f"{run}/tool-outputs", json={"tool_outputs": outputs * 2})
        field = "tool_outputs[1].tool_call_id"
        check_error(twice, 400, "InvalidRequestError", "invalid_request", field)
        body = {"tool_outputs": outputs}
        account.post(f"{run}/tool-outputs", 200, **body)
        again = account.client.post(f"{run}/tool-outputs", json=body)
        check_error(again, 409, "ConflictError", "run_not_waiting")
        assert account.until(run)["output"] == ANSWERED
        again = account.client.post(f"{run}/tool-outputs", json=body)
        check_error(again, 409, "ConflictError", "run_not_waiting")
        assert len(data(account.events(run), "tool_call.completed")) == 1

    def test_one_by_one(self, account: Account, weather: str) -> None:
        run = account.run(weather, "What is the weather in Paris and in Rome?")
        calls = account.until(run, "requires_action")["required_action"]["tool_calls"]
        assert [json.loads(tool_call["function"]["arguments"])["city"] for tool_call in calls] == [
            "Paris",
            "Rome",
        ]
        first, second = ({"tool_call_id": tool_call["id"], "output": SUNNY} for tool_call in calls)
        # Send the last output first. The model still receives the outputs in the order of its
        # calls.
        current = account.post(f"{run}/tool-outputs", 200, tool_outputs=[second])
        assert current["status"] == "requires_action"
        assert current["required_action"]["tool_calls"] == calls[:1]
        again = account.client.post(f"{run}/tool-outputs", json={"tool_outputs": [second]})
        check_error(
            again,
            400,
            "InvalidRequestError",
            "invalid_request",
            "tool_outputs[0].tool_call_id",
        )
        account.post(f"{run}/tool-outputs", 200, tool_outputs=[first])
        output = account.until(run)["output"]
        assert output.index("Paris") < output.index("Rome")

    def test_idempotency_key(self, account: Account, weather: str) -> None:
        run = account.run(weather)
        (call,) = account.until(run, "requires_action")["required_action"]["tool_calls"]
        body = {"tool_outputs": [{"tool_call_id": call["id"], "output": SUNNY}]}
        headers = {"idempotency-key": "outputs"}
        answers = [
            account.client.post(f"{run}/tool-outputs", json=body, headers=headers) for _ in "12"
        ]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        assert answers[1].headers["idempotency-replayed"] == "true"
        assert account.until(run)["output"] == ANSWERED


class TestLimits:
    def ended(self, account: Account, **agent: Any) -> dict[str, Any]:
        """Checks a run that requests the weather but has reached a limit. The run fails without
        requesting tool outputs.
        """
        run = account.run(account.agent(tools=[WEATHER], **agent))
        finished = account.until(run)
        assert (finished["status"], finished["output"]) == ("failed", None)
        assert finished["usage"]["steps"] == 1
        *before, last = account.events(run)
        assert (last["type"], last["data"]["error"]) == ("run.failed", finished["error"])
        assert before[-1]["type"] == "message.completed"
        return finished

    def test_steps(self, account: Account) -> None:
        finished = self.ended(account, max_steps=1)
        assert finished["error"]["code"] == "step_limit_exceeded"

    def test_tokens(self, account: Account) -> None:
        finished = self.ended(account, config={"max_total_tokens": 40})
        assert finished["error"]["code"] == "token_limit_exceeded"
        assert str(finished["usage"]["total_tokens"]) in finished["error"]["message"]

    def test_tokens_cut_off_an_answer(self, account: Account) -> None:
        run = account.run(account.agent(config={"max_total_tokens": 5}), COUNT)
        finished = account.until(run)
        assert (finished["status"], finished["finish_reason"]) == ("completed", "length")
        assert finished["usage"]["completion_tokens"] == 5

    def test_credits(self, account: Account) -> None:
        finished = self.ended(account, config={"max_credits": 1e-6})
        assert finished["error"]["code"] == "cost_limit_exceeded"
        assert finished["usage"]["microcredits"] >= 1

    def test_time(self, account: Account) -> None:
        agent = account.agent(config={"timeout_s": 0.05})
        with account.slowed():
            run = account.run(agent, COUNT)
            finished = account.until(run)
            account.wait_idle(IDLE_S)
        assert (finished["status"], finished["error"]["code"]) == ("failed", "time_limit_exceeded")
        assert finished["usage"]["seconds"] >= 0.05
        assert "message.completed" not in [event["type"] for event in account.events(run)]

    def test_waiting_is_no_time_at_work(self, account: Account) -> None:
        # The timeout is twice as long as the two steps take on a shared machine.
        run = account.run(account.agent(tools=[WEATHER], config={"timeout_s": 6}))
        account.until(run, "requires_action")
        time.sleep(6.1)
        account.answer(run)
        assert account.until(run)["output"] == ANSWERED

    def test_time_ends_a_tool(self, account: Account, weather_tools: Tools) -> None:
        weather_tools.release.clear()
        agent = account.agent(tools=[mcp(weather_tools.slow_url)], config={"timeout_s": 1})
        began = time.monotonic()
        finished = account.until(account.run(agent))
        weather_tools.release.set()
        assert finished["error"]["code"] == "time_limit_exceeded"
        # The tool itself runs for a minute.
        assert time.monotonic() - began < 30


class TestCancel:
    def test_at_once(self, account: Account, plain: str) -> None:
        with account.slowed():
            run = account.run(plain, COUNT)
            cancelled = account.post(f"{run}/cancel", 200)
            assert (cancelled["status"], cancelled["output"]) == ("cancelled", None)
            account.wait_idle(IDLE_S)
        assert account.events(run)[-1]["type"] == "run.cancelled"

    def test_while_it_speaks(self, account: Account, plain: str) -> None:
        with account.slowed():
            run = account.run(plain, COUNT)
            stream = account.stream(run)
            assert any(event["type"] == "message.delta" for event in stream)
            cancelled = account.post(f"{run}/cancel", 200)
            assert cancelled["status"] == "cancelled"
            account.wait_idle(IDLE_S)
        assert [event["type"] for event in stream][-1] == "run.cancelled"
        before = account.events(run)
        assert "message.completed" not in [event["type"] for event in before]
        again = account.post(f"{run}/cancel", 200)
        assert again == cancelled == account.get(run)
        assert account.events(run) == before

    def test_while_it_waits(self, account: Account, weather: str) -> None:
        run = account.run(weather)
        (call,) = account.until(run, "requires_action")["required_action"]["tool_calls"]
        cancelled = account.post(f"{run}/cancel", 200)
        assert (cancelled["status"], cancelled["required_action"]) == ("cancelled", None)
        outputs = [{"tool_call_id": call["id"], "output": SUNNY}]
        late = account.client.post(f"{run}/tool-outputs", json={"tool_outputs": outputs})
        check_error(late, 409, "ConflictError", "run_not_waiting")

    def test_while_a_tool_runs(self, account: Account, weather_tools: Tools) -> None:
        weather_tools.release.clear()
        run = account.run(account.agent(tools=[mcp(weather_tools.slow_url)]))
        assert any(event["type"] == "tool_call.started" for event in account.stream(run))
        account.post(f"{run}/cancel", 200)
        weather_tools.release.set()
        assert data(account.events(run), "tool_call.completed") == []

    def test_of_one_that_has_ended(self, account: Account, plain: str) -> None:
        run = account.run(plain, FRANCE)
        before = account.until(run)
        answer = account.client.post(f"{run}/cancel")
        check_error(answer, 409, "ConflictError", "run_ended")
        assert account.get(run) == before


class TestKeys:
    def key(self, account: Account, **fields: Any) -> dict[str, Any]:
        return account.post("/v1/api-keys", scope="account", **fields)

    @pytest.mark.fault("e5")
    def test_revoked_key_ends_its_runs(self, agent_server: Server, account: Account) -> None:
        agent, made = account.agent(tools=[WEATHER]), self.key(account)
        with agent_server.client(made["key"]) as client:
            run = Account(client, account.deployment_id).run(agent)
        account.until(run, "requires_action")
        account.client.delete(f"/v1/api-keys/{made['id']}").raise_for_status()
        account.answer(run)
        finished = account.until(run)
        assert (finished["status"], finished["error"]["code"]) == ("failed", "invalid_api_key")

    def test_step_waits_for_its_turn(
        self, agent_server: Server, account: Account, plain: str
    ) -> None:
        # One request becomes available every six seconds, so even a slow machine uses up all ten.
        made = self.key(account, requests_per_minute=10)
        with agent_server.client(made["key"]) as client:
            for _ in range(9):
                client.get("/v1/models").raise_for_status()
            run = Account(client, account.deployment_id).run(plain, FRANCE)
        finished = account.until(run)
        assert (finished["status"], finished["output"]) == ("completed", PARIS)
        assert finished["usage"]["seconds"] > 1

    def test_account_without_credit(self, agent_server: Server, other: Account) -> None:
        agent, waiting = other.agent(), other.run(other.agent(tools=[WEATHER]))
        other.until(waiting, "requires_action")
        path = f"/v1/accounts/{other.client.account_id}/credits"  # type: ignore[attr-defined]
        with agent_server.client(agent_server.operator_key) as operator:
            take = {"amount_microcredits": -2_000_000_000_000, "correction": True}
            operator.post(path, json=take).raise_for_status()
            refused = other.client.post(f"{agent}/runs", json={"input": FRANCE})
            check_error(refused, 402, "InsufficientCreditsError", "insufficient_credits")
            assert other.get(f"{agent}/runs")["data"] == []
            other.answer(waiting)
            finished = other.until(waiting)
            operator.post(path, json={"amount_microcredits": 2_000_000_000_000}).raise_for_status()
        assert (finished["status"], finished["error"]["code"]) == ("failed", "insufficient_credits")
        assert other.until(other.run(agent, FRANCE))["output"] == PARIS

    def test_operator_for_an_account(
        self, agent_server: Server, account: Account, plain: str
    ) -> None:
        with agent_server.client(agent_server.operator_key) as operator:
            operator.headers["x-stoker-account"] = account.client.account_id  # type: ignore[attr-defined]
            run = Account(operator, account.deployment_id).run(plain, FRANCE)
        assert account.until(run)["output"] == PARIS
