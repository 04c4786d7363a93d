import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.artifacts.support import eventually
from tests.deployments.support import check_error, deploy, upload
from tests.support.server import Server

KEYS = "/v1/api-keys"
FIELDS = {
    "id",
    "object",
    "public_id",
    "scope",
    "account_id",
    "deployment_ids",
    "name",
    "created_at",
    "expires_at",
    "requests_per_minute",
    "tokens_per_minute",
    "may_prioritize",
    "last_used_at",
}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("keys") as client:
        yield client


@pytest.fixture(scope="module")
def operator(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.operator_key) as client:
        yield client


@pytest.fixture(scope="module")
def other(server: Server) -> Iterator[httpx.Client]:
    with server.account("other") as client:
        yield client


@pytest.fixture(scope="module")
def deployment_id(server: Server, client: httpx.Client) -> str:
    return deploy(client, upload(server, client), "tagger")["id"]


def create(client: httpx.Client, **body: Any) -> dict[str, Any]:
    return client.post(KEYS, json={"scope": "account", **body}).raise_for_status().json()


def works(server: Server, key: str) -> bool:
    with server.client(key) as client:
        return client.get("/v1/models").status_code == 200


class TestCreate:
    def test_anonymous(self, server: Server):
        with server.client() as anonymous:
            assert anonymous.post(KEYS, json={"scope": "account"}).status_code == 401

    def test_account_scope(self, server: Server, client: httpx.Client):
        key = create(client, name="ci")
        assert set(key) == FIELDS | {"key"}
        assert key["account_id"] == client.account_id  # type: ignore[attr-defined]
        assert (key["object"], key["scope"], key["name"]) == ("api_key", "account", "ci")
        assert key["expires_at"] is key["last_used_at"] is None
        assert works(server, key["key"])

    def test_form(self, client: httpx.Client):
        key = create(client)
        prefix, public_id, secret = key["key"].split("-", 2)
        assert (prefix, public_id) == ("sk", key["public_id"])
        assert len(secret) >= 43  # 256 bits, 6 per character

    def test_deployment_scope(self, server: Server, client: httpx.Client, deployment_id: str):
        body = {"deployment_ids": [deployment_id]}
        key = client.post(KEYS, json=body).raise_for_status().json()
        assert (key["scope"], key["deployment_ids"]) == ("deployment", [deployment_id])
        with server.client(key["key"]) as caller:
            assert [model["id"] for model in caller.get("/v1/models").json()["data"]] == ["tagger"]

    def test_deployment_scope_needs_deployments(self, client: httpx.Client):
        response = client.post(KEYS, json={"scope": "deployment"})
        check_error(response, 400, "InvalidRequestError", "invalid_request", "deployment_ids")

    def test_account_scope_takes_no_deployments(self, client: httpx.Client, deployment_id: str):
        body = {"scope": "account", "deployment_ids": [deployment_id]}
        response = client.post(KEYS, json=body)
        check_error(response, 400, "InvalidRequestError", "invalid_request", "deployment_ids")

    def test_deployment_of_another_account(
        self, client: httpx.Client, other: httpx.Client, deployment_id: str
    ):
        for caller, ids in ((other, [deployment_id]), (client, [deployment_id, "dep_nobodys"])):
            response = caller.post(KEYS, json={"deployment_ids": ids})
            param = f"deployment_ids[{len(ids) - 1}]"
            check_error(response, 404, "NotFoundError", "deployment_not_found", param)

    def test_no_account_key_makes_an_operator(self, client: httpx.Client):
        response = client.post(KEYS, json={"scope": "operator"})
        check_error(response, 401, "InvalidAPIKeyError", "invalid_api_key")

    def test_no_account_key_for_another_account(self, client: httpx.Client, other: httpx.Client):
        body = {"scope": "account", "account_id": other.account_id}  # type: ignore[attr-defined]
        response = client.post(KEYS, json=body)
        check_error(response, 404, "NotFoundError", "account_not_found", "account_id")

    def test_operator_scope(self, server: Server, operator: httpx.Client):
        key = create(operator, scope="operator")
        assert key["account_id"] is None
        with server.client(key["key"]) as caller:
            assert caller.get("/v1/accounts").status_code == 200
        operator.delete(f"{KEYS}/{key['id']}").raise_for_status()

    def test_operator_names_the_account(self, operator: httpx.Client):
        response = operator.post(KEYS, json={"scope": "account"})
        check_error(response, 400, "InvalidRequestError", "invalid_request", "account_id")
        response = operator.post(KEYS, json={"scope": "account", "account_id": "acct_nobody"})
        check_error(response, 404, "NotFoundError", "account_not_found", "account_id")
        response = operator.post(KEYS, json={"scope": "operator", "account_id": "acct_nobody"})
        check_error(response, 400, "InvalidRequestError", "invalid_request", "account_id")

    @pytest.mark.parametrize(
        "expires_at",
        [
            "2020-01-01T00:00:00Z",  # past
            "2100-01-01T00:00:00",  # without a zone
            "2100-01-01",
            "0001-01-01T00:00:00+14:00",  # before the first year in UTC
            "9999-12-31T23:59:59-12:00",  # after the last year in UTC
            "tomorrow",
            "",
            1e300,
            True,
        ],
    )
    def test_bad_expiry(self, client: httpx.Client, expires_at: object):
        response = client.post(KEYS, json={"scope": "account", "expires_at": expires_at})
        check_error(response, 400, "InvalidRequestError", "invalid_request", "expires_at")

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"scope": "root"}, "scope"),
            ({"scope": "account", "name": ""}, "name"),
            ({"scope": "account", "name": "x" * 129}, "name"),
            ({"scope": "account", "name": "a\nb"}, "name"),
            ({"deployment_ids": ["x"] * 101}, "deployment_ids"),
            ({"deployment_ids": ["x" * 65]}, "deployment_ids[0]"),
            ({"deployment_ids": "dep_x"}, "deployment_ids"),
            ({"scope": "account", "expires": "2100-01-01T00:00:00Z"}, "expires"),
        ],
    )
    def test_bad_field(self, client: httpx.Client, body: dict[str, Any], param: str):
        response = client.post(KEYS, json=body)
        check_error(response, 400, "InvalidRequestError", "invalid_request", param)

    def test_replay_is_for_those_who_may_create(
        self, server: Server, client: httpx.Client, deployment_id: str
    ):
        """A caller that learns an Idempotency-Key cannot obtain the key that it created."""
        headers = {"idempotency-key": "learnt"}
        body = {"scope": "account"}
        first = client.post(KEYS, json=body, headers=headers).raise_for_status()
        assert client.post(KEYS, json=body, headers=headers).json() == first.json()
        lesser = client.post(KEYS, json={"deployment_ids": [deployment_id]}).json()["key"]
        with server.client(lesser) as caller:
            assert caller.post(KEYS, json=body, headers=headers).status_code == 401


