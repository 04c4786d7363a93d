"""Agents are created, listed, changed, deleted and rejected."""

from typing import Any

import httpx
import pytest

from tests.agents.support import AGENTS, FRANCE, PARIS, SUNNY, WEATHER, Account, mcp
from tests.deployments.support import check_error, key_for
from tests.support.server import Server

URL = "https://tools.example/mcp"


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", **fields}}


class TestCreate:
    def test_defaults(self, account: Account) -> None:
        made = account.post(AGENTS, name="helper", model="chat")
        assert made["id"].startswith("agent_")
        assert made["created_at"] == made["updated_at"]
        assert made == {
            "id": made["id"],
            "object": "agent",
            "name": "helper",
            "model": "chat",
            "instructions": None,
            "tools": [],
            "max_steps": 16,
            "config": {},
            "created_at": made["created_at"],
            "updated_at": made["updated_at"],
        }
        assert account.get(f"{AGENTS}/{made['id']}") == made

    def test_everything_given(self, account: Account) -> None:
        schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
        config = {
            "temperature": 0.5,
            "top_p": 0.5,
            "top_k": 5,
            "seed": 7,
            "stop": ["a", "b"],
            "max_tokens": 10,
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning_effort": "low",
            "response_format": {"type": "json_schema", "json_schema": schema},
            "max_total_tokens": 100,
            "timeout_s": 5.0,
            "max_credits": 0.5,
        }
        server = mcp(URL, headers={"authorization": "Bearer secret-42"}, allowed_tools=["x"])
        body = {
            "name": "helper",
            "model": "chat",
            "instructions": "Be brief.",
            "tools": [WEATHER, server],
            "max_steps": 3,
            "config": config,
        }
        made = account.post(AGENTS, **body)
        shown = server | {"headers": {"authorization": "***"}}
        assert made["tools"] == [WEATHER, shown]
        assert "secret-42" not in str(made)
        for name in ("name", "model", "instructions", "max_steps", "config"):
            assert made[name] == body[name]
        assert account.get(f"{AGENTS}/{made['id']}") == made

    def test_flat_function(self, account: Account) -> None:
        flat = {"type": "function", **WEATHER["function"]}
        made = account.post(AGENTS, name="helper", model="chat", tools=[flat])
        assert made["tools"] == [WEATHER]

    def test_idempotency_key(self, account: Account) -> None:
        headers, body = {"idempotency-key": "one"}, {"name": "once", "model": "chat"}
        first, again = (account.client.post(AGENTS, json=body, headers=headers) for _ in "12")
        assert first.status_code == again.status_code == 201
        assert first.json() == again.json()
        assert again.headers["idempotency-replayed"] == "true"
        other = account.client.post(AGENTS, json=body | {"name": "two"}, headers=headers)
        check_error(other, 409, "ConflictError", "idempotency_mismatch", "Idempotency-Key")

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"unknown": 1}, "unknown"),
            ({"name": None}, "name"),
            ({"name": ""}, "name"),
            ({"name": "a\nb"}, "name"),
            ({"name": "a" * 129}, "name"),
            ({"model": None}, "model"),
            ({"model": ""}, "model"),
            ({"instructions": 1}, "instructions"),
            ({"instructions": "a\0b"}, "instructions"),
            ({"max_steps": 0}, "max_steps"),
            ({"max_steps": 1001}, "max_steps"),
            ({"max_steps": 1.5}, "max_steps"),
            ({"config": {"unknown": 1}}, "config.unknown"),
            ({"config": {"temperature": 3}}, "config.temperature"),
            ({"config": {"max_credits": 0}}, "config.max_credits"),
            ({"config": {"timeout_s": -1}}, "config.timeout_s"),
            ({"config": {"max_total_tokens": 0}}, "config.max_total_tokens"),
            ({"config": {"tool_choice": "sometimes"}}, "config.tool_choice"),
            ({"config": {"stop": ["a"] * 17}}, "config.stop"),
            ({"tools": [1]}, "tools[0]"),
            ({"tools": [{"type": "search"}]}, "tools[0]"),
            ({"tools": [WEATHER] * 129}, "tools"),
            ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
            ({"tools": [function(name="a b")]}, "tools[0].function.name"),
            ({"tools": [function(parameters=deep(40))]}, "tools[0].function.parameters"),
            (
                {"tools": [WEATHER, function(parameters={"enum": ["a"] * 5000})]},
                "tools[1].function.parameters",
            ),
            (
                {"tools": [function(parameters={"description": "a" * 70_000})]},
                "tools[0].function.parameters",
            ),
            (
                {
                    "config": {
                        "response_format": {
                            "type": "json_schema",
                            "json_schema": {"name": "a", "schema": deep(40)},
                        }
                    }
                },
                "config.response_format.json_schema.schema",
            ),
            ({"tools": [mcp(URL), mcp(URL)]}, "tools[1].server_label"),
            ({"tools": [mcp(URL, "a b")]}, "tools[0].server_label"),
            ({"tools": [mcp(URL, unknown=1)]}, "tools[0].unknown"),
            ({"tools": [mcp(URL, headers={"a": "***"})]}, "tools[0].headers"),
            ({"tools": [mcp(URL, headers={"Host": "a"})]}, "tools[0].headers"),
            ({"tools": [mcp(URL, headers={"content-length": "1"})]}, "tools[0].headers"),
            ({"tools": [mcp(URL, headers={"a": "b\r\nc: d"})]}, "tools[0].headers.a"),
        ],
    )
    def test_bad_field(self, account: Account, fields: dict[str, Any], param: str) -> None:
        before = account.get(AGENTS)
        answer = account.client.post(AGENTS, json={"name": "bad", "model": "chat"} | fields)
        check_error(answer, 400, "InvalidRequestError", "invalid_request", param)
        assert account.get(AGENTS) == before

    @pytest.mark.case(23)
    @pytest.mark.parametrize(
        "url",
        [
            "tools.example/mcp",
            "file:///etc/passwd",
            "ftp://tools.example/",
            "http://",
            "https://user:secret@tools.example/",
            "https://tools.example/a b",
            "https://tools.example:99999/",
            "https://tools\x00.example/",
            "https://" + "a" * 2048 + ".example/",
        ],
    )
    def test_bad_url(self, account: Account, url: str) -> None:
        body = {"name": "bad", "model": "chat", "tools": [WEATHER, mcp(url)]}
        answer = account.client.post(AGENTS, json=body)
        check_error(answer, 400, "InvalidRequestError", "invalid_request", "tools[1].server_url")
        assert "secret" not in answer.text

    @pytest.mark.parametrize("value", ['"\\ud800"', str(2**63), f"-{10**30}"])
    @pytest.mark.parametrize(
        ("field", "form"),
        [
            (
                "tools[0].function.parameters",
                '"tools":[{"type":"function","function":{"name":"a","parameters":{"x":%s}}}]',
            ),
            (
                "config.response_format.json_schema.schema",
                '"config":{"response_format":{"type":"json_schema",'
                '"json_schema":{"name":"a","schema":{"const":%s}}}}',
            ),
        ],
    )
    def test_what_cannot_be_carried(
        self, account: Account, field: str, form: str, value: str
    ) -> None:
        """Half a surrogate pair is not valid text, and some numbers do not fit into a message. Both
        are rejected.
        """
        answer = account.client.post(
            AGENTS,
            content=f'{{"name":"a","model":"chat",{form % value}}}',
            headers={"content-type": "application/json"},
        )
        check_error(answer, 400, "InvalidRequestError", "invalid_request", field)

    def test_model_that_is_no_chat_model(self, account: Account) -> None:
        answer = account.client.post(AGENTS, json={"name": "a", "model": "ner"})
        check_error(answer, 400, "EndpointNotSupportedError", "endpoint_not_supported")

    def test_unknown_model(self, account: Account) -> None:
        answer = account.client.post(AGENTS, json={"name": "a", "model": "nothing"})
        check_error(answer, 404, "ModelNotFoundError", "model_not_found", "model")


