"""An account with objects of every kind is deleted over HTTP, on both databases."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

import stoker.demo
from stoker.base.fairness import Tier
from stoker.registry.files import service as files
from stoker.server.erasure import service
from stoker.server.erasure.context import ErasureContext
from stoker.store import db
from stoker.store.db import Base
from stoker.store.tables.accounts import Account
from stoker.store.tables.files import Purpose
from stoker.tenancy.usage.counts import Counted, Counts
from stoker.tenancy.usage.metering import Metering
from tests.support.app import App, serving
from tests.support.rows import importing, trial, video

MODELS = Path(stoker.demo.__file__).parent / "models"


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    options: dict[str, Any] = {"source_dirs": [MODELS]}
    if request.param == "postgresql":
        options["database_url"] = request.getfixturevalue("postgres_url")
    return options


@pytest.fixture
async def app(tmp_path: Path, settings: Mapping[str, Any]) -> AsyncIterator[App]:
    async with serving(tmp_path / "data", **settings) as app:
        yield app


@asynccontextmanager
async def operator(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with app.client(app.operator_key) as client:
        yield client


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


async def filled(app: App, name: str) -> tuple[httpx.AsyncClient, str]:
    """Creates an account with jobs and objects of many kinds. Returns a client with the account's
    key, and the account's id.
    """
    owner = await app.account(name)
    account_id: str = owner.account_id  # type: ignore[attr-defined]
    source, model = str(MODELS / "tiny-chat"), f"{name}-chat"
    deployment = (await posted(owner, "/v1/deployments", model=model, source=source))["id"]
    request = {"messages": [{"role": "user", "content": name}]}
    check = {"name": name, "request": request, "expect": {"contains": name}}
    checks = f"/v1/deployments/{deployment}/checks"
    (await owner.put(checks, json={"checks": [check]})).raise_for_status()
    artifact = (await posted(owner, "/v1/model-artifacts", display_name=name))["id"]
    uploads = f"/v1/model-artifacts/{artifact}/uploads"
    upload = (await posted(owner, uploads))["upload_id"]
    place = f"{uploads}/{upload}/files/{name}.json"
    (await owner.put(place, content=name.encode())).raise_for_status()
    agent = (await posted(owner, "/v1/agent", name=name, model=model, instructions=name))["id"]
    await posted(owner, f"/v1/agent/{agent}/runs", input=name)
    await posted(owner, "/v1/api-keys", scope="account", name=name)
    await files.store(
        app.platform,
        account_id=account_id,
        deployment_id=deployment,
        purpose=Purpose.IMAGE,
        contents=[name.encode()],
        content_type="image/png",
    )
    later = {"not_before": db.now().replace(year=2100)}
    async with app.platform.database.transaction() as session:
        session.add(video(account_id, deployment, prompt=name, **later))
        session.add(trial(account_id, deployment, examples=[{"prompt": name}], **later))
        session.add(importing(account_id, artifact, upload, repo_id=name, **later))
    return owner, account_id


async def mentions(app: App, word: str) -> set[str]:
    """Returns the tables and files that contain a word or an account's id."""
    names: set[str] = set()
    async with app.platform.database.reading() as session:
        for table in Base.metadata.sorted_tables:
            rows = (await session.execute(select(table))).all()
            if word in str(rows):
                names.add(table.name)
    blobs = app.platform.settings.data_dir / "blobs"
    paths = [path for path in blobs.rglob("*") if path.is_file()]
    return names | {str(path) for path in paths if word.encode() in path.read_bytes()}


async def test_everything_goes_and_nothing_of_others(app: App) -> None:
    owner, account_id = await filled(app, "zebra")
    other, other_id = await filled(app, "giraffe")
    paths = ("/v1/deployments", "/v1/model-artifacts", "/v1/agent", "/v1/files", "/v1/videos")
    other_lists = {path: (await other.get(path)).json() for path in paths}
    other_mentions = await mentions(app, "giraffe") | await mentions(app, other_id)
    assert {"deployments", "files", "agents", "videos", "trials", "imports"} <= other_mentions
    assert await mentions(app, "zebra")
    place = f"/v1/accounts/{account_id}"
    assert (await owner.delete(place)).status_code == 401
    async with operator(app) as client:
        grant = {"amount_microcredits": 5, "note": "zebra"}
        await posted(client, f"{place}/credits", **grant)
        answer = await client.delete(place)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"id": account_id, "object": "account.deleted", "deleted": True}
        for again in (await client.delete(place), await client.get(place)):
            assert again.status_code == 404
            assert again.json()["error"]["code"] == "account_not_found"
        assert account_id not in (await client.get("/v1/accounts")).text
    assert (await owner.get("/v1/deployments")).status_code == 401
    assert await mentions(app, "zebra") == set()
    assert await mentions(app, account_id) == set()
    assert await mentions(app, "giraffe") | await mentions(app, other_id) == other_mentions
    assert {path: (await other.get(path)).json() for path in paths} == other_lists


async def test_metering_goes_on(app: App) -> None:
    """Usage that replicas report after their account was deleted is dropped."""
    _, account_id = await filled(app, "zebra")
    metering = app.parts.get(Metering)
    async with operator(app) as client:
        (await client.delete(f"/v1/accounts/{account_id}")).raise_for_status()
    late = Counted(
        id="cnt_late",
        account_id=account_id,
        deployment_id="dep_1",
        version_id="",
        key="",
        tier=Tier.DEFAULT,
        model="zebra",
        hour=1,
        values={"requests": 1},
    )
    app.parts.get(Counts).take = lambda: [late]  # type: ignore[method-assign]
    await metering.tick()
    assert await mentions(app, "zebra") == set()


async def test_a_deletion_that_was_cut_off_goes_on(
    tmp_path: Path, settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: Any) -> None:
        raise OSError("killed")

    async with serving(tmp_path / "data", **settings) as app:
        owner, account_id = await filled(app, "zebra")
        with monkeypatch.context() as patched:
            patched.setattr(service, "_erase_artifacts", killed)
            with pytest.raises(OSError, match="killed"):
                await service.delete(app.parts.get(ErasureContext), account_id)
        # The account is rejected as soon as its deletion starts.
        assert (await owner.get("/v1/deployments")).status_code == 401
        async with operator(app) as client:
            place = f"/v1/accounts/{account_id}"
            assert (await client.get(place)).status_code == 404
            assert account_id not in (await client.get("/v1/accounts")).text
            body = {"scope": "account", "account_id": account_id}
            assert (await client.post("/v1/api-keys", json=body)).status_code == 404
            acting = {"x-stoker-account": account_id}
            assert (await client.get("/v1/deployments", headers=acting)).status_code == 404
    async with serving(tmp_path / "data", **settings) as app, asyncio.timeout(30):
        while await _exists(app, account_id):
            await asyncio.sleep(0.05)
        assert await mentions(app, "zebra") == set()


async def _exists(app: App, account_id: str) -> bool:
    async with app.platform.database.reading() as session:
        return await session.get(Account, account_id) is not None
