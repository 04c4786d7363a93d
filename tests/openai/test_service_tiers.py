"""Service tiers of calls over HTTP: which tier answers, and who goes first."""

import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest

from tests.deployments.support import check_error
from tests.openai.conftest import ANY

CHAT = "/v1/chat/completions"
HEADER = "x-stoker-service-tier"
QUESTION = [{"role": "user", "content": "Hello"}]


def body(**more: Any) -> dict[str, Any]:
    return {"model": ANY, "messages": QUESTION, "max_tokens": 4, **more}


def data_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.fixture
def prioritizing(account: httpx.Client, base_url: str) -> Any:
    """Yields a client with a key that may use priority."""
    fields = {"scope": "account", "may_prioritize": True}
    key = account.post("/v1/api-keys", json=fields).raise_for_status().json()
    headers = {"authorization": f"Bearer {key['key']}"}
    with httpx.Client(base_url=base_url, headers=headers, timeout=60) as client:
        yield client


class TestAnswers:
    @pytest.mark.parametrize(
        ("asked", "used"), [("flex", "flex"), ("default", "default"), ("auto", "default")]
    )
    def test_body_and_header_name_the_used_tier(
        self, account: httpx.Client, asked: str, used: str
    ) -> None:
        response = account.post(CHAT, json=body(service_tier=asked)).raise_for_status()
        assert response.json()["service_tier"] == used
        assert response.headers[HEADER] == used

    def test_a_request_without_a_tier_gets_none(self, account: httpx.Client) -> None:
        response = account.post(CHAT, json=body()).raise_for_status()
        assert "service_tier" not in response.json()
        assert HEADER not in response.headers

    def test_stream(self, account: httpx.Client) -> None:
        fields = {"stream": True, "stream_options": {"include_usage": True}}
        response = account.post(CHAT, json=body(service_tier="flex", **fields)).raise_for_status()
        chunks = data_of(response)
        assert chunks[-1]["usage"]["completion_tokens"] > 0
        assert {chunk["service_tier"] for chunk in chunks} == {"flex"}

    def test_responses(self, account: httpx.Client) -> None:
        asked = {"model": ANY, "input": "Hello", "max_output_tokens": 16}
        answer = account.post("/v1/responses", json={**asked, "service_tier": "flex"}).json()
        assert answer["service_tier"] == "flex"
        assert account.post("/v1/responses", json=asked).json()["service_tier"] == "default"

    def test_messages(self, account: httpx.Client) -> None:
        asked = {"model": ANY, "messages": QUESTION, "max_tokens": 4}
        url = "/v1/messages"
        flex = account.post(url, json={**asked, "service_tier": "auto"}, headers={HEADER: "flex"})
        assert flex.json()["usage"]["service_tier"] == "batch"
        standard = account.post(
            url, json={**asked, "service_tier": "standard_only"}, headers={HEADER: "flex"}
        )
        assert standard.json()["usage"]["service_tier"] == "standard"
        assert standard.headers[HEADER] == "default"

    def test_the_body_replaces_the_header(self, account: httpx.Client) -> None:
        asked = body(service_tier="default")
        response = account.post(CHAT, json=asked, headers={HEADER: "flex"})
        assert response.headers[HEADER] == "default"

    def test_sdk(self, sdk: openai.OpenAI) -> None:
        answer = sdk.chat.completions.create(
            model=ANY,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=4,
            service_tier="flex",
        )
        assert answer.service_tier == "flex"

    def test_unknown_names(self, account: httpx.Client) -> None:
        response = account.post(CHAT, json=body(service_tier="scale"))
        invalid = (400, "InvalidRequestError", "invalid_request")
        error = check_error(response, *invalid, "service_tier")
        assert "'flex'" in error["message"]
        response = account.post(CHAT, json=body(), headers={HEADER: "fexl"})
        error = check_error(response, *invalid, HEADER)
        assert "flex" in error["message"]