class TestList:
    def test_pages(self, agent_server: Server) -> None:
        with agent_server.account("lists") as client:
            fresh = Account(client, "")
            assert fresh.get(AGENTS) == {
                "object": "list",
                "data": [],
                "first_id": None,
                "last_id": None,
                "has_more": False,
            }

    def test_both_ways(self, account: Account) -> None:
        made = [account.agent().rpartition("/")[2] for _ in range(3)]
        newest = account.get(AGENTS, limit=2)
        assert [item["id"] for item in newest["data"]] == made[:0:-1]
        assert newest["has_more"] is True
        later = account.get(AGENTS, order="asc", after=made[0])
        assert [item["id"] for item in later["data"]] == made[1:]

    def test_runs(self, account: Account) -> None:
        agent, another = account.agent(tools=[WEATHER]), account.agent()
        made = [account.run(agent, FRANCE).rpartition("/")[2] for _ in range(3)]
        account.run(another, FRANCE)
        assert [item["id"] for item in account.get(f"{agent}/runs")["data"]] == made[::-1]
        page = account.get(f"{agent}/runs", order="asc", limit=2)
        assert [item["id"] for item in page["data"]] == made[:2]
        assert page["has_more"] is True

    @pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 101}, {"order": "up"}])
    def test_bad_page(self, account: Account, params: dict[str, Any]) -> None:
        (name,) = params
        answer = account.client.get(AGENTS, params=params)
        check_error(answer, 400, "InvalidRequestError", "invalid_request", name)


