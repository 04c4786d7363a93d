"""Metrics of deployments, the machine, and model cards over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.server.events.history import History
from stoker.store import db
from stoker.store.tables.artifacts import Artifact, Upload, UploadFile
from tests.support.app import App, serving

MODELS = Path(stoker.demo.__file__).parent / "models"
CALL = "/v1/classifications/text"


@pytest.fixture(scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    async with serving(tmp_path_factory.mktemp("asked") / "data", source_dirs=[MODELS]) as app:
        yield app


async def deployed(client: httpx.AsyncClient, model: str) -> str:
    body = {"model": model, "source": str(MODELS / "tiny-sentiment")}
    return (await client.post("/v1/deployments", json=body)).raise_for_status().json()["id"]


def total(values: list[int | None]) -> int:
    return sum(value or 0 for value in values)


class TestMetrics:
    async def test_are_those_of_the_calls(self, app: App) -> None:
        client = await app.account()
        deployment_id, other = await deployed(client, "one"), await deployed(client, "other")
        for text in ("Good.", "Bad.", ["Fine.", "Awful."]):
            answer = await client.post(CALL, json={"model": "one", "inputs": text})
            assert answer.status_code == 200, answer.text
        # Longer than the model accepts, so its replica rejects it.
        long = await client.post(CALL, json={"model": "one", "inputs": "word " * 5000})
        assert long.status_code == 400, long.text
        await app.parts.get(History).look()
        metrics = (await client.get(f"/v1/deployments/{deployment_id}/metrics?window_s=60")).json()
        assert (metrics["object"], metrics["step_s"]) == ("deployment.metrics", 5)
        assert total(metrics["requests"]["ok"]) == 3
        assert total(metrics["requests"]["client_error"]) == 1
        assert total(metrics["requests"]["server_error"]) == 0
        assert total(metrics["replicas"]) >= 1
        lengths = {
            len(values)
            for values in (
                *metrics["requests"].values(),
                *metrics["latency_ms"].values(),
                *(metrics[name] for name in ("queue", "batch_size", "tokens", "memory_bytes")),
            )
        }
        assert lengths == {12}
        last = metrics["start"] + 12 * 5
        assert abs(last - db.now().timestamp()) <= 6
        quiet = (await client.get(f"/v1/deployments/{other}/metrics")).json()
        assert set(quiet["requests"]["ok"]) == {None} and len(quiet["queue"]) == 180
        day = (await client.get(f"/v1/deployments/{deployment_id}/metrics?window_s=86400")).json()
        assert (day["step_s"], len(day["queue"])) == (60, 1440)
        assert total(day["requests"]["ok"]) == 3

    async def test_are_gone_with_the_deployment(self, app: App) -> None:
        client = await app.account()
        deployment_id = await deployed(client, "gone")
        await client.post(CALL, json={"model": "gone", "inputs": "Good."})
        assert app.parts.get(History).series(deployment_id)
        await client.delete(f"/v1/deployments/{deployment_id}")
        assert (await client.get(f"/v1/deployments/{deployment_id}/metrics")).status_code == 404
        await app.parts.get(History).look()
        assert app.parts.get(History).series(deployment_id) is None

    @pytest.mark.parametrize("window", ["59", "86401", "-1", "x", "1e3", "9" * 40])
    async def test_windows_are_bounded(self, app: App, window: str) -> None:
        client = await app.account()
        deployment_id = await deployed(client, "bounded")
        answer = await client.get(f"/v1/deployments/{deployment_id}/metrics?window_s={window}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "window_s"

    async def test_at_rest_nothing_is_looked_at(self, app: App) -> None:
        history = app.parts.get(History)
        client = await app.account()
        deployment_id = await deployed(client, "resting")
        await client.post(CALL, json={"model": "resting", "inputs": "Good."})
        assert deployment_id in history._at_work
        for path in ("stop", "start"):
            (await client.post(f"/v1/deployments/{deployment_id}/{path}")).raise_for_status()
        async with asyncio.timeout(10):
            while deployment_id in history._at_work:
                await history.look()
                await asyncio.sleep(0.05)


class TestMachine:
    async def test_shows_ones_own(self, app: App) -> None:
        one, other = await app.account("one"), await app.account("other")
        mine = await deployed(one, "mine")
        await one.post(CALL, json={"model": "mine", "inputs": "Good."})
        machine = (await one.get("/v1/machine")).json()
        (replica,) = machine["replicas"]
        assert (replica["deployment_id"], replica["model"]) == (mine, "mine")
        assert (replica["status"], replica["account_id"]) == ("ready", one.account_id)  # type: ignore[attr-defined]
        assert (await other.get("/v1/machine")).json()["replicas"] == []
        assert machine["devices"] == [], "there is none here"
        engines = {engine["engine"]: engine for engine in machine["engines"]}
        assert engines["torch"]["available"] and engines["torch"]["detail"].startswith("2.")
        assert not engines["vllm"]["available"]
        assert "stoker engines install vllm" in engines["vllm"]["detail"]
        async with app.client(app.operator_key) as operator:
            all_of_them = (await operator.get("/v1/machine")).json()["replicas"]
            named = {"x-stoker-account": other.account_id}  # type: ignore[attr-defined]
            theirs = (await operator.get("/v1/machine", headers=named)).json()["replicas"]
        assert mine in {one["deployment_id"] for one in all_of_them} and theirs == []

    async def test_not_for_a_deployments_key(self, app: App) -> None:
        client = await app.account()
        body = {"scope": "deployment", "deployment_ids": [await deployed(client, "one")]}
        key = (await client.post("/v1/api-keys", json=body)).json()["key"]
        assert (await app.client(key).get("/v1/machine")).status_code == 401


class TestNodes:
    async def test_none_where_the_server_runs_replicas_itself(self, app: App) -> None:
        async with app.client(app.operator_key) as operator:
            nodes = (await operator.get("/v1/nodes")).raise_for_status().json()
        empty = {"data": [], "first_id": None, "last_id": None, "has_more": False}
        assert nodes == {"object": "list", **empty}

    async def test_for_operators_alone(self, app: App) -> None:
        client = await app.account()
        assert (await client.get("/v1/nodes")).status_code == 401


async def with_card(app: App, client: httpx.AsyncClient, name: str, content: bytes) -> str:
    """Creates an artifact with a model card as its only live file. Returns its id."""
    made = await client.post("/v1/model-artifacts", json={"display_name": name})
    artifact_id = made.raise_for_status().json()["id"]
    opened = await client.post(f"/v1/model-artifacts/{artifact_id}/uploads")
    upload_id = opened.raise_for_status().json()["upload_id"]
    path = f"/v1/model-artifacts/{artifact_id}/uploads/{upload_id}/files/README.md"
    (await client.put(path, content=content)).raise_for_status()
    # Skips inspection, which is not tested here.
    async with app.platform.database.transaction() as session:
        artifact: Any = await session.get(Artifact, artifact_id)
        upload: Any = await session.get(Upload, upload_id)
        file: Any = await session.get(UploadFile, (upload_id, "README.md"))
        artifact.live_upload_id, artifact.status = upload_id, "ready"
        upload.status, file.size = "ready", len(content)
    return artifact_id


class TestCard:
    async def test_is_told_as_it_was_uploaded(self, app: App) -> None:
        client = await app.account()
        text = "# A model\n\n<script>alert(1)</script> \u202e naïve ☃\n"
        hostile = '"><script>x</script>/../\u202e'
        artifact_id = await with_card(app, client, hostile, text.encode())
        answer = await client.get(f"/v1/model-artifacts/{artifact_id}/card")
        assert answer.status_code == 200 and answer.text == text
        assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert "script" not in repr(answer.headers)

    async def test_is_a_mib_at_most(self, app: App) -> None:
        client = await app.account()
        artifact_id = await with_card(app, client, "long", "☃".encode() * 500_000)
        answer = await client.get(f"/v1/model-artifacts/{artifact_id}/card")
        assert (1 << 20) - 3 <= len(answer.content) <= (1 << 20) + 3
        assert answer.text.startswith("☃☃") and answer.text.count("\N{REPLACEMENT CHARACTER}") <= 1

    async def test_there_is_none(self, app: App) -> None:
        client, other = await app.account(), await app.account("other")
        made = await client.post("/v1/model-artifacts", json={"display_name": "x"})
        artifact_id = made.json()["id"]
        answer = await client.get(f"/v1/model-artifacts/{artifact_id}/card")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "card_not_found")
        theirs = await with_card(app, client, "x", b"zebra")
        hidden = await other.get(f"/v1/model-artifacts/{theirs}/card")
        assert hidden.json()["error"]["code"] == "artifact_not_found"
        for path in ("README.md", "..%2fcard", "card/x", "card%00"):
            answer = await client.get(f"/v1/model-artifacts/{artifact_id}/{path}")
            assert answer.status_code == 404
