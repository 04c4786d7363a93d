"""The full lifecycle of a model on PostgreSQL."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.deployments.support import DEPLOYMENTS, call, deploy, key_for, upload
from tests.support import postgres
from tests.support.server import WITHOUT_MODELS, Server, running


@pytest.fixture(scope="module")
def database_url() -> Iterator[str]:
    with postgres.running() as url:
        yield url


@pytest.fixture(scope="module")
def pg_server(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir: Path = tmp_path_factory.mktemp("postgres") / "data"
    # The engines are imported when the first deployment needs them.
    with running(data_dir, STOKER_DATABASE_URL=database_url, **WITHOUT_MODELS) as server:
        yield server


@pytest.fixture(scope="module")
def client(pg_server: Server) -> Iterator[httpx.Client]:
    with pg_server.account() as client:
        yield client


@pytest.fixture(scope="module")
def artifact_id(pg_server: Server, client: httpx.Client) -> str:
    return upload(pg_server, client)


def test_nothing_is_kept_in_sqlite(pg_server: Server, client: httpx.Client):
    assert not list(pg_server.data_dir.glob("stoker.db*"))


def test_deployment_answers(pg_server: Server, client: httpx.Client, artifact_id: str):
    pg_server.wait_ready()
    deployment = deploy(client, artifact_id, "tagger")
    with pg_server.client(key_for(client, deployment["id"])) as caller:
        answer = call(caller)
    assert answer.status_code == 200, answer.text
    assert isinstance(answer.json(), list)
    events = client.get(f"{DEPLOYMENTS}/{deployment['id']}/events").json()["data"]
    assert "ready" in {event["status"] for event in events}
    client.delete(f"{DEPLOYMENTS}/{deployment['id']}").raise_for_status()
    assert client.get(f"{DEPLOYMENTS}/{deployment['id']}").status_code == 404


def test_paging(client: httpx.Client):
    made = [client.post("/v1/api-keys", json={"scope": "account"}).json()["id"] for _ in range(5)]
    first = client.get("/v1/api-keys", params={"limit": 3}).json()
    assert [key["id"] for key in first["data"]] == made[:1:-1]
    assert first["has_more"]
    rest = client.get("/v1/api-keys", params={"limit": 100, "after": first["last_id"]}).json()
    assert [key["id"] for key in rest["data"]][:2] == made[1::-1]
    assert not rest["has_more"]


def test_idempotent_creation(client: httpx.Client):
    headers = {"idempotency-key": "once"}
    first, again = (
        client.post("/v1/model-artifacts", json={"display_name": "a"}, headers=headers)
        for _ in range(2)
    )
    assert first.status_code == 201
    assert again.json() == first.json()
    other = client.post("/v1/model-artifacts", json={"display_name": "b"}, headers=headers)
    assert other.status_code == 409


def test_concurrent_creations_with_one_idempotency_key(client: httpx.Client):
    def create(_: int) -> httpx.Response:
        body = {"display_name": "raced"}
        return client.post("/v1/model-artifacts", json=body, headers={"idempotency-key": "race"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    listed = client.get("/v1/model-artifacts").json()["data"]
    assert [artifact["display_name"] for artifact in listed].count("raced") == 1


def test_concurrent_deployments_of_one_model_id(client: httpx.Client, artifact_id: str):
    def create(_: int) -> httpx.Response:
        return client.post(DEPLOYMENTS, json={"model": "raced", "artifact_id": artifact_id})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [409] * 7
    refused = [answer for answer in answers if answer.status_code == 409]
    assert {answer.json()["error"]["code"] for answer in refused} == {"model_exists"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/deployments/%00", None),
        ("GET", "/v1/model-artifacts/%00", None),
        ("DELETE", "/v1/api-keys/a%00b", None),
        ("GET", "/v1/deployments?after=%00", None),
        ("POST", "/v1/api-keys", {"scope": "account", "name": "a\0b"}),
        ("POST", "/v1/api-keys", {"deployment_ids": ["a\0b"]}),
        ("POST", "/v1/api-keys", {"scope": "account", "account_id": "a\0b"}),
        ("POST", "/v1/deployments", {"model": "x", "artifact_id": "a\0b"}),
        ("POST", "/v1/deployments", {"model": "x\0", "artifact_id": "a"}),
        ("POST", "/v1/model-artifacts", {"display_name": "a\0b"}),
        ("POST", "/v1/model-artifacts", {"display_name": "a", "pipeline": "a\0b"}),
    ],
)
def test_nul_is_the_clients_fault(
    client: httpx.Client, method: str, path: str, body: dict[str, object] | None
):
    """A NUL in a text is a client error, because PostgreSQL cannot store it."""
    assert client.request(method, path, json=body).status_code in {400, 404}


def test_restart_keeps_everything(pg_server: Server, client: httpx.Client, artifact_id: str):
    before = client.get("/v1/api-keys").json()["data"]
    assert pg_server.stop() == 0
    pg_server.start()
    with pg_server.client(client.headers["authorization"].removeprefix("Bearer ")) as again:
        after = again.get("/v1/api-keys").json()["data"]
        assert [key["id"] for key in after] == [key["id"] for key in before]
        assert any(key["last_used_at"] for key in after)
        assert again.get(f"/v1/model-artifacts/{artifact_id}").json()["status"] == "ready"