class TestUpdate:
    def test_what_is_not_given_stays(self, account: Account) -> None:
        server = mcp(URL, headers={"x": "y"})
        agent = account.agent(instructions="Be brief.", tools=[server], max_steps=2)
        before = account.get(agent)
        after = account.client.patch(agent, json={"name": "new"}).raise_for_status().json()
        assert after["updated_at"] > before["updated_at"]
        assert after == before | {"name": "new", "updated_at": after["updated_at"]}
        cleared = account.client.patch(agent, json={"instructions": None}).json()
        assert cleared["instructions"] is None
        changed = account.client.patch(agent, json={"tools": [], "config": {"seed": 1}}).json()
        assert (changed["tools"], changed["config"]) == ([], {"seed": 1})
        assert account.get(agent) == changed

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"unknown": 1}, "unknown"),
            ({"id": "agent_1"}, "id"),
            ({"max_steps": 0}, "max_steps"),
            ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
            ({"tools": [mcp("ftp://a/")]}, "tools[0].server_url"),
        ],
    )
    def test_bad_field(self, account: Account, fields: dict[str, Any], param: str) -> None:
        agent = account.agent()
        before = account.get(agent)
        answer = account.client.patch(agent, json=fields)
        check_error(answer, 400, "InvalidRequestError", "invalid_request", param)
        assert account.get(agent) == before

    @pytest.mark.parametrize("name", ["name", "model", "tools", "max_steps", "config"])
    def test_null(self, account: Account, name: str) -> None:
        answer = account.client.patch(account.agent(), json={name: None})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]

    def test_bad_model(self, account: Account) -> None:
        agent = account.agent()
        wrong = account.client.patch(agent, json={"model": "ner"})
        check_error(wrong, 400, "EndpointNotSupportedError", "endpoint_not_supported")
        unknown = account.client.patch(agent, json={"model": "nothing"})
        check_error(unknown, 404, "ModelNotFoundError", "model_not_found", "model")


class TestDelete:
    def test_with_its_runs(self, account: Account) -> None:
        agent = account.agent(tools=[WEATHER])
        runs = [account.run(agent), account.run(agent, FRANCE)]
        account.until(runs[0], "requires_action")
        response = account.client.delete(agent)
        assert response.json() == {
            "id": agent.rpartition("/")[2],
            "object": "agent.deleted",
            "deleted": True,
        }
        for path in (agent, f"{agent}/runs", *runs, f"{runs[0]}/events"):
            assert account.client.get(path).status_code == 404
        assert account.client.delete(agent).status_code == 404


