import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from stoker.models.engines import precision
from tests.artifacts.support import eventually, new_artifact
from tests.deployments.conftest import Account
from tests.deployments.support import DEPLOYMENTS, call, check_error, deploy, key_for
from tests.support.server import Server

INVALID = ("InvalidRequestError", "invalid_request")


@pytest.fixture(scope="module")
def client(account: Account) -> httpx.Client:
    return account.client


@pytest.fixture
def tagger(account: Account, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Creates a separate cold deployment for one test."""
    made = deploy(account.client, account.artifact_id, f"tagger-{time.monotonic_ns()}")
    yield made
    account.client.delete(f"{DEPLOYMENTS}/{made['id']}")


def get(client: httpx.Client, deployment: dict[str, Any]) -> dict[str, Any]:
    return client.get(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status().json()


def reaches(client: httpx.Client, deployment: dict[str, Any], status: str) -> bool:
    return eventually(lambda: get(client, deployment)["status"] == status)


class TestCreate:
    def test_anonymous(self, own_server: Server):
        with own_server.client() as anonymous:
            assert anonymous.post(DEPLOYMENTS, json={}).status_code == 401

    def test_from_an_artifact(self, account: Account, tagger: dict[str, Any]):
        assert tagger["artifact_id"] == account.artifact_id
        assert tagger["source"] is None
        assert tagger["pipeline"] == "token-classification"
        assert (tagger["desired"], tagger["status"]) == ("running", "idle")
        assert (tagger["readiness"], tagger["idle_timeout_s"]) == ("cold", 300)
        assert tagger["replicas"] == {"min": 0, "max": 1}
        assert tagger["workers"] == []
        assert call(account.client, tagger["model"]).status_code == 200
        assert get(account.client, tagger)["status"] == "ready"

    def test_notices_of_a_load_stay_and_belong_to_the_live_version(
        self, account: Account, tagger: dict[str, Any]
    ):
        assert tagger["notices"] == []
        path = f"{DEPLOYMENTS}/{tagger['id']}"
        body = {"dtype": "float16", "engine": "torch"}
        account.client.patch(path, json=body).raise_for_status()
        assert call(account.client, tagger["model"]).status_code == 200
        codes = [] if precision.computes_in(torch.float16) else ["emulated_dtype"]
        assert eventually(lambda: self._codes(account, tagger) == codes)
        account.client.post(f"{path}/stop").raise_for_status()
        assert eventually(lambda: get(account.client, tagger)["status"] == "stopped")
        assert self._codes(account, tagger) == codes
        account.client.post(f"{path}/start").raise_for_status()
        account.client.patch(path, json={"dtype": "float32"}).raise_for_status()
        assert self._codes(account, tagger) == []

    def _codes(self, account: Account, deployment: dict[str, Any]) -> list[str]:
        return [notice["code"] for notice in get(account.client, deployment)["notices"]]

    def test_from_a_folder(self, client: httpx.Client, sources: Path):
        body = {"model": "from-folder", "source": str(sources / "tagger")}
        response = client.post(DEPLOYMENTS, json=body)
        assert response.status_code == 201, response.text
        assert response.json()["pipeline"] == "token-classification"
        assert call(client, "from-folder").status_code == 200
        client.delete(f"{DEPLOYMENTS}/{response.json()['id']}").raise_for_status()

    @pytest.mark.parametrize(
        "source",
        [
            "{sources}",  # has no model
            "{sources}/empty",
            "{sources}/none",
            "{sources}/link",  # leads outside
            "{sources}/tagger/../../outside0/model",
            "{sources}/../outside0/model",
            "{sources}-beside/model",
            "{sources}/tagger/config.json",
            "tagger",
            "/",
            "/etc",
            "~",
            "{sources}/tagger\0",
            "file://{sources}/tagger",
            "x" * 1025,
        ],
    )
    def test_folder_that_nobody_named(self, client: httpx.Client, sources: Path, source: str):
        body = {"model": "elsewhere", "source": source.format(sources=sources)}
        error = check_error(client.post(DEPLOYMENTS, json=body), 400, *INVALID, "source")
        assert str(sources) not in error["message"]

    def test_model_id_is_taken(self, account: Account, tagger: dict[str, Any]):
        body = {"model": tagger["model"], "artifact_id": account.artifact_id}
        response = account.client.post(DEPLOYMENTS, json=body)
        check_error(response, 409, "ConflictError", "model_exists", "model")

    def test_model_id_is_the_accounts_own(
        self, own_server: Server, tagger: dict[str, Any], sources: Path
    ):
        body = {"model": tagger["model"], "source": str(sources / "tagger")}
        with own_server.account() as other:
            made = other.post(DEPLOYMENTS, json=body)
            assert made.status_code == 201
            other.delete(f"{DEPLOYMENTS}/{made.json()['id']}").raise_for_status()

    @pytest.mark.parametrize(
        "model",
        ["", "/", "a/", "/a", "a//b", "a b", "../a", "a/../b", ".a", "a\n", "ä", "x" * 129, 7],
    )
    def test_bad_model_id(self, account: Account, model: object):
        body = {"model": model, "artifact_id": account.artifact_id}
        check_error(account.client.post(DEPLOYMENTS, json=body), 400, *INVALID, "model")

    def test_model_id_with_slashes(self, account: Account):
        made = deploy(account.client, account.artifact_id, "team/ner:1.0/a_b-c")
        shown = account.client.get("/v1/models/team/ner:1.0/a_b-c").raise_for_status().json()
        assert shown["id"] == "team/ner:1.0/a_b-c"
        account.client.delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()

    def test_artifact_without_files(self, client: httpx.Client):
        body = {"model": "early", "artifact_id": new_artifact(client)}
        response = client.post(DEPLOYMENTS, json=body)
        check_error(response, 409, "ConflictError", "artifact_not_ready", "artifact_id")

    def test_artifact_that_is_not_there(self, client: httpx.Client):
        response = client.post(DEPLOYMENTS, json={"model": "x", "artifact_id": "art_none"})
        check_error(response, 404, "NotFoundError", "artifact_not_found", "artifact_id")

    @pytest.mark.parametrize("pipeline", ["fill-mask", "text-classification", "sorcery", ""])
    def test_pipeline_that_it_cannot_serve(self, account: Account, sources: Path, pipeline: str):
        for source in ({"artifact_id": account.artifact_id}, {"source": str(sources / "tagger")}):
            body = {"model": "other", "pipeline": pipeline, **source}
            response = account.client.post(DEPLOYMENTS, json=body)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["type"] == "InvalidRequestError"

    @pytest.mark.parametrize(
        ("field", "param"),
        [
            ({"readiness": "lukewarm"}, "readiness"),
            ({"engine": "pickle"}, "engine"),
            ({"device": "cuda:100"}, "device"),
            ({"device": "cpu; rm"}, "device"),
            ({"dtype": "int4"}, "dtype"),
            ({"engine": "vllm"}, "engine"),  # vLLM generates text
            ({"engine": "openvino", "device": "cuda"}, "engine"),
            ({"engine": "openvino", "dtype": "float16"}, "engine"),
            ({"replicas": {"min": 2, "max": 1}}, "replicas"),
            ({"replicas": {"max": 65}}, "replicas.max"),
            ({"replicas": {"min": -1}}, "replicas.min"),
            ({"replicas": {"most": 2}}, "replicas.most"),
            ({"idle_timeout_s": 0.5}, "idle_timeout_s"),
            ({"idle_timeout_s": 1e9}, "idle_timeout_s"),
            ({"max_queue": 0}, "max_queue"),
            ({"max_queue": 100_001}, "max_queue"),
            ({"config": {"trust_remote_code": True}}, "config.trust_remote_code"),
            ({"config": {"weight_format": "int2"}}, "config.weight_format"),
            ({"config": {"speculation": "sometimes"}}, "config.speculation"),
            # The model is a tagger.
            ({"config": {"weight_format": "int4"}}, "config.weight_format"),
            ({"dtype": "int8", "engine": "torch"}, "engine"),
            ({"dtype": "int8", "device": "cuda"}, "dtype"),
            ({"config": {"speculation": "off"}}, "config.speculation"),
            ({"source": "/x"}, None),
            ({"trust_remote_code": True}, "trust_remote_code"),
        ],
    )
    def test_bad_field(self, account: Account, field: dict[str, Any], param: str | None):
        body = {"model": "bad", "artifact_id": account.artifact_id, **field}
        check_error(account.client.post(DEPLOYMENTS, json=body), 400, *INVALID, param)

    def test_refused_one_leaves_nothing(self, client: httpx.Client):
        models = {model["id"] for model in client.get("/v1/models").json()["data"]}
        assert not models & {"bad", "other", "early", "elsewhere", "x"}


class TestUpdate:
    def test_anonymous(self, own_server: Server, tagger: dict[str, Any]):
        with own_server.client() as anonymous:
            url = f"{DEPLOYMENTS}/{tagger['id']}"
            assert anonymous.patch(url, json={"max_queue": 1}).status_code == 401

    def test_fields_given(self, client: httpx.Client, tagger: dict[str, Any]):
        changes = {"max_queue": 3, "idle_timeout_s": 60.0, "replicas": {"min": 0, "max": 2}}
        answer = client.patch(f"{DEPLOYMENTS}/{tagger['id']}", json=changes).raise_for_status()
        changed = get(client, tagger)
        assert {name: changed[name] for name in changes} == changes
        untouched = set(tagger) - set(changes) - {"updated_at"}
        assert {name: changed[name] for name in untouched} == {
            name: tagger[name] for name in untouched
        }
        assert answer.json()["updated_at"] > tagger["updated_at"]

    def test_one_of_two_numbers_of_replicas(self, client: httpx.Client, tagger: dict[str, Any]):
        url = f"{DEPLOYMENTS}/{tagger['id']}"
        client.patch(url, json={"replicas": {"max": 4}}).raise_for_status()
        changed = client.patch(url, json={"replicas": {"min": 2}}).raise_for_status().json()
        assert changed["replicas"] == {"min": 2, "max": 4}
        check_error(client.patch(url, json={"replicas": {"min": 5}}), 400, *INVALID, "replicas")
        assert get(client, tagger)["replicas"] == {"min": 2, "max": 4}
        client.patch(url, json={"replicas": {"min": 0, "max": 1}}).raise_for_status()

    @pytest.mark.parametrize("same", [{"config": {}}, {"config": {"weight_format": None}}])
    def test_config_as_it_was(
        self, client: httpx.Client, tagger: dict[str, Any], same: dict[str, Any]
    ):
        changed = client.patch(f"{DEPLOYMENTS}/{tagger['id']}", json=same).raise_for_status()
        assert changed.json()["config"] == tagger["config"]

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"model": "renamed"}, "model"),
            ({"artifact_id": "art_x"}, "artifact_id"),
            ({"max_queue": 0}, "max_queue"),
            ({"readines": "warm"}, "readines"),
            ({"replicas": {"max": 0}}, "replicas.max"),
            ({"config": {"weight_format": "int4"}}, "config.weight_format"),
            ({"config": {"speculation": "prompt_lookup"}}, "config.speculation"),
            ({"config": {"other": 1}}, "config.other"),
        ],
    )
    def test_bad_field(
        self, client: httpx.Client, tagger: dict[str, Any], body: dict[str, Any], param: str
    ):
        response = client.patch(f"{DEPLOYMENTS}/{tagger['id']}", json=body)
        check_error(response, 400, *INVALID, param)


class TestMemory:
    def test_is_an_estimate_again_where_it_is_to_run_in_another_way(
        self, account: Account, client: httpx.Client, tagger: dict[str, Any]
    ):
        estimate = {"bytes": tagger["memory"]["bytes"], "is_measured": False}
        assert tagger["memory"] == estimate
        assert call(client, tagger["model"]).status_code == 200
        assert eventually(lambda: get(client, tagger)["memory"]["is_measured"])
        assert get(client, tagger)["memory"]["bytes"] != estimate["bytes"]
        url = f"{DEPLOYMENTS}/{tagger['id']}"
        (old,) = get(client, tagger)["workers"]
        for same in ({"dtype": "auto"}, {"max_queue": 9}):
            assert client.patch(url, json=same).json()["memory"]["is_measured"]
        changed = client.patch(url, json={"dtype": "bfloat16"}).json()
        assert changed["memory"]["is_measured"], "it is the old version's still"
        assert client.get(f"{url}/versions").json()["data"][0]["memory"] == estimate

        def swapped() -> bool:
            workers = get(client, tagger)["workers"]
            return old["id"] not in [worker["id"] for worker in workers] and bool(workers)

        assert eventually(swapped)
        assert call(client, tagger["model"]).status_code == 200
        assert eventually(lambda: get(client, tagger)["memory"]["is_measured"])

    def test_that_cannot_be_estimated_stays_as_it_is(self, client: httpx.Client, sources: Path):
        shutil.copytree(sources / "tagger", folder := sources / "leaves")
        body = {"model": "leaves", "source": str(folder)}
        made = client.post(DEPLOYMENTS, json=body).raise_for_status().json()
        shutil.rmtree(folder)
        response = client.patch(f"{DEPLOYMENTS}/{made['id']}", json={"dtype": "float16"})
        check_error(response, 400, *INVALID, "source")
        assert get(client, made)["dtype"] == "auto"
        assert get(client, made)["memory"] == made["memory"]
        client.delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()


class TestStopAndStart:
    def test_anonymous(self, own_server: Server, tagger: dict[str, Any]):
        with own_server.client() as anonymous:
            for verb in ("start", "stop"):
                url = f"{DEPLOYMENTS}/{tagger['id']}/{verb}"
                assert anonymous.post(url).status_code == 401

    def test_stopped_one_refuses_and_started_one_answers(
        self, client: httpx.Client, tagger: dict[str, Any]
    ):
        url = f"{DEPLOYMENTS}/{tagger['id']}"
        assert call(client, tagger["model"]).status_code == 200
        assert client.post(f"{url}/stop").json()["desired"] == "stopped"
        refused = call(client, tagger["model"])
        check_error(refused, 409, "ConflictError", "deployment_stopped")
        assert reaches(client, tagger, "stopped")
        stopped = get(client, tagger)
        assert (stopped["workers"], stopped["reason"]) == ([], "stopped_by_user")
        assert client.post(f"{url}/start").json()["desired"] == "running"
        assert call(client, tagger["model"]).status_code == 200

    def test_twice_is_once(self, client: httpx.Client, tagger: dict[str, Any]):
        url = f"{DEPLOYMENTS}/{tagger['id']}"
        for verb, desired in (("stop", "stopped"), ("start", "running")):
            for _ in range(2):
                assert client.post(f"{url}/{verb}").json()["desired"] == desired


class TestDelete:
    def test_anonymous(self, own_server: Server, tagger: dict[str, Any]):
        with own_server.client() as anonymous:
            assert anonymous.delete(f"{DEPLOYMENTS}/{tagger['id']}").status_code == 401

    def test_model_is_gone(self, account: Account):
        client = account.client
        made = deploy(client, account.artifact_id, "passing")
        assert call(client, "passing").status_code == 200
        answer = client.delete(f"{DEPLOYMENTS}/{made['id']}").json()
        assert answer == {"id": made["id"], "object": "deployment.deleted", "deleted": True}
        check_error(call(client, "passing"), 404, "ModelNotFoundError", "model_not_found", "model")
        for path in ("", "/logs", "/events"):
            response = client.get(f"{DEPLOYMENTS}/{made['id']}{path}")
            check_error(response, 404, "NotFoundError", "deployment_not_found")
        response = client.delete(f"{DEPLOYMENTS}/{made['id']}")
        check_error(response, 404, "NotFoundError", "deployment_not_found")
        again = deploy(client, account.artifact_id, "passing")
        assert again["id"] != made["id"]
        client.delete(f"{DEPLOYMENTS}/{again['id']}").raise_for_status()


class TestReadiness:
    def test_cold_one_stops_when_idle_and_starts_on_request(self, account: Account):
        client = account.client
        made = deploy(client, account.artifact_id, "idler", idle_timeout_s=1)
        assert get(client, made)["workers"] == []
        assert call(client, "idler").status_code == 200
        assert reaches(client, made, "idle")
        assert get(client, made)["reason"] == "idle_timeout"
        assert get(client, made)["workers"] == []
        assert call(client, "idler").status_code == 200
        client.delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()

    def test_warm_one_starts_without_a_call_and_stays(self, account: Account):
        client = account.client
        made = deploy(client, account.artifact_id, "warm", readiness="warm", idle_timeout_s=1)
        assert reaches(client, made, "ready")
        (worker,) = get(client, made)["workers"]
        assert worker["status"] == "ready"
        assert worker["pid"] > 0
        time.sleep(1.6)  # longer than the idle timeout and a round of upkeep
        assert [current["id"] for current in get(client, made)["workers"]] == [worker["id"]]
        client.delete(f"{DEPLOYMENTS}/{made['id']}").raise_for_status()

    def test_cold_one_turned_warm(self, client: httpx.Client, tagger: dict[str, Any]):
        body = {"readiness": "warm"}
        client.patch(f"{DEPLOYMENTS}/{tagger['id']}", json=body).raise_for_status()
        assert reaches(client, tagger, "ready")


class TestLogs:
    def test_anonymous(self, own_server: Server, tagger: dict[str, Any]):
        with own_server.client() as anonymous:
            assert anonymous.get(f"{DEPLOYMENTS}/{tagger['id']}/logs").status_code == 401

    def test_none_before_the_first_start(self, client: httpx.Client, tagger: dict[str, Any]):
        answer = client.get(f"{DEPLOYMENTS}/{tagger['id']}/logs").json()
        assert answer == {"object": "list", "data": []}

    def test_lines(self, client: httpx.Client, tagger: dict[str, Any]):
        assert call(client, tagger["model"]).status_code == 200
        lines = client.get(f"{DEPLOYMENTS}/{tagger['id']}/logs").raise_for_status().json()["data"]
        assert all(isinstance(line, str) for line in lines)
        last = client.get(f"{DEPLOYMENTS}/{tagger['id']}/logs", params={"tail": 1}).json()["data"]
        assert last == lines[-1:]

    @pytest.mark.parametrize("tail", [0, 1001, -1, "x"])
    def test_bad_tail(self, client: httpx.Client, tagger: dict[str, Any], tail: object):
        response = client.get(f"{DEPLOYMENTS}/{tagger['id']}/logs", params={"tail": tail})
        check_error(response, 400, *INVALID, "tail")


class TestEvents:
    def test_anonymous(self, own_server: Server, tagger: dict[str, Any]):
        with own_server.client() as anonymous:
            assert anonymous.get(f"{DEPLOYMENTS}/{tagger['id']}/events").status_code == 401

    def test_changes_in_order(self, client: httpx.Client, tagger: dict[str, Any]):
        assert call(client, tagger["model"]).status_code == 200
        url = f"{DEPLOYMENTS}/{tagger['id']}/events"

        def statuses() -> list[str]:
            events = client.get(url, params={"order": "asc"}).json()["data"]
            return [event["status"] for event in events]

        assert eventually(lambda: statuses() == ["idle", "starting", "ready"]), statuses()

    def test_created_is_told_once(self, account: Account):
        client = account.client
        made = deploy(client, account.artifact_id, "told-once")
        url = f"{DEPLOYMENTS}/{made['id']}"

        def reasons() -> list[str]:
            events = client.get(f"{url}/events", params={"order": "asc"}).json()["data"]
            return [event["reason"] for event in events]

        # No replica has run yet.
        assert reasons() == ["created"]
        first = client.get(f"{url}/events").json()["data"][0]
        assert (first["status"], first["message"]) == ("idle", "Created.")
        assert call(client, "told-once").status_code == 200
        assert eventually(lambda: reasons() == ["created", "request", "loaded"]), reasons()
        for way, status in {"stop": "stopped", "start": "idle"}.items():
            client.post(f"{url}/{way}").raise_for_status()
            assert eventually(lambda status=status: get(client, made)["status"] == status)
        assert call(client, "told-once").status_code == 200
        assert eventually(lambda: reasons()[-1] == "loaded"), reasons()
        assert reasons().count("created") == 1
        client.delete(url).raise_for_status()


class TestModels:
    def test_anonymous(self, own_server: Server):
        with own_server.client() as anonymous:
            assert anonymous.get("/v1/models").status_code == 401

    def test_shape(self, account: Account, tagger: dict[str, Any]):
        shown = account.client.get(f"/v1/models/{tagger['model']}").json()
        assert (shown["object"], shown["id"]) == ("model", tagger["model"])
        assert isinstance(shown["created"], int)
        assert (shown["pipeline"], shown["readiness"]) == ("token-classification", "cold")
        assert shown["endpoints"] == ["/v1/classifications/token"]
        assert shown in account.client.get("/v1/models").json()["data"]


class TestRestart:
    @pytest.mark.one_machine
    def test_deployments_and_keys_survive(self, account: Account, tagger: dict[str, Any]):
        server = account.server
        caller_key = key_for(account.client, tagger["id"])
        url = f"{DEPLOYMENTS}/{tagger['id']}"
        account.client.patch(url, json={"max_queue": 7}).raise_for_status()
        stopped = deploy(account.client, account.artifact_id, "halted")
        account.client.post(f"{DEPLOYMENTS}/{stopped['id']}/stop").raise_for_status()
        before = account.client.get(DEPLOYMENTS).json()["data"]
        server.kill()
        # Deployments from before estimates were stored have no value.
        with closing(sqlite3.connect(server.data_dir / "stoker.db")) as database, database:
            database.execute("UPDATE deployments SET memory_bytes = NULL WHERE NOT is_measured")
        server.restart()
        after = account.client.get(DEPLOYMENTS).json()["data"]
        for old, new in zip(before, after, strict=True):
            fields = set(old) - {"status", "reason", "message", "workers"}
            assert {name: new[name] for name in fields} == {name: old[name] for name in fields}
        with server.client(caller_key) as caller:
            assert call(caller).status_code == 200
        refused = call(account.client, "halted")
        check_error(refused, 409, "ConflictError", "deployment_stopped")
        account.client.delete(f"{DEPLOYMENTS}/{stopped['id']}").raise_for_status()
