"""Metrics of a real server, read by Prometheus' own parsers."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

import stoker.demo
from tests.artifacts.support import eventually
from tests.deployments.support import bert, call
from tests.support.deploying import deploy, deployment, wait_for
from tests.support.scraping import OPENMETRICS, Scrape, scrape, scrape_until
from tests.support.server import WITHOUT_MODELS, Server, running

DEMO = Path(stoker.demo.__file__).parent / "models"


@pytest.fixture(scope="module")
def operator(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.client(server.operator_key) as client:
        yield client


@pytest.fixture(scope="module")
def account(server: Server) -> Iterator[httpx.Client]:
    with server.account("metrics") as client:
        yield client


def labels_of(client: Any, model: str) -> dict[str, str]:
    return {"account": client.account_id, "model": model}


class TestAccess:
    def test_only_operators_may_read_them(
        self, server: Server, operator: httpx.Client, account: httpx.Client
    ):
        with server.client() as anonymous:
            assert anonymous.get("/metrics").status_code == 401
        assert account.get("/metrics").status_code == 401
        assert operator.get("/metrics").status_code == 200

    def test_own_address_needs_no_key_and_serves_nothing_else(self, tmp_path: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        env = {"STOKER_METRICS_PORT": str(port), **WITHOUT_MODELS}
        with (
            running(tmp_path / "data", **env) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{port}") as open_client,
            server.client() as anonymous,
        ):
            assert scrape(open_client).get("stoker_build_info", version=stoker.__version__) == 1
            assert open_client.post("/metrics").status_code == 405
            for path in ("/health", "/v1/models", "/openapi.json", "/v1/api-keys", "/"):
                assert open_client.get(path).status_code == 404
            assert anonymous.get("/metrics").status_code == 401
            assert server.stop() == 0


def test_credits_left(server: Server, operator: httpx.Client):
    with server.account("rich") as rich:
        balance = rich.get("/v1/credits").raise_for_status().json()["balance"]
        reported = scrape(operator).get("stoker_credits_balance", account=rich.account_id)
    assert reported == float(balance) == 1_000_000


class TestFormats:
    def test_text_and_openmetrics_tell_the_same(self, operator: httpx.Client):
        text, opened = scrape(operator, {"accept": "*/*"}), scrape(operator)
        assert text.content_type.startswith("text/plain; version=0.0.4")
        assert opened.content_type.startswith("application/openmetrics-text; version=1.0.0")
        ours = {name for name in opened.names if name.startswith("stoker_")}
        assert ours == {name for name in text.names if name.startswith("stoker_")}
        assert {"stoker_build_info", "process_resident_memory_bytes"} <= opened.names

    def test_every_family_explains_itself(self, operator: httpx.Client):
        families = scrape(operator).families.values()
        assert [family.name for family in families if not family.documentation] == []


class TestDeployments:
    def test_counters_move_by_what_was_done(self, operator: httpx.Client, account: httpx.Client):
        which = labels_of(account, "counted")
        identifier = deploy(account, bert(), "counted")["id"]
        assert scrape(operator).get("stoker_requests_total", **which) == 0
        for inputs in ("one", "two", ["three", "four", "five"]):
            call(account, "counted", inputs=inputs).raise_for_status()
        refused = call(account, "counted", inputs="word " * 5000)
        assert refused.status_code == 400, refused.text
        after = scrape_until(operator, "stoker_batch_size_sum", 5, **which)
        assert after.get("stoker_batch_size_sum", **which) == 5
        requests = {"pipeline": "token-classification", **which}
        assert after.get("stoker_requests_total", outcome="ok", **requests) == 3
        assert after.get("stoker_requests_total", outcome="invalid_request", **requests) == 1
        for name in ("stoker_request_seconds", "stoker_request_wait_seconds"):
            assert after.get(f"{name}_count", **which) == 4
            assert after.get(f"{name}_bucket", le="+Inf", **which) == 4
        assert after.get("stoker_request_wait_seconds_sum", **which) > 0
        assert 3 <= after.get("stoker_batch_size_count", **which) <= 5
        assert after.get("stoker_cold_starts_total", outcome="loaded", **which) == 1
        assert after.get("stoker_cold_start_seconds_count", **which) == 1
        assert after.get("stoker_replicas", status="ready", **which) == 1
        assert after.get("stoker_requests_outstanding", **which) == 0
        held_memory = after.get("stoker_memory_held_mib_ms_total", **which)

        def told_alike() -> bool:
            memory = scrape(operator).get("stoker_replica_memory_bytes", **which)
            return memory == deployment(account, identifier)["workers"][0]["memory_bytes"]

        # Polls until the memory is measured and no new measurement falls between the two reads.
        assert eventually(told_alike)
        assert scrape(operator).get("stoker_memory_held_mib_ms_total", **which) >= held_memory

    def test_tokens_are_those_of_the_tokenizer(self, operator: httpx.Client, account: httpx.Client):
        which = labels_of(account, "read")
        deploy(account, bert(), "read")
        texts = ["my name is clara", "i live in berlin and in paris"]
        call(account, "read", inputs=texts[0]).raise_for_status()
        call(account, "read", inputs=texts).raise_for_status()
        tokenizer = AutoTokenizer.from_pretrained(bert())
        lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
        metrics = scrape(operator)
        read = metrics.get("stoker_tokens_total", direction="input", **which)
        assert read == 2 * lengths[0] + lengths[1]
        assert metrics.get("stoker_tokens_total", direction="output", **which) == 0

    def test_tokens_are_those_of_the_answers(self, operator: httpx.Client, account: httpx.Client):
        which = labels_of(account, "chat")
        deploy(account, DEMO / "tiny-chat", "chat", engine="torch")
        body = {"model": "chat", "max_tokens": 7, "messages": [{"role": "user", "content": "Hi"}]}
        usages = [
            account.post("/v1/chat/completions", json=body | {"n": n}).raise_for_status().json()
            for n in (1, 2)
        ]
        streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
        events = account.post("/v1/chat/completions", json=streamed).raise_for_status().text
        usages.append(json.loads(events.split("data: ")[-2]))
        metrics = scrape(operator)
        for direction, name in (("input", "prompt_tokens"), ("output", "completion_tokens")):
            expected = sum(answer["usage"][name] for answer in usages)
            assert expected > 0
            assert metrics.get("stoker_tokens_total", direction=direction, **which) == expected
        steps = scrape_until(operator, "stoker_batch_size_count", 1, **which)
        assert "chat" in steps.labels("model", "stoker_kv_cache_usage_ratio")

    def test_tokens_of_a_call_whose_client_left(
        self, operator: httpx.Client, account: httpx.Client
    ):
        which = labels_of(account, "left")
        deploy(account, DEMO / "tiny-chat", "left", engine="torch")
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": "left", "messages": messages, "max_tokens": 1}
        whole = account.post("/v1/chat/completions", json=body).raise_for_status().json()["usage"]
        endless = body | {"max_tokens": 900, "ignore_eos": True, "stream": True}
        event_count = 0
        with account.stream("POST", "/v1/chat/completions", json=endless) as response:
            for line in response.iter_lines():
                # The first event contains the role and no text.
                event_count += '"content":"' in line and '"content":""' not in line
                if event_count == 8:
                    break
        metrics = scrape_until(operator, "stoker_requests_total", 1, outcome="cancelled", **which)
        assert metrics.get("stoker_tokens_total", direction="input", **which) == (
            2 * whole["prompt_tokens"]
        )
        written = metrics.get("stoker_tokens_total", direction="output", **which)
        assert 1 + 8 <= written < 1 + 900

    def test_same_model_id_of_two_accounts_has_two_series(
        self, server: Server, operator: httpx.Client, account: httpx.Client
    ):
        with server.account("other") as other:
            for client, calls in ((account, 1), (other, 2)):
                deploy(client, bert(), "shared-name")
                for _ in range(calls):
                    call(client, "shared-name").raise_for_status()
            metrics = scrape(operator)
            for client, calls in ((account, 1), (other, 2)):
                which = labels_of(client, "shared-name")
                assert metrics.get("stoker_requests_total", **which) == calls

    def test_counts_survive_replicas(self, operator: httpx.Client, account: httpx.Client):
        which = labels_of(account, "mortal")
        identifier = deploy(account, bert(), "mortal")["id"]
        call(account, "mortal", inputs=["one", "two"]).raise_for_status()
        scrape_until(operator, "stoker_batch_size_sum", 2, **which)
        os.kill(deployment(account, identifier)["workers"][0]["pid"], signal.SIGKILL)
        wait_for(account, identifier, "idle")
        call(account, "mortal", inputs=["three"]).raise_for_status()
        after = scrape_until(operator, "stoker_batch_size_sum", 3, **which)
        assert after.get("stoker_batch_size_sum", **which) == 3
        assert after.get("stoker_cold_starts_total", outcome="loaded", **which) == 2
        assert after.get("stoker_workers_lost_total", reason="worker_lost", **which) == 1

    def test_series_go_with_their_deployment(self, operator: httpx.Client, account: httpx.Client):
        before = scrape(operator)
        identifier = deploy(account, bert(), "passing")["id"]
        assert "passing" not in scrape(operator).labels("model"), "it was never started"
        call(account, "passing").raise_for_status()
        during = scrape(operator)
        assert "passing" in during.labels("model")
        assert total(during) == total(before) + 1
        account.delete(f"/v1/deployments/{identifier}").raise_for_status()
        after = scrape(operator)
        assert "passing" not in after.labels("model")
        assert total(after) == total(before)

    def test_evictions_have_a_reason(self, operator: httpx.Client, account: httpx.Client):
        which = labels_of(account, "brief")
        deploy(account, bert(), "brief", idle_timeout_s=1)
        call(account, "brief").raise_for_status()
        after = scrape_until(operator, "stoker_evictions_total", 1, **which)
        evicted = {"reason": "idle_timeout", **which}
        assert after.get("stoker_evictions_total", **evicted) == 1

    @pytest.mark.one_machine
    def test_failed_starts_are_told(
        self, server: Server, operator: httpx.Client, account: httpx.Client
    ):
        which = labels_of(account, "broken")
        folders = server.data_dir / "models"
        before = set(folders.iterdir())
        deploy(account, bert(), "broken")
        for _ in range(1000):
            if made := [
                folder for folder in set(folders.iterdir()) - before if folder.name[0] != "."
            ]:
                break
            time.sleep(0.01)
        # The server would create the link again, so its target is deleted.
        (made[0] / "model.safetensors").resolve().unlink()
        assert call(account, "broken").status_code == 503
        after = scrape(operator)
        assert after.get("stoker_cold_starts_total", outcome="files_missing", **which) == 1
        assert after.get("stoker_cold_start_seconds_count", **which) == 0
        assert after.get("stoker_deployments", status="failed") >= 1


class TestHttp:
    def test_routes_are_templates(self, operator: httpx.Client, account: httpx.Client):
        account.get("/v1/deployments/dep_of_my_own")
        account.get("/v1/models/some/nested/model")
        account.get("/nowhere/secret-path")
        account.request("BREW", "/v1/deployments/dep_1")
        account.request("PROPFIND", "/v1/deployments/dep_1")
        metrics = scrape(operator)
        routes = metrics.labels("route")
        assert {"/v1/deployments/{deployment_id}", "/v1/models/{model:path}", "none"} <= routes
        assert "dep_of_my_own" not in metrics.text and "secret-path" not in metrics.text
        methods = metrics.labels("method")
        assert "other" in methods and not methods & {"BREW", "PROPFIND"}

    def test_statuses_and_seconds(self, operator: httpx.Client, account: httpx.Client):
        before = scrape(operator)
        account.get("/v1/api-keys/key_none")
        after = scrape(operator)
        which = {"route": "/v1/api-keys/{key_id}", "method": "GET"}
        for name, labels in (
            ("stoker_http_requests_total", {"status": "404", **which}),
            ("stoker_http_request_seconds_count", which),
        ):
            assert after.get(name, **labels) == before.get(name, **labels) + 1

    def test_no_key_is_told(self, server: Server, operator: httpx.Client, account: httpx.Client):
        text = scrape(operator).text
        for key in (server.operator_key, account.headers["authorization"].removeprefix("Bearer ")):
            _, public_id, secret = key.split("-", 2)
            assert public_id not in text and secret not in text


def total(found: Scrape) -> float:
    return found.get("stoker_deployments")


def test_the_endpoint_is_described(server: Server) -> None:
    with server.client() as anonymous:
        operation = anonymous.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    assert {"text/plain", OPENMETRICS["accept"].partition(";")[0]} == set(
        operation["responses"]["200"]["content"]
    )