class TestCreateRun:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "input"),
            ({"input": ""}, "input"),
            ({"input": []}, "input"),
            ({"input": 1}, "input"),
            ({"input": FRANCE, "model": "chat"}, "model"),
            ({"input": [{"role": "nobody", "content": "a"}]}, "input[0]"),
            ({"input": [{"role": "user"}]}, "input[0].content"),
            (
                {"input": [{"role": "tool", "tool_call_id": "a", "content": "b"}]},
                "input[0].tool_call_id",
            ),
        ],
    )
    def test_bad_input(self, account: Account, body: dict[str, Any], param: str) -> None:
        agent = account.agent()
        answer = account.client.post(f"{agent}/runs", json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "invalid_request"), error
        assert error["param"] and error["param"].startswith(param)
        assert account.get(f"{agent}/runs")["data"] == []

    def test_idempotency_key(self, account: Account) -> None:
        agent, headers = account.agent(), {"idempotency-key": "run"}
        body = {"input": FRANCE}
        first, again = (
            account.client.post(f"{agent}/runs", json=body, headers=headers) for _ in "12"
        )
        assert first.status_code == again.status_code == 201
        assert first.json() == again.json()
        assert len(account.get(f"{agent}/runs")["data"]) == 1
        other = account.client.post(f"{agent}/runs", json={"input": "a"}, headers=headers)
        check_error(other, 409, "ConflictError", "idempotency_mismatch", "Idempotency-Key")
        # The stored answer is erased with the run.
        run = f"{agent}/runs/{first.json()['id']}"
        account.client.delete(run).raise_for_status()
        anew = account.client.post(f"{agent}/runs", json=body, headers=headers)
        assert anew.json()["id"] != first.json()["id"]

    def test_unknown_agent(self, account: Account) -> None:
        answer = account.client.post(f"{account.agent()}x/runs", json={"input": FRANCE})
        check_error(answer, 404, "NotFoundError", "agent_not_found")


@pytest.fixture(scope="module")
def run(account: Account) -> str:
    run = account.run(account.agent(tools=[WEATHER]))
    account.until(run, "requires_action")
    return run


