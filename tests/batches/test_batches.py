"""Batches on a real server, created with the unmodified openai SDK."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types import Batch

from tests.batches.conftest import MOST_LINES, sdk_of
from tests.batches.support import (
    CHAT,
    EMBEDDINGS,
    MODELS,
    SENTIMENT,
    by_id,
    create,
    embedding_lines,
    ended,
    jsonl,
    line,
    put_file,
    results,
)
from tests.deployments.support import check_error, key_for
from tests.support.deploying import deploy, wait_for
from tests.support.doc_blocks import blocks
from tests.support.server import Server

pytestmark = pytest.mark.one_machine
MICRO = 1_000_000


def submit(
    client: httpx.Client, sdk: openai.OpenAI, lines: list[dict[str, Any]], **fields: Any
) -> Batch:
    file_id = put_file(client, jsonl(lines))
    return create(sdk, file_id, lines[0]["url"], **fields)


def chat_lines(count: int, model: str = "chat", max_tokens: int = 16) -> list[dict[str, Any]]:
    return [
        line(
            f"c{number}",
            CHAT,
            model=model,
            messages=[{"role": "user", "content": f"Count to {number}."}],
            max_tokens=max_tokens,
            temperature=0,
        )
        for number in range(count)
    ]


def sentiment_lines(count: int) -> list[dict[str, Any]]:
    texts = ("the food was great", "the room was dirty", "a wonderful film")
    return [line(f"s{n}", SENTIMENT, model="mood", inputs=texts[n % 3]) for n in range(count)]


def whole(client: httpx.Client, batch: Batch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the lines of both result files. Each id is in one of them."""
    outputs = by_id(results(client, batch.output_file_id))
    errors = by_id(results(client, batch.error_file_id))
    assert not outputs.keys() & errors.keys()
    counts = batch.request_counts
    assert counts and (counts.completed, counts.failed) == (len(outputs), len(errors))
    return outputs, errors


def usage(client: httpx.Client, model: str) -> tuple[int, int, int]:
    """Returns the requests, the input tokens and the output tokens of a model's calls in batches.

    Other calls are stored only at the next metering tick.
    """
    events = client.get("/v1/usage/events", params={"limit": 100}).raise_for_status().json()["data"]
    rows = [
        row
        for row in events
        if row["type"] == "calls" and row["name"] == model and row["tier"] == "flex"
    ]
    totals = [sum(row[name] for row in rows) for name in COUNTED]
    return totals[0], totals[1], totals[2]


COUNTED = ("requests", "input_tokens", "output_tokens")


def while_running(sdk: openai.OpenAI, batch_id: str, least: int = 1) -> Batch:
    """Waits until some lines have durable answers."""
    deadline = time.monotonic() + 60
    while True:
        batch = sdk.batches.retrieve(batch_id)
        assert batch.status in ("validating", "in_progress"), batch
        if batch.request_counts and batch.request_counts.completed >= least:
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)


def until(sdk: openai.OpenAI, batch_id: str, field: str) -> Batch:
    """Waits until a field of a batch has a value."""
    deadline = time.monotonic() + 60
    while not getattr(batch := sdk.batches.retrieve(batch_id), field):
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    return batch


