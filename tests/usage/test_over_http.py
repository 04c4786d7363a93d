"""Usage, prices and credits over HTTP, on a real server with real models."""

import csv
import io
import json
import time
import wave
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.client.client import ApiRequest, Client
from tests.deployments.support import check_error, key_for
from tests.support.deploying import deploy, push
from tests.support.server import Server

DEMO = Path(stoker.demo.__file__).parent
MODELS, MEDIA = DEMO / "models", DEMO / "media"
USAGE, EVENTS, CREDITS = "/v1/usage", "/v1/usage/events", "/v1/credits"
TRANSFERS, PRICES = "/v1/credits/transfers", "/v1/prices"
STARTING = 1_000_000_000_000
"""Starting credits of an account in micro-credits."""
COUNTED = ("requests", "errors", "input_tokens", "output_tokens", "images", "audio_ms", "video_ms")
HELD = ("memory_mib_ms", "memory_microcredits", "storage_mib_ms", "storage_microcredits")
FLUSH_S = 120


def listed(client: httpx.Client, path: str, **params: Any) -> list[dict[str, Any]]:
    """Returns all objects of a list, page by page."""
    objects: list[dict[str, Any]] = []
    page: dict[str, Any] = {"has_more": True, "last_id": None}
    while page["has_more"]:
        after = {"after": page["last_id"]} if page["last_id"] else {}
        page = client.get(path, params={"limit": 3, **params, **after}).raise_for_status().json()
        objects += page["data"]
    return objects


def usage(client: httpx.Client, **params: Any) -> dict[str, Any]:
    return client.get(USAGE, params=params).raise_for_status().json()


def until(holds: Any) -> None:
    deadline = time.monotonic() + FLUSH_S
    while not holds():
        assert time.monotonic() < deadline, "it was not written down in time"
        time.sleep(0.2)


@dataclass
class Used:
    """An account that has called models and then deleted everything."""

    client: httpx.Client
    expected: dict[str, dict[str, int]]
    """Maps each model to the expected counts of its calls."""


def calls(client: httpx.Client) -> dict[str, dict[str, int]]:
    """Calls models of each kind. Returns the expected counts, measured independently of the
    counters.
    """

    def post(path: str, **body: Any) -> httpx.Response:
        return client.post(path, json=body).raise_for_status()

    embedded = post("/v1/embeddings", model="tiny-encoder", input=["One sentence.", "And more."])
    embedded_tokens = embedded.json()["usage"]["prompt_tokens"]
    single = post("/v1/feature-extraction", model="tiny-encoder", inputs="One sentence.")
    assert single.json()
    first_tokens = post("/v1/embeddings", model="tiny-encoder", input="One sentence.")
    first = first_tokens.json()["usage"]["prompt_tokens"]
    bad = client.post(
        "/v1/feature-extraction", json={"model": "tiny-encoder", "inputs": "a " * 100_000}
    )
    assert bad.status_code == 400

    chat = {"model": "tiny-chat", "messages": [{"role": "user", "content": "Hello!"}]}
    whole = post("/v1/chat/completions", **chat, max_tokens=8, n=2).json()["usage"]
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5}
    lines = post("/v1/chat/completions", **chat, **options).text.split("\n\n")
    streamed = json.loads(lines[-3].removeprefix("data: "))["usage"]

    post("/v1/summarizations", model="tiny-summarizer", inputs="A tower.", min_new_tokens=6,
         max_new_tokens=6)  # fmt: skip
    summed = post("/v1/summarizations", model="tiny-summarizer", inputs="A tower.",
                  min_new_tokens=6, max_new_tokens=6)  # fmt: skip
    assert summed.json()

    sound = (MEDIA / "seven-three-one.wav").read_bytes()
    with wave.open(io.BytesIO(sound)) as file:
        heard_ms = file.getnframes() * 1000 // file.getframerate()
    form = {"data": {"model": "tiny-transcriber"}, "files": {"file": ("a.wav", sound)}}
    client.post("/v1/audio/transcriptions", **form).raise_for_status()

    body = {"model": "random-speech", "input": "The train leaves at nine.", "voice": "default"}
    spoken = post("/v1/audio/speech", **body, response_format="wav", seed=1)
    with wave.open(io.BytesIO(spoken.content)) as file:
        frames = (len(spoken.content) - 44) // file.getsampwidth() // file.getnchannels()
        spoken_ms = frames * 1000 // file.getframerate()

    drawing = {"model": "tiny-draw", "prompt": "a red circle", "num_inference_steps": 2}
    post("/v1/images/generations", **drawing, n=2, response_format="b64_json")

    film = {"model": "random-video-maker", "prompt": "a boat", "num_inference_steps": 1}
    video = post("/v1/videos", **film, seconds=1).json()
    path = f"/v1/videos/{video['id']}"
    until(lambda: client.get(path).json()["status"] == "completed")
    seconds = client.get(path).json()["seconds"]

    return {
        "tiny-encoder": {
            "requests": 4,
            "errors": 1,
            "input_tokens": embedded_tokens + 2 * first,
        },
        "tiny-chat": {
            "requests": 2,
            "input_tokens": whole["prompt_tokens"] + streamed["prompt_tokens"],
            "output_tokens": whole["completion_tokens"] + streamed["completion_tokens"],
        },
        "tiny-summarizer": {"requests": 2, "output_tokens": 12},
        "tiny-transcriber": {"requests": 1, "audio_ms": heard_ms},
        "random-speech": {"requests": 1, "audio_ms": spoken_ms},
        "tiny-draw": {"requests": 1, "images": 2},
        "random-video-maker": {"requests": 1, "video_ms": round(seconds * 1000)},
    }