@pytest.mark.case(24)
class TestStrangers:
    """Every request for an agent or a run of another account is answered as if it did not exist."""

    RUN_ROUTES = (
        ("GET", "", None),
        ("GET", "/events", None),
        ("POST", "/cancel", None),
        (
            "POST",
            "/tool-outputs",
            {"tool_outputs": [{"tool_call_id": "call_1", "output": SUNNY}]},
        ),
        ("DELETE", "", None),
    )
    AGENT_ROUTES = (
        ("GET", "", None),
        ("PATCH", "", {"name": "mine"}),
        ("POST", "/runs", {"input": FRANCE}),
        ("GET", "/runs", None),
        ("DELETE", "", None),
    )

    @staticmethod
    def same(client: httpx.Client, method: str, there: str, nowhere: str, body: Any) -> None:
        answers = [
            client.request(method, path, json=body, headers={"x-request-id": "same"})
            for path in (there, nowhere)
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content
        names = [sorted(set(answer.headers) - {"date"}) for answer in answers]
        assert names[0] == names[1]

    @pytest.mark.parametrize(("method", "path", "body"), RUN_ROUTES)
    def test_run(
        self, account: Account, other: Account, run: str, method: str, path: str, body: Any
    ) -> None:
        agent, _, run_id = run.partition("/runs/")
        nobodys = f"{agent}/runs/run_{'0' * 26}"
        self.same(other.client, method, f"{run}{path}", f"{nobodys}{path}", body)
        # The run is not found under another agent either, of any account.
        mine, other_agent = account.agent(), other.agent()
        for client, at in ((other.client, other_agent), (account.client, mine)):
            wrong = f"{at}/runs/{run_id}{path}"
            self.same(client, method, wrong, f"{at}/runs/run_{'0' * 26}{path}", body)
        assert account.get(run)["status"] == "requires_action"

    @pytest.mark.parametrize(("method", "path", "body"), AGENT_ROUTES)
    def test_agent(
        self, account: Account, other: Account, run: str, method: str, path: str, body: Any
    ) -> None:
        agent = run.partition("/runs/")[0]
        before = account.get(agent)
        nobodys = f"{AGENTS}/agent_{'0' * 26}"
        self.same(other.client, method, f"{agent}{path}", f"{nobodys}{path}", body)
        assert account.get(agent) == before

    def test_idempotency_keys_are_the_accounts(self, account: Account, other: Account) -> None:
        body, headers = {"name": "a", "model": "chat"}, {"idempotency-key": "shared"}
        first = account.client.post(AGENTS, json=body, headers=headers).json()
        assert other.client.post(AGENTS, json=body, headers=headers).json()["id"] != first["id"]
        listed = other.get(AGENTS, limit=100)["data"]
        assert first["id"] not in [item["id"] for item in listed]

    @pytest.mark.parametrize("path", ["", "/agent_1", "/agent_1/runs", "/agent_1/runs/run_1"])
    def test_keys_of_deployments(self, agent_server: Server, account: Account, path: str) -> None:
        with agent_server.client(key_for(account.client, account.deployment_id)) as client:
            answer = client.get(f"{AGENTS}{path}")
            check_error(answer, 401, "InvalidAPIKeyError", "invalid_api_key")

    def test_nobody(self, agent_server: Server, run: str) -> None:
        agent = run.partition("/runs/")[0]
        with agent_server.client() as client:
            for method, path, body in self.RUN_ROUTES:
                answer = client.request(method, f"{run}{path}", json=body)
                check_error(answer, 401, "InvalidAPIKeyError", "invalid_api_key")
            for method, path, body in self.AGENT_ROUTES:
                answer = client.request(method, f"{agent}{path}", json=body)
                check_error(answer, 401, "InvalidAPIKeyError", "invalid_api_key")

    def test_bad_tool_outputs(self, account: Account, run: str) -> None:
        for body, param in (
            ({}, "tool_outputs"),
            ({"tool_outputs": []}, "tool_outputs"),
            ({"tool_outputs": [{"output": "a"}]}, "tool_outputs[0].tool_call_id"),
            ({"tool_outputs": [{"tool_call_id": "a"}]}, "tool_outputs[0].output"),
            ({"tool_outputs": [{"tool_call_id": "a", "output": 1}]}, "tool_outputs[0].output"),
            ({"tool_outputs": [{"tool_call_id": "a", "output": "b", "c": 1}]}, "tool_outputs[0].c"),
        ):
            answer = account.client.post(f"{run}/tool-outputs", json=body)
            check_error(answer, 400, "InvalidRequestError", "invalid_request", param)
        account.answer(run)
        assert account.until(run)["status"] == "completed"


class TestDocument:
    def test_describes_these_routes(self, agent_server: Server) -> None:
        with agent_server.client() as client:
            document = client.get(f"{AGENTS}/openapi.json").raise_for_status().json()
            whole = client.get("/openapi.json").raise_for_status().json()
        assert document["openapi"].startswith("3.1")
        assert document["info"]["version"] == "1.0.0"
        expected = {
            path: sorted(methods)
            for path, methods in whole["paths"].items()
            if path == AGENTS or path.startswith(f"{AGENTS}/")
        }
        assert {path: sorted(methods) for path, methods in document["paths"].items()} == expected
        assert len(expected) == 7
        for path, methods in document["paths"].items():
            assert methods == whole["paths"][path]

    def test_refers_to_what_is_there(self, agent_server: Server) -> None:
        with agent_server.client() as client:
            document = client.get(f"{AGENTS}/openapi.json").json()
        references, waiting = set[str](), [document]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                references |= {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        assert references
        for reference in references:
            node: Any = document
            for name in reference.removeprefix("#/").split("/"):
                node = node[name]


def test_answer_stays_after_the_agents_change(account: Account) -> None:
    agent = account.agent()
    run = account.run(agent, FRANCE)
    finished = account.until(run)
    account.client.patch(agent, json={"instructions": "Be rude."}).raise_for_status()
    assert account.get(run) == finished
    assert finished["output"] == PARIS
