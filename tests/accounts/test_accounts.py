from collections.abc import Iterator

import httpx
import pytest

from tests.deployments.support import check_error
from tests.support.server import Server

ACCOUNTS = "/v1/accounts"


@pytest.fixture(scope="module")
def operator(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.operator_key) as client:
        yield client


class TestCreate:
    def test_anonymous(self, server: Server):
        with server.client() as anonymous:
            assert anonymous.post(ACCOUNTS, json={"name": "x"}).status_code == 401

    def test_account(self, operator: httpx.Client):
        response = operator.post(ACCOUNTS, json={"name": "Team Ω"})
        assert response.status_code == 201
        account = response.json()
        assert set(account) == {"id", "object", "name", "quotas", "created_at"}
        assert account["id"].startswith("acct_")
        assert (account["object"], account["name"]) == ("account", "Team Ω")
        assert account["created_at"].endswith("Z")

    @pytest.mark.parametrize("name", ["", "x" * 129, "a\0b", "a\nb", 7, None])
    def test_bad_name(self, operator: httpx.Client, name: object):
        response = operator.post(ACCOUNTS, json={"name": name})
        check_error(response, 400, "InvalidRequestError", "invalid_request", "name")


class TestList:
    def test_anonymous(self, server: Server):
        with server.client() as anonymous:
            assert anonymous.get(ACCOUNTS).status_code == 401

    def test_newest_first(self, operator: httpx.Client):
        made = [operator.post(ACCOUNTS, json={"name": name}).json() for name in "ab"]
        assert operator.get(ACCOUNTS, params={"limit": 2}).json()["data"] == made[::-1]