@pytest.fixture(scope="module")
def used(server: Server) -> Iterator[Used]:
    server.wait_ready()
    with server.account("used") as client:
        names = (
            "tiny-encoder", "tiny-chat", "tiny-summarizer", "tiny-transcriber", "random-speech",
            "tiny-draw", "random-video-maker",
        )  # fmt: skip
        deployed = [deploy(client, MODELS / name, name) for name in names]
        expected = calls(client)
        requests = sum(item["requests"] for item in expected.values())
        until(lambda: usage(client)["total"]["requests"] == requests)
        # Live deployments accrue usage, so that two readings would differ.
        for item in deployed:
            client.delete(f"/v1/deployments/{item['id']}").raise_for_status()
            client.delete(f"/v1/model-artifacts/{item['artifact_id']}").raise_for_status()
        until(lambda: all(e["is_final"] for e in listed(client, EVENTS) if e["type"] != "calls"))
        yield Used(client, expected)


class TestUsage:
    def test_counts_are_the_replicas_own(self, used: Used) -> None:
        rows = {row["model"]: row for row in usage(used.client)["data"] if row["model"]}
        assert set(rows) == set(used.expected)
        for model, expected in used.expected.items():
            counts = {name: rows[model][name] for name in expected}
            assert counts == expected, model
        assert rows["tiny-summarizer"]["input_tokens"] > 0
        assert rows["random-speech"]["input_tokens"] > 0
        assert rows["tiny-transcriber"]["output_tokens"] > 0
        assert rows["tiny-chat"]["images"] == 0

    def test_every_deployment_held_memory_and_artifacts_storage(self, used: Used) -> None:
        report = usage(used.client)
        by_model = {row["model"]: row for row in report["data"]}
        storage = by_model.pop(None)
        assert storage["deployment_id"] is None
        assert storage["storage_mib_ms"] > 0
        assert storage["memory_mib_ms"] == storage["requests"] == 0
        for row in by_model.values():
            assert row["storage_mib_ms"] == 0
        assert report["total"]["memory_mib_ms"] > 0

    def test_costs_what_the_prices_say(self, used: Used) -> None:
        total = usage(used.client)["total"]
        exact = total["memory_mib_ms"] * 1_000_000 / 3_686_400_000
        exact += total["storage_mib_ms"] * 1_000_000 / 2_654_208_000_000
        assert total["microcredits"] <= exact < total["microcredits"] + 1
        assert total["memory_gib_hours"] == round(total["memory_mib_ms"] / 3_686_400_000, 6)

    def test_is_what_the_ledger_took(self, used: Used) -> None:
        total = usage(used.client)["total"]["microcredits"]
        charges = [record for record in listed(used.client, TRANSFERS) if record["event_id"]]
        assert -sum(record["microcredits"] for record in charges) == total
        account_credits = used.client.get(CREDITS).json()
        assert account_credits["balance_microcredits"] == STARTING - total
        assert account_credits["pending_microcredits"] == 0
        events = {record["id"]: record for record in listed(used.client, EVENTS)}
        for record in charges:
            assert events[record["event_id"]]["type"] == record["kind"]

    @pytest.mark.parametrize(
        "group_by", ["deployment", "day", "hour", "key", "day,deployment", "key,deployment,hour"]
    )
    def test_every_number_is_explained_by_its_events(self, used: Used, group_by: str) -> None:
        report = usage(used.client, group_by=group_by)
        whole = {"start": report["start"], "end": report["end"]}
        events = listed(used.client, EVENTS, **whole)
        assert len({item["id"] for item in events}) == len(events) > 10
        named = [f"{item}_id" for item in group_by.split(",") if item in ("deployment", "key")]
        for row in report["data"]:
            mine = [
                item
                for item in events
                if row["start"] <= item["hour"] < row["end"]
                and all(item.get(name) == row[name] for name in named)
            ]
            assert mine
            for name in COUNTED:
                assert row[name] == sum(item.get(name, 0) for item in mine), (row, name)
            for name in HELD:
                kind, _, field = name.partition("_")
                same_type = [item for item in mine if item["type"] == kind]
                assert row[name] == sum(item[field] for item in same_type), (row, name)
            both = row["memory_microcredits"] + row["storage_microcredits"]
            assert row["microcredits"] == both
        for name in (*COUNTED, *HELD, "microcredits"):
            assert report["total"][name] == sum(row[name] for row in report["data"])

    def test_events_by_deployment_and_kind(self, used: Used) -> None:
        rows = {row["model"]: row for row in usage(used.client)["data"]}
        of = rows["tiny-chat"]["deployment_id"]
        events = listed(used.client, EVENTS, deployment_id=of)
        assert {event["type"] for event in events} == {"memory", "calls"}
        assert {event["name"] for event in events} == {"tiny-chat"}
        for kind in ("memory", "storage", "calls"):
            assert {event["type"] for event in listed(used.client, EVENTS, type=kind)} == {kind}
        ascending = [event["id"] for event in listed(used.client, EVENTS, order="asc")]
        assert ascending == sorted(ascending)

    def test_csv_has_the_same_numbers(self, used: Used) -> None:
        report = usage(used.client)
        by_query = used.client.get(USAGE, params={"format": "csv"})
        by_header = used.client.get(USAGE, headers={"accept": "text/csv"})
        assert by_query.content == by_header.content
        assert by_query.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(by_query.text)))
        assert len(rows) == len(report["data"])
        for written, row in zip(rows, report["data"], strict=True):
            assert written == {
                name: "" if row[name] is None else str(row[name]) for name in written
            }
            assert set(written) == set(row)

    def test_by_key_is_who_has_called(self, used: Used) -> None:
        (key,) = used.client.get("/v1/api-keys").raise_for_status().json()["data"]
        rows = {row["key_id"]: row for row in usage(used.client, group_by="key")["data"]}
        assert set(rows) == {key["id"], None}
        assert rows[key["id"]]["key_name"] == key["name"]
        videos = used.expected["random-video-maker"]
        # A job runs later, on behalf of its account and not of a key.
        assert rows[None]["requests"] == videos["requests"]
        assert rows[None]["video_ms"] == videos["video_ms"]
        of_all = sum(counts["requests"] for counts in used.expected.values())
        assert rows[key["id"]]["requests"] == of_all - videos["requests"]

    def test_page_by_page(self, server: Server, used: Used) -> None:
        report = usage(used.client, group_by="day,deployment")
        assert not report["has_more"]
        assert report["next_page"] is None
        key = used.client.headers["authorization"].removeprefix("Bearer ")
        client = Client(server.base_url, key)
        request = ApiRequest(
            method="GET", path=USAGE, params={"group_by": "day,deployment", "limit": 3}
        )
        rows, page_request = [], request
        while True:
            page = client.json(page_request)
            assert page["total"] == report["total"]
            rows += page["data"]
            if not page["has_more"]:
                break
            assert len(page["data"]) == 3
            page_request = replace(request, params={**request.params, "page": page["next_page"]})
        assert rows == report["data"]
        in_csv = replace(request, params={**request.params, "format": "csv"})
        texts = [list(csv.DictReader(io.StringIO(text))) for text in client.text_pages(in_csv)]
        assert [len(csv_page) for csv_page in texts[:-1]] == [3] * (len(texts) - 1)
        csv_keys = [
            (row["start"], row["deployment_id"] or None) for csv_page in texts for row in csv_page
        ]
        assert csv_keys == [(row["start"], row["deployment_id"]) for row in report["data"]]

    def test_of_some_deployments(self, used: Used) -> None:
        known = [row["deployment_id"] for row in usage(used.client)["data"]][:2]
        report = usage(used.client, group_by="day,deployment", deployment_id=known)
        assert {row["deployment_id"] for row in report["data"]} == set(known)

    def test_times_are_full_hours(self, used: Used) -> None:
        report = usage(used.client, start="2026-01-01T10:20:00Z", end="2026-01-01T12:00:01Z")
        assert report["start"] == "2026-01-01T10:00:00.000Z"
        assert report["end"] == "2026-01-01T13:00:00.000Z"
        assert report["data"] == []

    @pytest.mark.parametrize(
        ("params", "param"),
        [
            ({"start": "yesterday"}, "start"),
            ({"end": "2026-13-01"}, "end"),
            ({"start": "1200-01-01"}, "start"),
            ({"end": "9999-12-31T23:59:59+14:00"}, "end"),
            ({"start": "2026-02-01", "end": "2026-01-01"}, "start"),
            ({"start": "2026-01-01", "end": "2026-01-01"}, "start"),
            ({"start": "2020-01-01", "end": "2026-01-01"}, "start"),
            ({"start": "2026-01-01", "end": "2026-03-01", "group_by": "hour"}, "start"),
            ({"group_by": "week"}, "group_by"),
            ({"group_by": "day,hour"}, "group_by"),
            ({"start": "2026-01-01", "end": "2026-03-01", "group_by": "key,hour"}, "start"),
            ({"limit": "0"}, "limit"),
            ({"limit": "1001"}, "limit"),
            ({"page": "nowhere"}, "page"),
            ({"format": "xml"}, "format"),
        ],
    )
    def test_bad_ranges(self, used: Used, params: dict[str, str], param: str) -> None:
        check_error(
            used.client.get(USAGE, params=params),
            400, "InvalidRequestError", "invalid_request", param,
        )  # fmt: skip

    def test_is_nobody_elses(self, server: Server, used: Used) -> None:
        with server.account("elsewhere") as other:
            assert usage(other)["data"] == []
            assert listed(other, EVENTS) == []
        with server.client(server.operator_key) as operator:
            assert operator.get(USAGE).status_code == 400, "whose?"
            operator.headers["x-stoker-account"] = used.client.account_id  # type: ignore[attr-defined]
            assert usage(operator) == usage(used.client)


