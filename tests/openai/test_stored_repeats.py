"""`Idempotency-Key` of stored responses: a repeated request gets the stored response."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from uuid import uuid4

import httpx
import pytest

from tests.openai.conftest import RANDOM as MODEL
from tests.openai.support import replayed
from tests.openai.test_responses import PATH, QUESTION
from tests.openai.test_stored_responses import ended, error_of, stored
from tests.support.server import Server

pytestmark = pytest.mark.usefixtures("random_model")

BODY: dict[str, Any] = {
    "model": MODEL,
    "input": QUESTION,
    "background": True,
    "max_output_tokens": 8,
}


def send(account: httpx.Client, key: str, **fields: Any) -> httpx.Response:
    return account.post(PATH, json={**BODY, **fields}, headers={"idempotency-key": key})


def test_repeated(account: httpx.Client) -> None:
    key = uuid4().hex
    first = send(account, key)
    assert "idempotency-replayed" not in first.headers
    answer = ended(account, first.json()["id"])
    again = send(account, key)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json() == answer
    assert answer["status"] == "incomplete"
    assert send(account, uuid4().hex).json()["id"] != answer["id"]


def test_unfinished(account: httpx.Client) -> None:
    key, long = uuid4().hex, {"max_output_tokens": 900, "ignore_eos": True}
    first = send(account, key, **long).json()
    again = send(account, key, **long).json()
    account.post(f"{PATH}/{first['id']}/cancel")
    assert again["id"] == first["id"]
    assert again["status"] in ("queued", "in_progress")
    assert send(account, key, **long).json()["status"] == "cancelled"


class TestForeground:
    FIELDS: ClassVar[dict[str, Any]] = {"background": False, "store": True}

    def test_repeated(self, account: httpx.Client) -> None:
        key = uuid4().hex
        first = send(account, key, **self.FIELDS)
        assert "idempotency-replayed" not in first.headers
        again = send(account, key, **self.FIELDS)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.json() == first.json()
        assert account.get(f"{PATH}/{first.json()['id']}").json() == first.json()
        error = error_of(send(account, key, **self.FIELDS, input="another"), 409)
        assert error["code"] == "idempotency_mismatch"

    def test_two_at_once(self, account: httpx.Client) -> None:
        key = uuid4().hex
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _number: send(account, key, **self.FIELDS), range(4)))
        made = {answer.json()["id"] for answer in answers if answer.status_code == 200}
        assert len(made) == 1
        for answer in answers:
            if answer.status_code != 200:
                assert error_of(answer, 409)["code"] == "idempotency_in_progress"
        assert {send(account, key, **self.FIELDS).json()["id"]} == made

    def test_a_stream_is_refused(self, account: httpx.Client) -> None:
        error = error_of(send(account, uuid4().hex, **self.FIELDS, stream=True), 400)
        assert error["param"] == "Idempotency-Key"
        assert '"background": true' in error["message"]

    def test_without_storage_each_request_is_answered(self, account: httpx.Client) -> None:
        key, fields = uuid4().hex, {"background": False, "store": False}
        answers = [send(account, key, **fields).raise_for_status() for _ in range(2)]
        assert len({answer.json()["id"] for answer in answers}) == 2


def test_another_body(account: httpx.Client) -> None:
    key = uuid4().hex
    first = send(account, key).json()
    items: list[dict[str, Any]] = [{"role": "user", "content": "another"}]
    for fields in ({"input": "another"}, {"input": items}, {"max_output_tokens": 9}):
        error = error_of(send(account, key, **fields), 409)
        assert error["code"] == "idempotency_mismatch"
    # The same message in the other form is the same request.
    items[0]["content"] = QUESTION
    assert send(account, key, input=items).json()["id"] == first["id"]


def test_many_at_once(account: httpx.Client) -> None:
    key = uuid4().hex
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _number: send(account, key), range(8)))
    made = [answer for answer in answers if answer.status_code == 200]
    assert len({answer.json()["id"] for answer in made}) == 1
    for answer in answers:
        if answer not in made:
            assert error_of(answer, 409)["code"] == "idempotency_in_progress"
    assert send(account, key).json()["id"] == made[0].json()["id"]


def test_stream(account: httpx.Client) -> None:
    key = uuid4().hex
    first = replayed(send(account, key, stream=True).content)
    again = send(account, key, stream=True)
    assert again.headers["idempotency-replayed"] == "true"
    assert replayed(again.content) == first
    assert first[-1]["type"] == "response.incomplete"


def test_after_its_previous_response_was_deleted(account: httpx.Client) -> None:
    key, previous = uuid4().hex, stored(account)["id"]
    first = send(account, key, previous_response_id=previous).json()
    account.delete(f"{PATH}/{previous}").raise_for_status()
    assert send(account, key, previous_response_id=previous).json()["id"] == first["id"]


def test_deleted(account: httpx.Client) -> None:
    key = uuid4().hex
    first = send(account, key).json()
    account.delete(f"{PATH}/{first['id']}").raise_for_status()
    assert send(account, key).json()["id"] != first["id"]


def test_keys_of_others(account: httpx.Client, server: Server) -> None:
    key = uuid4().hex
    send(account, key).raise_for_status()
    with server.account("others") as other:
        assert error_of(send(other, key), 404)["code"] == "model_not_found"


def test_bad_key(account: httpx.Client) -> None:
    for key in ("", "k" * 256):
        assert error_of(send(account, key), 400)["param"] == "Idempotency-Key"