class TestAnswers:
    @pytest.mark.parametrize("kind", ["chat", "embeddings", "sentiment"])
    def test_equal_those_of_single_calls(self, client: Any, sdk: openai.OpenAI, kind: str) -> None:
        lines = {
            "chat": chat_lines(12),
            "embeddings": embedding_lines(40),
            "sentiment": sentiment_lines(30),
        }[kind]
        batch = submit(client, sdk, lines, metadata={"run": "7"})
        assert (batch.status, batch.metadata) == ("validating", {"run": "7"})
        batch = ended(sdk, batch.id)
        assert batch.status == "completed", batch
        outputs, errors = whole(client, batch)
        assert not errors and batch.error_file_id is None
        assert list(outputs) == [item["custom_id"] for item in lines]
        for item in lines[:5]:
            single = client.post(item["url"], json=item["body"]).raise_for_status().json()
            answer = outputs[item["custom_id"]]
            assert answer["id"].startswith("batch_req_") and answer["error"] is None
            assert answer["response"]["status_code"] == 200
            assert answer["response"]["request_id"].startswith("req_")
            assert_equal(answer["response"]["body"], single)
        assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
        assert batch.model == lines[0]["body"]["model"]

    def test_of_failed_lines_are_those_of_single_calls(
        self, client: Any, sdk: openai.OpenAI
    ) -> None:
        lines = [*embedding_lines(5), line("wrong", EMBEDDINGS, model="embed", input=3)]
        batch = ended(sdk, submit(client, sdk, lines).id)
        outputs, errors = whole(client, batch)
        assert len(outputs) == 5
        single = client.post(EMBEDDINGS, json=lines[-1]["body"])
        assert errors["wrong"]["response"]["status_code"] == single.status_code == 400
        assert errors["wrong"]["response"]["body"] == single.json()
        assert errors["wrong"]["error"] is None

    def test_are_counted_and_summed_exactly(self, client: Any, sdk: openai.OpenAI) -> None:
        before = usage(client, "embed")
        batch = ended(sdk, submit(client, sdk, embedding_lines(500)).id)
        outputs, _ = whole(client, batch)
        bodies = [answer["response"]["body"] for answer in outputs.values()]
        tokens = sum(body["usage"]["prompt_tokens"] for body in bodies)
        assert batch.usage and batch.usage.input_tokens == batch.usage.total_tokens == tokens
        after = usage(client, "embed")
        assert [new - old for new, old in zip(after, before, strict=True)] == [500, tokens, 0]

    def test_of_chats_have_output_tokens(self, client: Any, sdk: openai.OpenAI) -> None:
        batch = ended(sdk, submit(client, sdk, chat_lines(6)).id)
        outputs, _ = whole(client, batch)
        used = [answer["response"]["body"]["usage"] for answer in outputs.values()]
        assert batch.usage
        assert batch.usage.input_tokens == sum(one["prompt_tokens"] for one in used)
        assert batch.usage.output_tokens == sum(one["completion_tokens"] for one in used)