@pytest.fixture
def account(server: Server) -> Iterator[httpx.Client]:
    with server.account("credit") as client:
        yield client


@pytest.fixture(scope="module")
def operator(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.operator_key) as client:
        yield client


def grants(client: httpx.Client) -> str:
    return f"/v1/accounts/{client.account_id}/credits"  # type: ignore[attr-defined]


class TestCredits:
    def test_begin_with_the_starting_credits(self, account: httpx.Client) -> None:
        account_credits = account.get(CREDITS).json()
        assert (account_credits["balance_microcredits"], account_credits["balance"]) == (
            STARTING,
            "1000000.000000",
        )
        assert account_credits["price"]["memory_microcredits_per_gib_hour"] == 1_000_000
        (opening,) = listed(account, TRANSFERS)
        assert (opening["kind"], opening["microcredits"]) == ("opening", STARTING)

    def test_grant(self, account: httpx.Client, operator: httpx.Client) -> None:
        body = {"amount_microcredits": 2_500_001, "note": "a present"}
        headers = {"idempotency-key": account.account_id}  # type: ignore[attr-defined]
        first, again = (operator.post(grants(account), json=body, headers=headers) for _ in "12")
        assert first.status_code == again.status_code == 201
        assert first.json() == again.json()
        assert first.json()["kind"] == "grant"
        assert account.get(CREDITS).json()["balance"] == "1000002.500001"
        moved = listed(account, TRANSFERS)
        assert [transfer["microcredits"] for transfer in moved] == [2_500_001, STARTING]
        assert moved[0]["note"] == "a present"
        other = operator.post(grants(account), json=body | {"note": "b"}, headers=headers)
        check_error(other, 409, "ConflictError", "idempotency_mismatch", "Idempotency-Key")

    def test_correction(self, account: httpx.Client, operator: httpx.Client) -> None:
        body = {"amount_microcredits": -STARTING - 1, "correction": True}
        assert operator.post(grants(account), json=body).json()["microcredits"] == -STARTING - 1
        assert account.get(CREDITS).json()["balance"] == "-0.000001"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"amount_microcredits": 0},
            {"amount_microcredits": -1},
            {"amount_microcredits": 1, "correction": True},
            {"amount_microcredits": 10**15 + 1},
            {"amount_microcredits": 1.5},
            {"amount_microcredits": 1, "note": "a\0b"},
            {"amount": 1},
        ],
    )
    def test_bad_grant(self, account: Any, operator: httpx.Client, body: dict[str, Any]) -> None:
        assert operator.post(grants(account), json=body).status_code == 400
        assert account.get(CREDITS).json()["balance_microcredits"] == STARTING

    def test_unknown_account(self, operator: httpx.Client) -> None:
        answer = operator.post("/v1/accounts/acct_0/credits", json={"amount_microcredits": 1})
        check_error(answer, 404, "NotFoundError", "account_not_found")

    def test_only_operators_grant(self, account: httpx.Client) -> None:
        answer = account.post(grants(account), json={"amount_microcredits": 1})
        assert answer.status_code == 401