class TestPriority:
    @pytest.mark.parametrize("name", ["priority", "fast"])
    def test_needs_the_right(
        self, account: httpx.Client, prioritizing: httpx.Client, name: str
    ) -> None:
        answer = prioritizing.post(CHAT, json=body(service_tier=name)).raise_for_status()
        assert answer.json()["service_tier"] == answer.headers[HEADER] == "priority"
        answer = account.post(CHAT, json=body(service_tier=name)).raise_for_status()
        assert answer.json()["service_tier"] == answer.headers[HEADER] == "default"

    def test_is_changed_at_once(self, account: httpx.Client, prioritizing: httpx.Client) -> None:
        keys = account.get("/v1/api-keys", params={"limit": 100}).json()["data"]
        public_id = prioritizing.headers["authorization"].split("-")[1]
        key = next(each for each in keys if each["public_id"] == public_id)
        assert key["may_prioritize"] is True
        place = f"/v1/api-keys/{key['id']}"
        changed = account.patch(place, json={"may_prioritize": False}).raise_for_status().json()
        assert changed["may_prioritize"] is False
        answer = prioritizing.post(CHAT, json=body(service_tier="priority"))
        assert answer.json()["service_tier"] == "default"
        check_error(
            account.patch("/v1/api-keys/key_none", json={"may_prioritize": True}),
            404,
            "NotFoundError",
            "api_key_not_found",
        )


class TestNumbers:
    """`priority` as a number, for clients of vLLM."""

    @pytest.mark.parametrize(("number", "used"), [(1, "flex"), (2**31 - 1, "flex"), (0, "default")])
    def test_sdk(self, sdk: openai.OpenAI, number: int, used: str) -> None:
        answer = sdk.chat.completions.create(
            model=ANY,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=4,
            extra_body={"priority": number},
        )
        assert answer.service_tier == used
        response = sdk.responses.create(
            model=ANY, input="Hello", max_output_tokens=16, extra_body={"priority": number}
        )
        assert response.service_tier == used
        raw = sdk.completions.with_raw_response.create(
            model=ANY, prompt="Hello", max_tokens=4, extra_body={"priority": number}
        )
        assert raw.headers[HEADER] == used

    def test_priority_needs_the_right(
        self, account: httpx.Client, prioritizing: httpx.Client
    ) -> None:
        for client, used in ((prioritizing, "priority"), (account, "default")):
            answer = client.post(CHAT, json=body(priority=-(2**31))).raise_for_status()
            assert answer.json()["service_tier"] == answer.headers[HEADER] == used

    @pytest.mark.parametrize(
        ("number", "name", "used"),
        [
            (1, "flex", "flex"),
            (0, "default", "default"),
            (-1, "fast", "default"),
            (7, "auto", "flex"),
        ],
    )
    def test_a_name_that_agrees(
        self, account: httpx.Client, number: int, name: str, used: str
    ) -> None:
        response = account.post(CHAT, json=body(priority=number, service_tier=name))
        assert response.raise_for_status().headers[HEADER] == used

    @pytest.mark.parametrize(
        ("number", "name"), [(1, "default"), (0, "flex"), (-1, "flex"), (1, "priority")]
    )
    @pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
    def test_a_name_that_does_not(
        self, account: httpx.Client, path: str, number: int, name: str
    ) -> None:
        content = {"messages": QUESTION} if path == CHAT else {"input": "Hello"}
        asked = {"model": ANY, **content, "priority": number, "service_tier": name}
        response = account.post(path, json=asked)
        error = check_error(response, 400, "InvalidRequestError", "invalid_request")
        assert "'service_tier'" in error["message"]
        assert "'priority'" in error["message"]

    @pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 1.5, True, "high"])
    def test_others_are_refused(self, account: httpx.Client, number: Any) -> None:
        response = account.post(CHAT, json=body(priority=number))
        check_error(response, 400, "InvalidRequestError", "invalid_request", "priority")

    def test_it_replaces_the_header(self, account: httpx.Client) -> None:
        response = account.post(CHAT, json=body(priority=0), headers={HEADER: "flex"})
        assert response.headers[HEADER] == "default"


class TestOrder:
    @pytest.mark.parametrize("tier", [{"service_tier": "flex"}, {"priority": 1}])
    def test_a_live_call_overtakes_flex_calls_of_the_same_key(
        self, account: httpx.Client, tier: dict[str, Any]
    ) -> None:
        prompts = [[number % 100 + 5] * 400 for number in range(128)]
        asked = {"model": ANY, "prompt": prompts, "max_tokens": 16, "ignore_eos": True}
        ended: list[str] = []
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(account.post("/v1/completions", json={**asked, **tier}))
            ended.append("flex")

        background = threading.Thread(target=ask)
        background.start()
        time.sleep(0.3)
        account.post(CHAT, json=body()).raise_for_status()
        ended.append("live")
        background.join()
        assert ended == ["live", "flex"]
        assert answers[0].headers[HEADER] == "flex"
        assert answers[0].json()["usage"]["completion_tokens"] == 128 * 16
