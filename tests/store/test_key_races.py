"""Concurrent changes of one key: every returned secret works for as long as promised."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.platform.web.principal import Principal, Scope
from stoker.tenancy.keys import service
from stoker.tenancy.keys.keyring import Keyring
from stoker.tenancy.keys.sessions import Sessions
from tests.support.app import App, serving
from tests.support.databases import postgres_url

__all__ = ["postgres_url"]

KEYS = "/v1/api-keys"


@pytest.fixture(params=["sqlite", "postgresql"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[App]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    async with serving(tmp_path / "data", database_url=url) as app:
        yield app


@pytest.mark.parametrize("is_revoked", [False, True])
async def test_rotated_while_it_is_rotated_or_revoked(app: App, is_revoked: bool) -> None:
    client = await app.account()
    account: str = client.account_id  # type: ignore[attr-defined]
    key = (await client.post(KEYS, json={"scope": "account"})).raise_for_status().json()
    caller = Principal("key_tests", "tests", Scope.ACCOUNT, account, frozenset())
    keyring, first = app.parts.get(Keyring), ""
    async with app.platform.database.transaction() as session:
        if is_revoked:
            await service.revoke(session, keyring, app.parts.get(Sessions), caller, key["id"])
        else:
            row, secret = await service.rotate(session, keyring, caller, key["id"], 3600)
            first = service.whole(row, secret)
        rotating = asyncio.create_task(client.post(f"{KEYS}/{key['id']}/rotate"))
        # Without the row's lock the request would have read the key's previous state.
        await asyncio.wait([rotating], timeout=0.3)
    second = await rotating
    if is_revoked:
        assert second.status_code == 404
        return
    for secret in (first, second.raise_for_status().json()["key"]):
        async with app.client(secret) as known:
            assert (await known.get("/v1/models")).status_code == 200