class TestPrices:
    def test_posted_for_later(self, account: httpx.Client, operator: httpx.Client) -> None:
        body = {
            "memory_microcredits_per_gib_hour": 2_000_000,
            "storage_microcredits_per_gib_month": 0,
            "effective_from": "2099-01-01T00:00:00Z",
        }
        posted = operator.post(PRICES, json=body)
        assert posted.status_code == 201
        assert posted.json()["flex_microcredits_per_gib_hour"] == 1_000_000
        assert posted.json() in account.get(PRICES).json()["data"]
        assert account.get(CREDITS).json()["price"]["version"] == 1
        assert account.post(PRICES, json=body).status_code == 401

    @pytest.mark.parametrize(
        "begin", ["2020-01-01T00:00:00Z", "2099-01-01T00:30:00Z", "2099-01-01T00:00:00.001Z"]
    )
    def test_never_change_what_was_used(self, operator: httpx.Client, begin: str) -> None:
        body = {
            "memory_microcredits_per_gib_hour": 1,
            "storage_microcredits_per_gib_month": 1,
            "effective_from": begin,
        }
        check_error(
            operator.post(PRICES, json=body),
            400, "InvalidRequestError", "invalid_request", "effective_from",
        )  # fmt: skip

    @pytest.mark.parametrize("rate", [-1, 10**9 + 1, 0.5, None])
    def test_bad_rate(self, operator: httpx.Client, rate: Any) -> None:
        body = {
            "memory_microcredits_per_gib_hour": rate,
            "storage_microcredits_per_gib_month": 1,
        }
        assert operator.post(PRICES, json=body).status_code == 400

    def test_default_is_the_next_hour(self, operator: httpx.Client) -> None:
        body = {
            "memory_microcredits_per_gib_hour": 1_000_000,
            "storage_microcredits_per_gib_month": 1_000_000,
        }
        begin = operator.post(PRICES, json=body).json()["effective_from"]
        ahead = datetime.fromisoformat(begin) - datetime.now(UTC)
        assert -1 < ahead.total_seconds() <= 3600


