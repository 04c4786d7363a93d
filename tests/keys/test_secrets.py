"""A key's secret is shown once, and is stored in no file and no log afterwards."""

import pytest

from tests.support.server import Server

KEYS = "/v1/api-keys"
# A fleet stores its secret and keys in its database, which has no files on this server.
pytestmark = pytest.mark.one_machine


def files_with(server: Server, secret: str) -> set[str]:
    """Returns the server's files, including its log, that contain a text."""
    files = [path for path in server.data_dir.rglob("*") if path.is_file()]
    # The database's journal contains rows that have not been moved into the database yet.
    assert {"stoker.db", "stoker.db-wal"} <= {path.name for path in files}
    return {path.name for path in [*files, server.log] if secret.encode() in path.read_bytes()}


def make_and_use_keys(server: Server) -> list[str]:
    """Creates keys in every way, and uses, misuses, rotates and revokes them."""
    with server.account() as client:
        made = [
            client.post(KEYS, json={"scope": "account"}, headers=headers).json()
            for headers in ({}, {"idempotency-key": "a"}, {"idempotency-key": "a"})
        ]
        assert made[1] == made[2]
        made.append(client.post(f"{KEYS}/{made[0]['id']}/rotate", json={"grace_s": 60}).json())
        account_key = client.headers["authorization"].removeprefix("Bearer ")
    keys = [account_key, *(key["key"] for key in made)]
    for key in keys:
        with server.client(key) as caller:
            assert caller.get("/v1/models").status_code == 200
            caller.get("/v1/models/none")
            caller.get("/v1/accounts")
            caller.post(KEYS, content=b"{", headers={"content-type": "application/json"})
            caller.post(KEYS, json={"scope": "account", "expires_at": "never"})
        with server.client(key + "x") as caller:
            assert caller.get("/v1/models").status_code == 401
    with server.client(account_key) as client:
        client.delete(f"{KEYS}/{made[1]['id']}").raise_for_status()
    return keys


def secret_of(key: str) -> str:
    return key.split("-", 2)[2]


@pytest.mark.case(16)
def test_secrets_are_in_no_file_and_no_log(gateway: Server):
    secrets = {secret_of(key) for key in make_and_use_keys(gateway)}
    assert len(secrets) == 4
    for secret in secrets:
        assert files_with(gateway, secret) == set()
    assert files_with(gateway, secret_of(gateway.operator_key)) == {"operator-key"}
    account_key = (gateway.data_dir / "account-key").read_text().strip()
    assert files_with(gateway, secret_of(account_key)) == {"account-key"}


def test_search_would_find_them(gateway: Server):
    """The public id is stored, so finding it proves that the search covers the stored data."""
    key = make_and_use_keys(gateway)[0]
    public_id = key.split("-", 2)[1]
    assert files_with(gateway, public_id) & {"stoker.db", "stoker.db-wal"}


def test_files_are_private(gateway: Server):
    for name in ("operator-key", "account-key", "server-secret", "server.json"):
        assert (gateway.data_dir / name).stat().st_mode & 0o077 == 0, name