class TestList:
    def test_anonymous(self, server: Server):
        with server.client() as anonymous:
            assert anonymous.get(KEYS).status_code == 401

    def test_own_keys_without_secrets(self, server: Server):
        with server.account() as client:
            made = [create(client, name=str(number)) for number in range(2)]
            listed = client.get(KEYS).json()["data"]
        assert [key["name"] for key in listed] == ["1", "0", None]
        assert all(set(key) == FIELDS for key in listed)
        assert not any(key["key"].split("-", 2)[2] in str(listed) for key in made)

    def test_operator_sees_all(self, operator: httpx.Client, client: httpx.Client):
        made = create(client)
        assert made["id"] == operator.get(KEYS, params={"limit": 1}).json()["data"][0]["id"]


class TestGet:
    def test_anonymous(self, server: Server, client: httpx.Client):
        key = create(client)
        with server.client() as anonymous:
            assert anonymous.get(f"{KEYS}/{key['id']}").status_code == 401

    def test_shows_no_secret(self, client: httpx.Client):
        key = create(client, name="shown")
        shown = client.get(f"{KEYS}/{key['id']}").json()
        assert shown == {name: value for name, value in key.items() if name != "key"}

    def test_of_another_account(self, client: httpx.Client, other: httpx.Client):
        key = create(client)
        response = other.get(f"{KEYS}/{key['id']}")
        check_error(response, 404, "NotFoundError", "api_key_not_found")