class TestWithoutCredit:
    def test_no_work_is_begun_until_there_is_some(
        self, server: Server, account: Any, operator: httpx.Client
    ) -> None:
        server.wait_ready()
        deployed = deploy(account, MODELS / "tiny-sentiment", "sentiment")
        film = deploy(account, MODELS / "random-video-maker", "film")
        with server.client(key_for(account, deployed["id"])) as caller:
            path, body = "/v1/classifications/text", {"inputs": "What a fine day!"}
            before = caller.post(path, json=body).raise_for_status().json()
            balance = account.get(CREDITS).json()["balance_microcredits"]
            operator.post(
                grants(account), json={"amount_microcredits": -balance, "correction": True}
            ).raise_for_status()
            artifact = account.post("/v1/model-artifacts", json={"display_name": "a"}).json()["id"]
            refused = [
                caller.post(path, json=body),
                caller.post(path, content=b"{", headers={"content-type": "application/json"}),
                account.post("/v1/videos", json={"model": "film", "prompt": "a boat"}),
                account.post(f"/v1/model-artifacts/{artifact}/uploads"),
                account.put(f"/v1/model-artifacts/{artifact}/uploads/x/files/a", content=b"a"),
                account.post(
                    "/v1/deployments", json={"model": "b", "artifact_id": film["artifact_id"]}
                ),
                account.post(f"/v1/deployments/{film['id']}/start"),
            ]
            for answer in refused:
                check_error(answer, 402, "InsufficientCreditsError", "insufficient_credits")
            assert account.get("/v1/videos").json()["data"] == []
            assert caller.get("/v1/models").status_code == 200
            # The loaded worker still accrues usage, and the grant must also pay for some seconds of
            # it.
            grant = {"amount_microcredits": 1_000_000_000}
            operator.post(grants(account), json=grant).raise_for_status()
            assert caller.post(path, json=body).raise_for_status().json() == before
        push(account, MODELS / "tiny-sentiment")