def assert_equal(value: Any, other: Any) -> None:
    """Asserts that two answers are equal. Numbers of other batches round differently."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        assert fields.keys() == other.keys()
        for name in fields.keys() - CHANGING:
            assert_equal(fields[name], other[name])
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        assert len(items) == len(other)
        for item, another in zip(items, other, strict=True):
            assert_equal(item, another)
    elif isinstance(value, float):
        assert value == pytest.approx(other, abs=1e-4)
    else:
        assert value == other


CHANGING = {"id", "created", "prompt_tokens_details"}
"""Fields that differ for each answer, or depend on the cache of prefixes."""


GOOD = line("a", EMBEDDINGS, model="embed", input="x")
INVALID: dict[str, tuple[list[bytes], str, int | None]] = {
    "json": ([json.dumps(GOOD).encode(), b"{no"], "invalid_json_line", 2),
    "fields": ([b'{"custom_id": "a"}'], "invalid_line", 1),
    "id": ([jsonl([GOOD]).strip(), jsonl([GOOD]).strip()], "duplicate_custom_id", 2),
    "empty id": ([jsonl([GOOD | {"custom_id": ""}]).strip()], "invalid_custom_id", 1),
    "method": ([jsonl([GOOD | {"method": "GET"}]).strip()], "invalid_method", 1),
    "url": ([jsonl([GOOD | {"url": CHAT}]).strip()], "mismatched_url", 1),
    "body": ([jsonl([GOOD | {"body": 3}]).strip()], "invalid_body", 1),
    "stream": (
        [jsonl([line("a", EMBEDDINGS, model="embed", input="x", stream=True)]).strip()],
        "stream_not_supported",
        1,
    ),
    "unknown model": (
        [jsonl([line("a", EMBEDDINGS, model="nobody", input="x")]).strip()],
        "model_not_found",
        1,
    ),
    "other pipeline": (
        [jsonl([line("a", EMBEDDINGS, model="mood", input="x")]).strip()],
        "endpoint_not_supported",
        1,
    ),
    "two models": (
        [
            jsonl([GOOD]).strip(),
            jsonl([line("b", EMBEDDINGS, model="mood", input="x")]).strip(),
        ],
        "mismatched_model",
        2,
    ),
    "long line": (
        [jsonl([GOOD]).strip(), b'{"custom_id": "' + b"x" * (1 << 20) + b'"}'],
        "line_too_large",
        2,
    ),
    "no lines": ([b"", b"  "], "empty_file", None),
    "too many lines": (
        jsonl(embedding_lines(MOST_LINES + 500)).splitlines(),
        "too_many_lines",
        MOST_LINES + 1,
    ),
}


class TestValidation:
    @pytest.mark.parametrize("fault", INVALID)
    def test_fails_as_a_whole(self, client: Any, sdk: openai.OpenAI, fault: str) -> None:
        lines, code, number = INVALID[fault]
        file_id = put_file(client, b"\n".join(lines))
        batch = ended(sdk, create(sdk, file_id, EMBEDDINGS).id)
        assert batch.status == "failed" and batch.failed_at
        assert batch.errors and batch.errors.data
        first = batch.errors.data[0]
        assert (first.code, first.line) == (code, number), batch.errors
        assert first.message
        assert batch.output_file_id is batch.error_file_id is None

    def test_lists_at_most_a_hundred_errors(self, client: Any, sdk: openai.OpenAI) -> None:
        file_id = put_file(client, b"nonsense\n" * 2000)
        batch = ended(sdk, create(sdk, file_id, EMBEDDINGS).id)
        assert batch.errors and batch.errors.data
        assert [error.line for error in batch.errors.data] == [*range(1, 101)]

    def test_accepts_other_line_ends(self, client: Any, sdk: openai.OpenAI) -> None:
        """A byte order mark, empty lines, CRLF and a missing last newline are no errors."""
        lines = [json.dumps(item).encode() for item in embedding_lines(3)]
        content = b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines)
        file_id = put_file(client, content)
        batch = ended(sdk, create(sdk, file_id, EMBEDDINGS).id)
        outputs, _ = whole(client, batch)
        assert [*outputs] == ["r0", "r1", "r2"]


class TestCreation:
    def test_needs_a_file_of_the_account(
        self, batch_server: Server, client: Any, sdk: openai.OpenAI
    ) -> None:
        with batch_server.account("others") as other:
            file_id = put_file(other, jsonl([GOOD]))
        with pytest.raises(openai.NotFoundError) as refused:
            create(sdk, file_id, EMBEDDINGS)
        assert refused.value.code == "file_not_found"
        other_purpose = put_file(client, b"x", "user_data")
        with pytest.raises(openai.BadRequestError, match="purpose 'batch'"):
            create(sdk, other_purpose, EMBEDDINGS)

    @pytest.mark.parametrize(
        ("endpoint", "words"),
        [
            ("/v1/audio/speech", "/v1/chat/completions"),
            ("/v1/embedding", "Did you mean '/v1/embeddings'"),
        ],
    )
    def test_needs_an_endpoint_that_answers_json(
        self, client: Any, batch_server: Server, endpoint: str, words: str
    ) -> None:
        file_id = put_file(client, jsonl([GOOD]))
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        refused = client.post("/v1/batches", json=body)
        error = check_error(
            refused, 400, "InvalidRequestError", "invalid_request", param="endpoint"
        )
        assert words in error["message"]

    def test_happens_once_for_an_idempotency_key(self, client: Any) -> None:
        file_id = put_file(client, jsonl([GOOD]))
        body = {"input_file_id": file_id, "endpoint": EMBEDDINGS, "completion_window": "24h"}
        first, second = (
            client.post("/v1/batches", json=body, headers={"idempotency-key": "once"}).json()
            for _ in range(2)
        )
        assert first["id"] == second["id"]

    def test_has_a_quota_of_unfinished_batches(self, batch_server: Server) -> None:
        with batch_server.account("quota") as client:
            identifier = client.account_id  # type: ignore[attr-defined]
            deploy(client, MODELS / "tiny-chat", "chat")
            with batch_server.client(batch_server.operator_key) as operator:
                path = f"/v1/accounts/{identifier}"
                operator.patch(path, json={"quotas": {"batches": 1}}).raise_for_status()
            sdk = sdk_of(batch_server, client)
            lines = chat_lines(300, max_tokens=200)
            first = submit(client, sdk, lines)
            with pytest.raises(openai.RateLimitError) as refused:
                submit(client, sdk, lines)
            assert refused.value.code == "quota_exceeded"
            sdk.batches.cancel(first.id)
            ended(sdk, first.id)
            second = submit(client, sdk, chat_lines(1))
            assert ended(sdk, second.id).status == "completed"


class TestCancelling:
    def test_keeps_the_answers_so_far(self, client: Any, sdk: openai.OpenAI) -> None:
        lines = chat_lines(600, max_tokens=100)
        batch = submit(client, sdk, lines)
        while_running(sdk, batch.id)
        cancelling = sdk.batches.cancel(batch.id)
        assert cancelling.status == "cancelling" and cancelling.cancelling_at
        batch = ended(sdk, batch.id)
        assert batch.status == "cancelled" and batch.cancelled_at
        outputs, errors = whole(client, batch)
        assert outputs and errors
        assert {*outputs, *errors} == {item["custom_id"] for item in lines}
        assert {answer["error"]["code"] for answer in errors.values()} == {"batch_cancelled"}
        assert sdk.batches.cancel(batch.id).status == "cancelled"

    def test_of_an_ended_batch_is_a_conflict(self, client: Any, sdk: openai.OpenAI) -> None:
        batch = ended(sdk, submit(client, sdk, embedding_lines(2)).id)
        with pytest.raises(openai.ConflictError) as refused:
            sdk.batches.cancel(batch.id)
        assert refused.value.code == "batch_ended"


class TestInterruptions:
    def test_without_credit_a_batch_waits_for_a_grant(self, batch_server: Server) -> None:
        with batch_server.account("poor") as client:
            deploy(client, MODELS / "tiny-chat", "chat")
            sdk = sdk_of(batch_server, client)
            lines = chat_lines(400, max_tokens=60)
            batch = submit(client, sdk, lines)
            while_running(sdk, batch.id)
            path = f"/v1/accounts/{client.account_id}/credits"  # type: ignore[attr-defined]
            balance = client.get("/v1/credits").raise_for_status().json()["balance_microcredits"]
            with batch_server.client(batch_server.operator_key) as operator:
                taken = {"amount_microcredits": -balance, "correction": True, "note": "all"}
                operator.post(path, json=taken).raise_for_status()
                batch = until(sdk, batch.id, "paused")
                assert batch.paused["code"] == "insufficient_credits"  # type: ignore[attr-defined]
                assert batch.status == "in_progress"
                given = {"amount_microcredits": 1000 * MICRO, "note": "more"}
                operator.post(path, json=given).raise_for_status()
            batch = ended(sdk, batch.id)
            assert batch.status == "completed"
            outputs, errors = whole(client, batch)
            assert not errors and len(outputs) == 400
            assert usage(client, "chat")[0] == 400

    def test_of_a_stopped_deployment_last_until_its_start(self, batch_server: Server) -> None:
        with batch_server.account("stopping") as client:
            deployed = deploy(client, MODELS / "tiny-chat", "chat")["id"]
            sdk = sdk_of(batch_server, client)
            batch = submit(client, sdk, chat_lines(400, max_tokens=60))
            while_running(sdk, batch.id)
            client.post(f"/v1/deployments/{deployed}/stop").raise_for_status()
            batch = until(sdk, batch.id, "paused")
            assert batch.paused["code"] == "deployment_stopped"  # type: ignore[attr-defined]
            client.post(f"/v1/deployments/{deployed}/start").raise_for_status()
            batch = ended(sdk, batch.id)
            outputs, errors = whole(client, batch)
            assert batch.status == "completed" and not errors and len(outputs) == 400

    def test_of_a_deleted_deployment_end_the_batch(self, batch_server: Server) -> None:
        with batch_server.account("deleting") as client:
            deployed = deploy(client, MODELS / "tiny-chat", "chat")["id"]
            sdk = sdk_of(batch_server, client)
            lines = chat_lines(600, max_tokens=100)
            batch = submit(client, sdk, lines)
            while_running(sdk, batch.id)
            client.delete(f"/v1/deployments/{deployed}").raise_for_status()
            batch = ended(sdk, batch.id)
            assert batch.status == "completed"
            outputs, errors = whole(client, batch)
            assert {*outputs, *errors} == {item["custom_id"] for item in lines}
            codes = {answer["error"]["code"] for answer in errors.values()}
            assert outputs and codes == {"deployment_deleted"}

    def test_of_the_input_fail_the_batch_and_keep_its_answers(
        self, client: Any, sdk: openai.OpenAI
    ) -> None:
        batch = submit(client, sdk, chat_lines(600, max_tokens=100))
        while_running(sdk, batch.id)
        client.delete(f"/v1/files/{batch.input_file_id}").raise_for_status()
        sdk.batches.cancel(batch.id)
        batch = ended(sdk, batch.id)
        assert batch.status == "failed" and batch.errors and batch.errors.data
        assert batch.errors.data[0].code == "file_not_found"
        outputs, _ = whole(client, batch)
        assert outputs


class TestKeys:
    def test_of_deployments_see_their_batches(
        self, batch_server: Server, client: Any, sdk: openai.OpenAI
    ) -> None:
        deployments = {
            row["model"]: row["id"]
            for row in client.get("/v1/deployments").raise_for_status().json()["data"]
        }
        own = submit(client, sdk, embedding_lines(2))
        ended(sdk, own.id)
        for model, is_seen in (("embed", True), ("mood", False)):
            with batch_server.client(key_for(client, deployments[model])) as limited:
                seen = [row["id"] for row in limited.get("/v1/batches").json()["data"]]
                assert (own.id in seen) is is_seen
                answer = limited.get(f"/v1/batches/{own.id}")
                assert answer.status_code == (200 if is_seen else 404)

    def test_of_other_accounts_see_nothing(
        self, batch_server: Server, client: Any, sdk: openai.OpenAI
    ) -> None:
        own = submit(client, sdk, embedding_lines(1))
        with batch_server.account("strangers") as other:
            assert other.get("/v1/batches").json()["data"] == []
            for answer in (
                other.get(f"/v1/batches/{own.id}"),
                other.post(f"/v1/batches/{own.id}/cancel"),
            ):
                check_error(answer, 404, "NotFoundError", "batch_not_found")

    def test_list_batches_in_pages(self, client: Any, sdk: openai.OpenAI) -> None:
        listed = [batch.id for batch in sdk.batches.list(limit=2)]
        rows = client.get("/v1/batches", params={"limit": 100}).json()["data"]
        assert listed == [row["id"] for row in rows] and len(listed) > 2


def test_a_small_batch_is_not_delayed_by_a_large_one(
    batch_server: Server, client: Any, sdk: openai.OpenAI
) -> None:
    large = submit(client, sdk, chat_lines(600, max_tokens=100))
    while_running(sdk, large.id)
    small = ended(sdk, submit(client, sdk, chat_lines(3)).id)
    assert small.status == "completed"
    assert sdk.batches.retrieve(large.id).status == "in_progress"
    sdk.batches.cancel(large.id)
    assert ended(sdk, large.id).status == "cancelled"


def test_a_server_that_stops_hands_a_batch_back(batch_server: Server) -> None:
    with batch_server.account("stopped") as client:
        deployed = deploy(client, MODELS / "tiny-chat", "chat")["id"]
        sdk = sdk_of(batch_server, client)
        batch = submit(client, sdk, chat_lines(300, max_tokens=60))
        while_running(sdk, batch.id)
        assert batch_server.stop() == 0
        batch_server.restart()
        batch = ended(sdk, batch.id)
        outputs, errors = whole(client, batch)
        assert batch.status == "completed" and not errors and len(outputs) == 300
        assert usage(client, "chat")[0] == 300
        wait_for(client, deployed, "ready")


def test_the_guide(batch_server: Server, client: Any, tmp_path: Path) -> None:
    (block,) = (item.text for item in blocks("docs/guide/batches.md") if item.language == "python")
    key = client.headers["authorization"].removeprefix("Bearer ")
    for old, new in (
        ("http://127.0.0.1:8000", batch_server.base_url),
        ("sk-…", key),
        ("my-encoder", "embed"),
    ):
        assert old in block
        block = block.replace(old, new)
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    tokens = [
        client.post(EMBEDDINGS, json={"model": "embed", "input": text}).json()["usage"]
        for text in ("Grass is green.", "Snow is white.")
    ]
    assert done.stdout.splitlines() == [
        f"text-{number} {usage['prompt_tokens']}" for number, usage in enumerate(tokens)
    ]