class TestRotate:
    def test_anonymous(self, server: Server, client: httpx.Client):
        key = create(client)
        with server.client() as anonymous:
            assert anonymous.post(f"{KEYS}/{key['id']}/rotate").status_code == 401

    def test_without_grace(self, server: Server, client: httpx.Client):
        old = create(client)
        assert works(server, old["key"])
        new = client.post(f"{KEYS}/{old['id']}/rotate", json={"grace_s": 0}).json()
        assert (new["id"], new["public_id"]) == (old["id"], old["public_id"])
        assert not works(server, old["key"])
        assert works(server, new["key"])

    def test_grace_ends(self, server: Server, client: httpx.Client):
        old = create(client)
        begun = time.monotonic()
        new = client.post(f"{KEYS}/{old['id']}/rotate", json={"grace_s": 1}).json()
        # The cached key must expire on time as well.
        assert works(server, old["key"]) or time.monotonic() - begun > 1
        assert eventually(lambda: not works(server, old["key"]))
        assert time.monotonic() - begun >= 1
        assert works(server, new["key"])

    def test_default_grace_is_a_day(self, server: Server, client: httpx.Client):
        old = create(client)
        new = client.post(f"{KEYS}/{old['id']}/rotate").raise_for_status().json()
        assert works(server, old["key"])
        assert works(server, new["key"])

    @pytest.mark.parametrize("grace_s", [-1, 30 * 24 * 3600 + 1, "soon", None])
    def test_bad_grace(self, client: httpx.Client, grace_s: object):
        response = client.post(f"{KEYS}/{create(client)['id']}/rotate", json={"grace_s": grace_s})
        check_error(response, 400, "InvalidRequestError", "invalid_request", "grace_s")

    def test_of_another_account(self, server: Server, client: httpx.Client, other: httpx.Client):
        key = create(client)
        response = other.post(f"{KEYS}/{key['id']}/rotate", json={"grace_s": 0})
        check_error(response, 404, "NotFoundError", "api_key_not_found")
        assert works(server, key["key"])


class TestRevoke:
    def test_anonymous(self, server: Server, client: httpx.Client):
        key = create(client)
        with server.client() as anonymous:
            assert anonymous.delete(f"{KEYS}/{key['id']}").status_code == 401
        assert works(server, key["key"])

    def test_at_once(self, server: Server, client: httpx.Client):
        key = create(client)
        assert works(server, key["key"])
        answer = client.delete(f"{KEYS}/{key['id']}").json()
        assert answer == {"id": key["id"], "object": "api_key.deleted", "deleted": True}
        assert not works(server, key["key"])

    def test_old_secret_in_its_grace_ends_too(self, server: Server, client: httpx.Client):
        old = create(client)
        new = client.post(f"{KEYS}/{old['id']}/rotate").json()
        client.delete(f"{KEYS}/{old['id']}").raise_for_status()
        assert not works(server, old["key"])
        assert not works(server, new["key"])

    def test_twice(self, client: httpx.Client):
        key = create(client)
        client.delete(f"{KEYS}/{key['id']}").raise_for_status()
        for response in (
            client.delete(f"{KEYS}/{key['id']}"),
            client.get(f"{KEYS}/{key['id']}"),
            client.post(f"{KEYS}/{key['id']}/rotate"),
        ):
            check_error(response, 404, "NotFoundError", "api_key_not_found")

    def test_of_another_account(self, server: Server, client: httpx.Client, other: httpx.Client):
        key = create(client)
        response = other.delete(f"{KEYS}/{key['id']}")
        check_error(response, 404, "NotFoundError", "api_key_not_found")
        assert works(server, key["key"])

    def test_operators_key_is_hidden_from_accounts(
        self, operator: httpx.Client, client: httpx.Client
    ):
        key = create(operator, scope="operator")
        response = client.delete(f"{KEYS}/{key['id']}")
        check_error(response, 404, "NotFoundError", "api_key_not_found")
        operator.delete(f"{KEYS}/{key['id']}").raise_for_status()


class TestExpiry:
    def test_ends_on_time(self, server: Server, client: httpx.Client):
        # Long enough to create the key meanwhile on a busy machine.
        moment = datetime.now(UTC) + timedelta(seconds=3)
        key = create(client, expires_at=moment.isoformat())
        assert key["expires_at"].endswith("Z")
        # Used before, so that the server has cached it as valid.
        assert works(server, key["key"]) or datetime.now(UTC) >= moment
        assert eventually(lambda: not works(server, key["key"]))
        assert datetime.now(UTC) >= moment

    def test_zone_is_heeded(self, client: httpx.Client):
        key = create(client, expires_at="2100-01-01T02:00:00+02:00")
        assert key["expires_at"] == "2100-01-01T00:00:00.000Z"
