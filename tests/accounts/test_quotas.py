"""Limits of accounts over HTTP. The usage of one account does not affect another."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.artifacts.support import ARTIFACTS, new_artifact
from tests.deployments.support import check_error
from tests.support.server import Server

ACCOUNTS, QUOTAS, KEYS = "/v1/accounts", "/v1/quotas", "/v1/api-keys"
MIB = 1 << 20


@pytest.fixture(scope="module")
def operator(gateway: Server) -> Iterator[httpx.Client]:
    with gateway.client(gateway.operator_key) as client:
        yield client


@pytest.fixture
def one(gateway: Server) -> Iterator[httpx.Client]:
    with gateway.account("one") as client:
        yield client


@pytest.fixture
def other(gateway: Server) -> Iterator[httpx.Client]:
    with gateway.account("other") as client:
        yield client


def allow(operator: httpx.Client, client: httpx.Client, **quotas: int | None) -> dict[str, Any]:
    path = f"{ACCOUNTS}/{client.account_id}"  # type: ignore[attr-defined]
    return operator.patch(path, json={"quotas": quotas}).raise_for_status().json()


def used(client: httpx.Client, name: str) -> tuple[int, int | None]:
    quota = client.get(QUOTAS).raise_for_status().json()["quotas"][name]
    return quota["used"], quota["limit"]


def opened(client: httpx.Client, size: int | None = None) -> httpx.Response:
    body = {} if size is None else {"json": {"size_bytes": size}}
    return client.post(f"{ARTIFACTS}/{new_artifact(client)}/uploads", **body)


class TestGet:
    def test_anonymous(self, gateway: Server):
        with gateway.client() as anonymous:
            for path in (QUOTAS, f"{ACCOUNTS}/acct_1"):
                assert anonymous.get(path).status_code == 401

    def test_what_there_is_and_may_be(self, one: httpx.Client):
        assert used(one, "deployments") == (0, 100_000)
        assert used(one, "keys") == (1, 1_000_000)
        new_artifact(one)
        assert used(one, "artifacts") == (1, 100_000)

    def test_operator_acts_for_an_account(self, operator: httpx.Client, one: httpx.Client):
        account: str = one.account_id  # type: ignore[attr-defined]
        answer = operator.get(QUOTAS, headers={"x-stoker-account": account}).json()
        assert (answer["account_id"], answer["quotas"]["keys"]["used"]) == (account, 1)
        assert operator.get(f"{ACCOUNTS}/{account}").json()["name"] == "one"

    def test_unknown(self, operator: httpx.Client):
        check_error(operator.get(f"{ACCOUNTS}/acct_x"), 404, "NotFoundError", "account_not_found")


class TestPatch:
    def test_is_for_operators(self, one: httpx.Client):
        path = f"{ACCOUNTS}/{one.account_id}"  # type: ignore[attr-defined]
        assert one.patch(path, json={"quotas": {"keys": 0}}).status_code == 401
        assert one.get(path).status_code == 401

    def test_sets_and_takes_back(self, operator: httpx.Client, one: httpx.Client):
        assert allow(operator, one, keys=5, agents=0)["quotas"] == {"keys": 5, "agents": 0}
        assert (used(one, "keys"), used(one, "agents")) == ((1, 5), (0, None))
        assert allow(operator, one, keys=None)["quotas"] == {"agents": 0}
        assert used(one, "keys") == (1, 1_000_000)

    def test_renames(self, operator: httpx.Client, one: httpx.Client):
        path = f"{ACCOUNTS}/{one.account_id}"  # type: ignore[attr-defined]
        assert operator.patch(path, json={"name": "two"}).json()["name"] == "two"

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"quotas": {"keyz": 5}}, "quotas.keyz"),
            ({"quotas": {"keys": -1}}, "quotas.keys"),
            ({"quotas": {"keys": 1 << 61}}, "quotas.keys"),
            ({"quotas": {"keys": "many"}}, "quotas.keys"),
            ({"quotas": 5}, "quotas"),
            ({"limits": {}}, "limits"),
        ],
    )
    def test_bad(self, operator: httpx.Client, one: httpx.Client, body: dict[str, Any], param: str):
        path = f"{ACCOUNTS}/{one.account_id}"  # type: ignore[attr-defined]
        response = operator.patch(path, json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param)


class TestM1:
    def test_keys(self, operator: httpx.Client, one: httpx.Client, other: httpx.Client):
        allow(operator, one, keys=2)
        second = one.post(KEYS, json={"scope": "account"})
        assert second.status_code == 201
        refused = one.post(KEYS, json={"scope": "account"})
        check_error(refused, 429, "RateLimitError", "quota_exceeded")
        assert "may have 2 API keys (quota 'keys'); it has 2" in refused.json()["error"]["message"]
        assert refused.headers["x-should-retry"] == "false"
        assert other.post(KEYS, json={"scope": "account"}).status_code == 201
        assert one.delete(f"{KEYS}/{second.json()['id']}").status_code == 200
        assert one.post(KEYS, json={"scope": "account"}).status_code == 201

    def test_artifacts(self, operator: httpx.Client, one: httpx.Client):
        allow(operator, one, artifacts=1)
        made = new_artifact(one)
        refused = one.post(ARTIFACTS, json={"display_name": "x"})
        check_error(refused, 429, "RateLimitError", "quota_exceeded")
        assert one.delete(f"{ARTIFACTS}/{made}").status_code == 200
        new_artifact(one)

    def test_upload_sessions(self, operator: httpx.Client, one: httpx.Client):
        allow(operator, one, upload_sessions=1)
        first = opened(one).raise_for_status().json()
        check_error(opened(one), 429, "RateLimitError", "quota_exceeded")
        # A session that replaces another one does not count again.
        artifact = first["artifact"]["id"]
        assert one.post(f"{ARTIFACTS}/{artifact}/uploads").status_code == 201

    def test_storage_is_kept_from_the_start(
        self, operator: httpx.Client, one: httpx.Client, other: httpx.Client
    ):
        allow(operator, one, storage_bytes=5 * MIB)
        first = opened(one, 3 * MIB).raise_for_status().json()
        assert used(one, "storage_bytes") == (3 * MIB, 5 * MIB)
        refused = opened(one, 3 * MIB)
        check_error(refused, 413, "PayloadTooLargeError", "quota_exceeded")
        assert f"it has {3 * MIB} and asks for {3 * MIB} more" in refused.json()["error"]["message"]
        assert opened(other, 3 * MIB).status_code == 201
        path = f"{ARTIFACTS}/{first['artifact']['id']}/uploads/{first['upload_id']}"
        assert one.put(f"{path}/files/a", content=bytes(2 * MIB)).status_code == 200
        assert used(one, "storage_bytes")[0] == 3 * MIB
        assert one.delete(path).status_code == 200
        assert used(one, "storage_bytes")[0] == 0
        assert opened(one, 3 * MIB).status_code == 201

    def test_storage_is_counted_as_it_is_told(self, operator: httpx.Client, one: httpx.Client):
        allow(operator, one, storage_bytes=3 * MIB)
        session = opened(one).raise_for_status().json()
        path = f"{ARTIFACTS}/{session['artifact']['id']}/uploads/{session['upload_id']}/files"
        assert one.put(f"{path}/a", content=bytes(2 * MIB)).status_code == 200
        refused = one.put(f"{path}/b", content=bytes(2 * MIB))
        check_error(refused, 413, "PayloadTooLargeError", "quota_exceeded")
        assert one.put(f"{path}/b", content=bytes(MIB)).status_code == 200
        # Sending the same file again uses no more storage.
        assert one.put(f"{path}/b", content=bytes(MIB)).status_code == 200
        assert used(one, "storage_bytes")[0] == 3 * MIB

    def test_storage_is_counted_as_it_comes(self, operator: httpx.Client, one: httpx.Client):
        allow(operator, one, storage_bytes=3 * MIB)
        session = opened(one).raise_for_status().json()
        path = f"{ARTIFACTS}/{session['artifact']['id']}/uploads/{session['upload_id']}/files"
        # Chunked: the total size is not known in advance.
        refused = one.put(f"{path}/a", content=(bytes(MIB) for _ in range(6)))
        check_error(refused, 413, "PayloadTooLargeError", "quota_exceeded")
        assert used(one, "storage_bytes")[0] <= 3 * MIB

    def test_more_than_an_artifact_may_have(self, one: httpx.Client):
        check_error(opened(one, 9 * MIB), 413, "PayloadTooLargeError", "payload_too_large")

    def test_more_than_the_disk_has(self, operator: httpx.Client, server: Server):
        with server.account() as client:
            refused = opened(client, 900 << 30)
        check_error(refused, 503, "CapacityError", "insufficient_storage")
        assert "bytes left" in refused.json()["error"]["message"]
