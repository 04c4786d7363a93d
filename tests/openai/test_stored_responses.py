"""Stored responses, conversations that continue them, and responses in the background."""

import json
import time
from typing import Any

import httpx
import openai
import pytest

from tests.openai.conftest import RANDOM as MODEL
from tests.openai.support import events, replayed
from tests.openai.test_responses import PATH, QUESTION, THOUGHT, TOOL, ask, contents, kinds
from tests.support.server import Server

ENDED_S = 60

pytestmark = pytest.mark.usefixtures("random_model")


def stored(account: httpx.Client, **fields: Any) -> dict[str, Any]:
    return ask(account, **{"store": True, "structured_outputs": {"choice": ["Berlin"]}, **fields})


def ended(account: httpx.Client, response_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + ENDED_S
    while True:
        response = account.get(f"{PATH}/{response_id}").json()
        if response["status"] not in ("queued", "in_progress"):
            return response
        assert time.monotonic() < deadline, response
        time.sleep(0.1)


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


class TestStored:
    def test_is_returned_again(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        answer = stored(account, instructions="be brief", metadata={"run": "7"})
        assert answer["store"] is True
        assert account.get(f"{PATH}/{answer['id']}").json() == answer
        assert sdk.responses.retrieve(answer["id"]).output_text == "Berlin"

    def test_stream(self, account: httpx.Client) -> None:
        body = {"model": MODEL, "input": QUESTION, "store": True, "stream": True}
        content = account.post(PATH, json={**body, "max_output_tokens": 8}).content
        final = events(content)[-1]["response"]
        assert final["status"] == "incomplete"
        assert account.get(f"{PATH}/{final['id']}").json() == final

    def test_nothing_by_default(self, account: httpx.Client) -> None:
        for fields in ({}, {"store": False}):
            answer = ask(account, **fields)
            assert answer["store"] is False
            error = error_of(account.get(f"{PATH}/{answer['id']}"), 404)
            assert error["code"] == "response_not_found" and '"store": true' in error["message"]

    def test_input_items(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        given: Any = [{"role": "user", "content": word} for word in ("one", "two", "three")]
        answer = stored(account, input=given)
        page = sdk.responses.input_items.list(answer["id"], order="asc", limit=2)
        texts = [item.content[0].text for item in page if item.type == "message"]  # type: ignore[union-attr]
        assert texts == ["one", "two", "three"]
        first = account.get(f"{PATH}/{answer['id']}/input_items", params={"limit": 1}).json()
        assert first["data"][0]["content"][0]["text"] == "three" and first["has_more"] is True
        wrong = account.get(f"{PATH}/{answer['id']}/input_items", params={"after": "x"})
        assert error_of(wrong, 400)["param"] == "after"

    def test_deleted(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        answer = stored(account)
        sdk.responses.delete(answer["id"])
        for call in (account.get, account.delete):
            assert error_of(call(f"{PATH}/{answer['id']}"), 404)["code"] == "response_not_found"

    def test_another_account(self, account: httpx.Client, server: Server) -> None:
        answer = stored(account)
        with server.account("other") as other:
            for path in ("", "/input_items"):
                assert other.get(f"{PATH}/{answer['id']}{path}").status_code == 404
            assert other.delete(f"{PATH}/{answer['id']}").status_code == 404
            assert other.post(f"{PATH}/{answer['id']}/cancel").status_code == 404
        assert account.get(f"{PATH}/{answer['id']}").json() == answer

    def test_is_sealed_on_disk(self, account: httpx.Client, server: Server) -> None:
        stored(account, input="the quick platypus")
        for file in server.data_dir.glob("*.db*"):
            assert b"platypus" not in file.read_bytes()


class TestChain:
    def test_continues_the_conversation(self, account: httpx.Client) -> None:
        first = stored(account)
        second = stored(
            account,
            previous_response_id=first["id"],
            input="and Rome?",
            structured_outputs={"choice": ["Paris"]},
        )
        third = ask(account, previous_response_id=second["id"], input="and?")
        assert third["previous_response_id"] == second["id"]
        whole = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "Berlin"},
            {"role": "user", "content": "and Rome?"},
            {"role": "assistant", "content": "Paris"},
            {"role": "user", "content": "and?"},
        ]
        expected = ask(account, input=whole)
        assert contents(third) == contents(expected)
        assert third["usage"]["input_tokens"] == expected["usage"]["input_tokens"]

    def test_counts_its_tokens(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        first = stored(account)
        counted = sdk.responses.input_tokens.count(
            model=MODEL, input="and?", previous_response_id=first["id"]
        )
        answer = ask(account, previous_response_id=first["id"], input="and?")
        assert counted.input_tokens == answer["usage"]["input_tokens"]

    def test_calls_and_reasoning(self, account: httpx.Client) -> None:
        once = {"tool_choice": "required", "parallel_tool_calls": False}
        called = ask(account, store=True, tools=[TOOL], **once, max_output_tokens=100)
        (call,) = called["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
        answer = ask(account, previous_response_id=called["id"], input=[output])
        whole = [{"role": "user", "content": QUESTION}, call, output]
        assert contents(answer) == contents(ask(account, input=whole))
        # A call without an output cannot be continued.
        body = {"model": MODEL, "input": "go on", "previous_response_id": called["id"]}
        assert "output" in error_of(account.post(PATH, json=body), 400)["message"]
        sealed = {"include": ["reasoning.encrypted_content"], "max_output_tokens": 100}
        thought = ask(account, store=True, **THOUGHT, **sealed)
        answer = ask(account, previous_response_id=thought["id"], input="and?")
        given = [
            {"role": "user", "content": QUESTION},
            *thought["output"],
            {"role": "user", "content": "and?"},
        ]
        assert contents(answer) == contents(ask(account, input=given))

    def test_refused(self, account: httpx.Client, server: Server) -> None:
        first = stored(account)
        second = stored(account, previous_response_id=first["id"], input="and?")
        body = {"model": MODEL, "input": "hi"}

        def refused(response_id: str, status: int) -> dict[str, Any]:
            answer = account.post(PATH, json={**body, "previous_response_id": response_id})
            return error_of(answer, status)

        error = refused("resp_unknown", 404)
        assert error["param"] == "previous_response_id"
        assert error["code"] == "response_not_found"
        with server.account("foreign") as other:
            foreign = other.post(PATH, json={**body, "previous_response_id": first["id"]})
            assert foreign.status_code == 404
        account.delete(f"{PATH}/{first['id']}")
        assert "was deleted" in refused(second["id"], 404)["message"]
        cut = account.post(PATH, json={**body, "store": False, "background": True})
        assert error_of(cut, 400)["param"] == "background"

    @pytest.mark.release
    def test_length_is_limited(self, account: httpx.Client) -> None:
        large = [{"role": "user", "content": "one " * 225_000} for _ in range(2)]
        previous: dict[str, Any] = {}
        for _ in range(4):
            answer = account.post(
                PATH,
                json={"model": MODEL, "input": [*large, {"role": "user", "content": "b"}]}
                | {"store": True, "truncation": "auto", "max_output_tokens": 1, **previous},
            )
            if answer.status_code != 200:
                break
            previous = {"previous_response_id": answer.json()["id"]}
        error = error_of(answer, 400)
        assert error["code"] == "conversation_too_long"
        assert "limit" in error["message"]


class TestBackground:
    def test_is_answered(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        fields = {"instructions": "be brief", "structured_outputs": {"choice": ["Berlin"]}}
        queued = ask(account, background=True, **fields)
        assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
        answer = ended(account, queued["id"])
        assert answer["status"] == "completed"
        expected = ask(account, **fields)
        assert contents(answer) == contents(expected)
        assert answer["usage"] == expected["usage"] | {
            "input_tokens_details": answer["usage"]["input_tokens_details"]
        }
        assert (answer["id"], answer["created_at"]) == (queued["id"], queued["created_at"])
        assert sdk.responses.retrieve(queued["id"]).output_text == "Berlin"
        third = ask(account, previous_response_id=queued["id"], input="and?")
        assert third["status"] in ("completed", "incomplete")

    def test_events(self, account: httpx.Client) -> None:
        fields: dict[str, Any] = {**THOUGHT, "max_output_tokens": 100}
        queued = ask(account, background=True, **fields)
        path = f"{PATH}/{queued['id']}"

        def read(**params: Any) -> list[dict[str, Any]]:
            return replayed(account.get(path, params={"stream": True, **params}).content)

        received = read()
        assert [event["sequence_number"] for event in received] == list(range(len(received)))
        final = ended(account, queued["id"])
        assert received[-1] == {
            "type": "response.completed",
            "sequence_number": len(received) - 1,
            "response": final,
        }
        live = account.post(
            PATH, json={"model": MODEL, "input": QUESTION, "stream": True, **fields}
        )
        expected = kinds(events(live.content))
        expected.insert(1, "response.queued")
        assert kinds(received) == expected
        assert read(starting_after=3) == received[4:]
        assert read() == received

    def test_text_is_streamed_while_it_is_generated(self, account: httpx.Client) -> None:
        body = {
            "model": MODEL,
            "input": QUESTION,
            "background": True,
            "stream": True,
            "max_output_tokens": 900,
            "ignore_eos": True,
            # Slow the answer down.
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 20,
        }
        received: list[dict[str, Any]] = []
        with account.stream("POST", PATH, json=body, timeout=ENDED_S) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: "):
                    continue
                received.append(json.loads(line.removeprefix("data: ")))
        assert [event["sequence_number"] for event in received] == list(range(len(received)))
        final = received[-1]["response"]
        pieces = [event["delta"] for event in received if event["type"].endswith("text.delta")]
        # Pieces are gathered until they are stored. Several were stored before the answer ended.
        assert 1 < len(pieces) < 300
        written = [part["text"] for item in final["output"] for part in item["content"]]
        assert "".join(pieces) == "".join(written)
        path = f"{PATH}/{final['id']}"
        for after in (-1, 0, 2, 3, 4, len(received) - 2, len(received) - 1, 10_000):
            params = {"stream": True} | ({"starting_after": after} if after >= 0 else {})
            again = replayed(account.get(path, params=params).content)
            assert again == received[after + 1 :]

    def test_logprobs_of_gathered_pieces(self, account: httpx.Client) -> None:
        fields: dict[str, Any] = {
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
            "max_output_tokens": 40,
            "ignore_eos": True,
        }
        queued = ask(account, background=True, **fields)
        path = f"{PATH}/{queued['id']}"
        received = replayed(account.get(path, params={"stream": True}).content)
        deltas = [event for event in received if event["type"] == "response.output_text.delta"]
        logprobs = [entry for event in deltas for entry in event["logprobs"]]
        part = ended(account, queued["id"])["output"][-1]["content"][0]
        assert logprobs == part["logprobs"]
        assert len(logprobs) > 1

    def test_stream_at_once(self, sdk: openai.OpenAI) -> None:
        stream = sdk.responses.create(
            model=MODEL, input=QUESTION, background=True, stream=True, max_output_tokens=8
        )
        received = list(stream)
        assert received[0].type == "response.created"
        last = received[-1]
        assert last.type == "response.incomplete"
        assert sdk.responses.retrieve(last.response.id).output_text == last.response.output_text

    def test_cancel(self, account: httpx.Client, sdk: openai.OpenAI) -> None:
        queued = ask(account, background=True, max_output_tokens=900, ignore_eos=True)
        cancelled = sdk.responses.cancel(queued["id"])
        assert cancelled.status == "cancelled"
        assert sdk.responses.cancel(queued["id"]).status == "cancelled"
        assert ended(account, queued["id"])["status"] == "cancelled"
        body = {"model": MODEL, "input": "hi", "previous_response_id": queued["id"]}
        assert "cancelled" in error_of(account.post(PATH, json=body), 400)["message"]
        plain = stored(account)
        assert error_of(account.post(f"{PATH}/{plain['id']}/cancel"), 400)
        assert error_of(account.get(f"{PATH}/{plain['id']}?stream=true"), 400)["param"] == "stream"
        wrong = account.get(f"{PATH}/{plain['id']}?starting_after=1")
        assert error_of(wrong, 400)["param"] == "starting_after"

    def test_unfinished_one_is_not_continued(self, account: httpx.Client) -> None:
        queued = ask(account, background=True, max_output_tokens=900, ignore_eos=True)
        body = {"model": MODEL, "input": "hi", "previous_response_id": queued["id"]}
        answer = account.post(PATH, json=body)
        account.post(f"{PATH}/{queued['id']}/cancel")
        assert error_of(answer, 409)["code"] == "response_not_ended"

    def test_an_error_is_reported(self, account: httpx.Client) -> None:
        queued = ask(account, background=True, input="a " * 5000, max_output_tokens=5)
        answer = ended(account, queued["id"])
        assert answer["status"] == "failed"
        assert "maximum context length" in answer["error"]["message"]
        assert answer["output"] == []
