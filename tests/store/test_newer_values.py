"""A release reads rows of the next one, with unknown fields of stored JSON and unknown values of
stored enumerations.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import JSON, Column, String, select, update

import stoker.demo
from stoker.base.ids import Prefix, new_id
from stoker.platform.sealing import Sealer
from stoker.server.backups.creating import create
from stoker.server.backups.restoring import restore
from stoker.store import db
from stoker.store.db import Base, Database
from stoker.store.tables.agents import Run, RunEvent
from stoker.store.tables.batches import BatchPart
from stoker.store.tables.deployments import DeploymentEvent, VersionComparison
from stoker.store.tables.files import File, FileUpload
from stoker.store.tables.usage import Holding, Transfer
from tests.artifacts.support import ARTIFACTS
from tests.deployments.routes import CALLS, PAGES, STREAMS, places
from tests.deployments.support import DEPLOYMENTS
from tests.support import rows
from tests.support.app import App, serving
from tests.support.machines import NER

NEWER = "newer"
CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
TEXTS = {
    *("name", "display_name", "model", "note", "key", "prompt", "instructions", "message"),
    *("source", "base_source", "source", "target", "blob_key", "path", "content_type", "size"),
    *("repo_id", "revision", "commit", "api_key", "public_id", "body_sha256", "lock_token"),
    *("filename", "endpoint"),
    *("error_message", "failure_message", "merged_because", "object_id", "what"),
}
"""Columns with free texts, names and ids."""
NOT_OF_ACCOUNTS = {
    *("alembic_version", "schema_support", "shared_secrets", "revisions", "rate_levels"),
    *("console_links", "console_sessions", "servers", "nodes", "leases"),
}
"""Tables without enumerations. `nodes` and `servers` have JSON that is read by key."""
NESTED = {
    ("trials", "rows"): ("engine", "dtype", "status", "measure"),
    ("agents", "tools"): ("type",),
    ("deployments", "traffic"): ("sticky",),
    ("deployments", "notices"): ("code",),
    ("artifacts", "origin"): ("hub",),
    ("uploads", "origin"): ("hub",),
}
"""Enumerations within JSON."""


CHOSEN = {"api_keys": "key_id", "holdings": "holding_id"}
"""Tables of which one row is changed. The reader's own key stays valid, and the server itself
writes the other holdings.
"""


def columns() -> list[Column[Any]]:
    """Returns all columns that a newer release may fill with what this one does not know."""
    found: list[Column[Any]] = []
    for table in Base.metadata.sorted_tables:
        if table.name in NOT_OF_ACCOUNTS:
            continue
        for column in table.columns:
            is_id = (
                column.name == "id" or column.name.endswith(("_id", "_of")) or column.foreign_keys
            )
            is_enum = isinstance(column.type, String) and column.name not in TEXTS and not is_id
            if isinstance(column.type, JSON) or is_enum:
                found.append(column)
    return found


def newer(value: Any, nested: tuple[str, ...] = ()) -> Any:
    """Adds a field to each object, and changes the values of nested enumerations."""
    if isinstance(value, list):
        return [newer(item, nested) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {
        name: NEWER if name in nested and isinstance(item, str) else newer(item, nested)
        for name, item in value.items()
    }
    return {**changed, NEWER: 1}


def newer_value(column: Column[Any], value: Any) -> Any:
    place = (column.table.name, column.name)
    if isinstance(column.type, String):
        return NEWER
    changed = newer(value, NESTED.get(place, ()))
    if place == ("deployments", "traffic") and value:
        changed |= {"weights": value["weights"], "mirror": value["mirror"]}
    return changed


async def push(client: httpx.AsyncClient) -> tuple[str, str]:
    opened = await client.post(ARTIFACTS, json={"display_name": "ner"})
    artifact_id: str = opened.raise_for_status().json()["id"]
    uploads = f"{ARTIFACTS}/{artifact_id}/uploads"
    upload_id = (await client.post(uploads)).raise_for_status().json()["upload_id"]
    for path in sorted(NER.iterdir()):
        if path.is_file():
            put = await client.put(
                f"{uploads}/{upload_id}/files/{path.name}", content=path.read_bytes()
            )
            put.raise_for_status()
    (await client.post(f"{uploads}/{upload_id}/complete")).raise_for_status()
    return artifact_id, upload_id


async def fill(app: App, client: httpx.AsyncClient) -> dict[str, str]:
    """Makes an account store objects of all kinds. Returns the parameters of their paths."""
    account_id: str = client.account_id  # type: ignore[attr-defined]

    async def post(path: str, **body: Any) -> Any:
        return (await client.post(path, json=body)).raise_for_status().json()

    artifact_id, upload_id = await push(client)
    deployment = await post(DEPLOYMENTS, model="ner", artifact_id=artifact_id)
    deployment_id, version_id = deployment["id"], deployment["version_id"]
    await post("/v1/classifications/token", model="ner", inputs="Ada")
    check = {"name": "n", "request": {"inputs": "Ada"}, "expect": {"status": 200}}
    place = f"{DEPLOYMENTS}/{deployment_id}"
    (await client.put(f"{place}/checks", json={"checks": [check]})).raise_for_status()
    await post(f"{place}/checks/run")
    await post(DEPLOYMENTS, model="chat", source=str(CHAT))
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    agent = await post(
        "/v1/agent", name="a", model="chat", tools=[{"type": "function", "function": function}]
    )
    run = await post(f"/v1/agent/{agent['id']}/runs", input="hello")
    response = await post("/v1/responses", model="chat", input="hello", background=True)
    key = await post("/v1/api-keys", scope="account")
    trial = {"engine": "torch", "dtype": "float32", "status": "measured", "measure": "texts"}
    tally = {"live": {"calls": 1}, "mirror": {"calls": 1}, "texts": 1, "equal_texts": 1}
    now = db.now()
    hour = int(now.timestamp()) // 3600
    made = {
        "file": File(
            **{"id": new_id(Prefix.FILE), "account_id": account_id, "purpose": "image"},
            **{"deployment_id": deployment_id, "content_type": "image/png", "size": 1},
            **{"created_at": now, "expires_at": now.replace(year=now.year + 1)},
        ),
        "file_upload": FileUpload(
            **{"id": "upload_1", "account_id": account_id, "status": "pending"},
            **{"purpose": "batch", "content_type": "text/plain", "filename": "a", "size": 1},
            **{"created_at": now, "expires_at": now.replace(year=now.year + 1)},
        ),
        "video": rows.video(account_id, deployment_id, status="completed", completed_at=now),
        "batch": rows.batch(
            account_id,
            deployment_id,
            status="completed",
            state="failed",
            errors=[{"code": "c", "message": "m", "line": 1, "param": None}],
            paused={"code": "c", "message": "m"},
            completed_at=now,
        ),
        "trial": rows.trial(account_id, deployment_id, status="completed", rows=[trial]),
        "import": rows.importing(account_id, artifact_id, "upl_1", status="completed"),
        "comparison": VersionComparison(
            **{"id": new_id(Prefix.COMPARISON), "version_id": version_id},
            **{"live_version_id": version_id, "tally": tally, "updated_at": now},
        ),
        "event": DeploymentEvent(
            **{"id": new_id(Prefix.EVENT), "deployment_id": deployment_id, "status": "ready"},
            **{"version_id": version_id, "reason": "loaded", "message": "", "created_at": now},
        ),
        "holding": Holding(
            **{"id": new_id(Prefix.USAGE), "kind": "memory", "subject_id": "rep_1", "hour": hour},
            **{
                "account_id": account_id,
                "name": "ner",
                "started_ms": hour * 3_600_000,
                "ended_ms": hour * 3_600_000 + 1,
            },
            **{"mib_ms": 1, "peak_mib": 1, "price_version": 1, "is_final": True},
            **{"charged_mib_ms": 1, "charged_microcredits": 0, "is_settled": True},
        ),
        "transfer": Transfer(
            **{"id": new_id(Prefix.TRANSFER), "key": "k", "kind": "grant", "microcredits": 1},
            **{"source": "operator:grants", "target": f"account:{account_id}"},
            **{"account_id": account_id, "created_at": now},
        ),
    }
    part = BatchPart(
        **{"id": new_id(Prefix.BATCH_PART), "batch_id": made["batch"].id, "number": 1},
        **{"lines": [[0, 0]], "output_bytes": 0, "error_bytes": 0},
    )
    async with app.platform.database.transaction() as session:
        session.add_all([*made.values(), part])
        traffic = {"weights": {version_id: 100}, "sticky": "none", "mirror": {}}
        origin = {"hub": "https://hub.example", "repo_id": "a/b", "revision": "main", "commit": "0"}
        for statement in (
            update(Base.metadata.tables["deployments"])
            .values(traffic=traffic, notices=[{"code": "c", "message": "m"}])
            .where(Base.metadata.tables["deployments"].c.id == deployment_id),
            update(Base.metadata.tables["artifacts"]).values(origin=origin),
            update(Base.metadata.tables["accounts"]).values(quotas={"keys": 9}),
        ):
            await session.execute(statement)
    return {
        **{"account_id": account_id, "artifact_id": artifact_id, "deployment_id": deployment_id},
        **{"version_id": version_id, "agent_id": agent["id"], "run_id": run["id"]},
        **{"key_id": key["id"], "video_id": made["video"].id, "trial_id": made["trial"].id},
        **{"batch_id": made["batch"].id, "file_upload_id": made["file_upload"].id},
        **{"file_id": made["file"].id, "model": "ner", "response_id": response["id"]},
        **{"upload_id": upload_id, "holding_id": made["holding"].id},
    }


class Reader:
    """Reads all objects of an account, without a check against the OpenAPI document, which lists
    the known values.
    """

    def __init__(self, app: App, key: str, made: Mapping[str, str]) -> None:
        self._app, self._key, self.made = app, key, made

    def of(self, app: App) -> "Reader":
        return Reader(app, self._key, self.made)

    async def operator(self, path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app.app)
        headers = {"authorization": f"Bearer {self._app.operator_key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://stoker") as client:
            return await client.get(path, headers=headers)

    async def read(self) -> dict[str, httpx.Response]:
        transport = httpx.ASGITransport(app=self._app.app, raise_app_exceptions=False)
        answers: dict[str, httpx.Response] = {}
        async with httpx.AsyncClient(transport=transport, base_url="http://stoker") as client:
            for place in places():
                if place.method != "GET" or place.path in PAGES | STREAMS | CALLS:
                    continue
                operator = place.path.startswith(("/v1/accounts", "/v1/nodes", "/metrics"))
                key = self._app.operator_key if operator else self._key
                headers = {"authorization": f"Bearer {key}"}
                url = place.url(self.made)
                answers[place.path] = await client.get(url, headers=headers)
        return answers


@pytest.fixture(scope="module")
async def reader(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[App, Reader]]:
    folder = tmp_path_factory.mktemp("newer") / "data"
    async with serving(folder, source_dirs=[CHAT]) as app:
        client = await app.account("newer")
        made = await fill(app, client)
        key = client.headers["authorization"].removeprefix("Bearer ")
        reader = Reader(app, key, made)
        for path, answer in (await reader.read()).items():
            if "content" not in path and path != "/console/session":
                assert answer.status_code == 200, (path, answer.text)
        yield app, reader


@pytest.mark.parametrize("column", columns(), ids=str)
async def test_it_is_read(
    reader: tuple[App, Reader], column: Column[Any], caplog: pytest.LogCaptureFixture
) -> None:
    app, reads = reader
    table, database = column.table, app.platform.database
    keys = [*table.primary_key.columns]
    async with database.transaction() as session:
        statement = select(*keys, column)
        if table.name in CHOSEN:
            statement = statement.where(table.c.id == reads.made[CHOSEN[table.name]])
        before = (await session.execute(statement)).all()
        assert before, "no object has this column"
        for *key, value in before:
            await session.execute(_set(table, keys, key, column, newer_value(column, value)))
    try:
        with caplog.at_level(logging.ERROR):
            answers = await reads.read()
    finally:
        async with database.transaction() as session:
            for *key, value in before:
                await session.execute(_set(table, keys, key, column, value))
    assert {path: one.text for path, one in answers.items() if one.status_code >= 500} == {}
    assert caplog.text == ""


def _set(table: Any, keys: list[Any], key: list[Any], column: Column[Any], value: Any) -> Any:
    chosen = (one == at for one, at in zip(keys, key, strict=True))
    return update(table).where(*chosen).values({column: value})


async def test_sealed_content_is_read(reader: tuple[App, Reader]) -> None:
    app, reads = reader
    async with app.platform.database.transaction() as session:
        (run,) = (await session.scalars(select(Run))).all()
        events = (await session.scalars(select(RunEvent))).all()
        sealer = Sealer(app.platform.secret, run.content_key)
        run.asked = sealer.seal(newer(sealer.unseal(run.asked)))
        for event in events:
            event.data = sealer.seal(newer(sealer.unseal(event.data)))
        assert events
    answers = await reads.read()
    assert {path: one.text for path, one in answers.items() if one.status_code >= 500} == {}
    path = "/v1/agent/{agent_id}/runs/{run_id}"
    assert answers[path].json()["input"] == "hello"
    assert answers[f"{path}/events"].json()["data"][0]["data"][NEWER] == 1


async def test_unknown_values_are_shown(reader: tuple[App, Reader]) -> None:
    app, reads = reader
    videos = Base.metadata.tables["videos"]
    async with app.platform.database.transaction() as session:
        await session.execute(update(videos).values(status=NEWER))
    answers = await reads.read()
    assert answers["/v1/videos/{video_id}"].json()["status"] == NEWER
    assert answers["/v1/videos/{video_id}/content"].status_code == 409


async def test_a_key_with_an_unknown_scope_has_no_rights(reader: tuple[App, Reader]) -> None:
    app, reads = reader
    client = await app.account("other")
    keys = Base.metadata.tables["api_keys"]
    async with app.platform.database.transaction() as session:
        await session.execute(
            update(keys).where(keys.c.account_id == client.account_id).values(scope=NEWER)  # type: ignore[attr-defined]
        )
    for path in ("/v1/models", "/v1/accounts", "/v1/deployments", "/v1/events"):
        assert (await client.get(path)).status_code == 401
    (shown,) = [
        key
        for key in (await reads.operator("/v1/api-keys")).json()["data"]
        if key["scope"] == NEWER
    ]
    assert shown["account_id"] == client.account_id  # type: ignore[attr-defined]


async def test_requests_with_unknown_values_are_refused(reader: tuple[App, Reader]) -> None:
    app, _ = reader
    client = await app.account("strict")
    answers = [
        await client.get(DEPLOYMENTS, params={"status": NEWER}),
        await client.post("/v1/api-keys", json={"scope": NEWER}),
        await client.post(
            DEPLOYMENTS, json={"model": "m", "source": str(CHAT), "readiness": NEWER}
        ),
    ]
    assert [answer.status_code for answer in answers] == [400, 400, 400]


async def test_a_server_starts_on_them(reader: tuple[App, Reader], tmp_path: Path) -> None:
    """All columns of all rows have values of the next release."""
    app, reads = reader
    create(app.platform.settings.data_dir, tmp_path / "a.tar")
    restore(tmp_path / "a.tar", tmp_path / "data")
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/data/stoker.db")
    async with database.transaction() as session:
        for column in columns():
            table, keys = column.table, [*column.table.primary_key.columns]
            if table.name in CHOSEN:
                continue
            for *key, value in (await session.execute(select(*keys, column))).all():
                await session.execute(_set(table, keys, key, column, newer_value(column, value)))
    await database.close()
    async with serving(tmp_path / "data", source_dirs=[CHAT]) as second:
        answers = await reads.of(second).read()
    assert {path: one.text for path, one in answers.items() if one.status_code >= 500} == {}
    (deployment,) = [
        one
        for one in answers["/v1/deployments"].json()["data"]
        if one["id"] == reads.made["deployment_id"]
    ]
    assert (deployment["readiness"], deployment["desired"]) == (NEWER, NEWER)
