"""The event stream: its content, recipients, delays and end."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.server.events import messages
from stoker.server.events.broadcast import Broadcast
from stoker.server.events.messages import EventMessage, Subscriber, Visibility
from stoker.store import db
from tests.events.support import key_of, listening
from tests.support.app import App, serving
from tests.support.rows import video
from tools.reference import events as reference

MODELS = Path(stoker.demo.__file__).parent / "models"


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
async def app(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[App]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    data_dir = tmp_path_factory.mktemp("watching") / "data"
    async with serving(data_dir, database_url=url, source_dirs=[MODELS]) as app:
        yield app


async def deployed(client: httpx.AsyncClient, model: str) -> dict[str, Any]:
    body = {"model": model, "source": str(MODELS / "tiny-sentiment")}
    return (await client.post("/v1/deployments", json=body)).raise_for_status().json()


async def artifact(client: httpx.AsyncClient, name: str) -> str:
    made = await client.post("/v1/model-artifacts", json={"display_name": name})
    return made.raise_for_status().json()["id"]


def plainly(deployment: dict[str, Any]) -> dict[str, Any]:
    """Returns a deployment without the fields that change as replicas work. These are sent every
    second or never.
    """
    changing = {"outstanding", "memory_bytes", "cache_usage"}
    workers = [
        {name: value for name, value in worker.items() if name not in changing}
        for worker in deployment["workers"]
    ]
    return {**deployment, "workers": workers}


async def shown_now(client: httpx.AsyncClient, identifier: str) -> dict[str, Any]:
    response = await client.get(f"/v1/deployments/{identifier}")
    return plainly(response.raise_for_status().json())


class TestWhatIsTold:
    async def test_begins_with_hello(self, app: App) -> None:
        client = await app.account()
        async with listening(app.app, key_of(client)) as ear:
            hello = await ear.until(lambda name, _: name == "hello")
        assert ear.told[0] == ("hello", hello)
        assert hello["version"] == stoker.__version__
        assert set(hello) == set(reference.MESSAGES["hello"])

    async def test_artifacts(self, app: App) -> None:
        client = await app.account()
        async with listening(app.app, key_of(client)) as ear:
            await ear.until(lambda name, _: name == "hello")
            artifact_id = await artifact(client, "x\u202e<script>")
            event = await ear.until(
                lambda name, data: name == "artifact" and data["id"] == artifact_id
            )
            assert event == (await client.get(f"/v1/model-artifacts/{artifact_id}")).json()
            await client.patch(
                f"/v1/model-artifacts/{artifact_id}", json={"display_name": "second"}
            )
            await ear.until(lambda name, data: data.get("display_name") == "second")
            await client.delete(f"/v1/model-artifacts/{artifact_id}")
            gone = await ear.until(lambda name, _: name == "artifact.deleted")
        assert gone == {"id": artifact_id}

    async def test_deployments_their_notices_and_stats(self, app: App) -> None:
        client = await app.account()
        async with listening(app.app, key_of(client)) as ear:
            await ear.until(lambda name, _: name == "hello")
            deployment = await deployed(client, "sentiment")
            identifier = deployment["id"]
            await ear.until(lambda name, data: name == "deployment" and data["id"] == identifier)
            body = {"model": "sentiment", "inputs": "It was very good."}
            for _ in range(3):
                answer = await client.post("/v1/classifications/text", json=body)
                assert answer.status_code == 200, answer.text
            notice = await ear.until(
                lambda name, data: name == "notice" and data["type"] == "loaded"
            )
            await ear.until(lambda name, data: name == "deployment" and data["status"] == "ready")
            stats = await ear.until(
                lambda name, data: (
                    name == "stats"
                    and data["deployments"].get(identifier, {}).get("requests_per_s", 0) > 0
                )
            )
            # The sent deployment matches the displayed one after memory is measured.
            async with asyncio.timeout(20):
                shown = await shown_now(client, identifier)
                while shown not in (plainly(sent) for sent in ear.of("deployment")):
                    await asyncio.sleep(0.05)
                    shown = await shown_now(client, identifier)
            await client.delete(f"/v1/deployments/{identifier}")
            gone = await ear.until(lambda name, _: name == "deployment.deleted")
        assert gone == {"id": identifier}
        assert (notice["deployment_id"], notice["model"]) == (identifier, "sentiment")
        assert [worker["status"] for worker in shown["workers"]] == ["ready"]
        deployment_stats = stats["deployments"][identifier]
        assert set(deployment_stats) == set(reference.DEPLOYMENT_STATS)
        assert deployment_stats["replicas"] == 1 and deployment_stats["errors_per_s"] == 0
        assert 0 < deployment_stats["p50_ms"] <= deployment_stats["p99_ms"]
        assert set(stats["memory"]) == set(reference.MEMORY_STATS)
        assert set(stats) == set(reference.MESSAGES["stats"])
        assert set(notice) == set(reference.MESSAGES["notice"])
        balance = (await client.get("/v1/credits")).json()["balance"]
        assert float(stats["credits"]["balance"]) == pytest.approx(float(balance), abs=1)

    async def test_stats_come_each_second(self, app: App) -> None:
        client = await app.account()
        async with listening(app.app, key_of(client)) as ear:
            async with asyncio.timeout(30):
                while len(ear.of("stats")) < 4:
                    await asyncio.sleep(0.05)
        at = [stats["at"] for stats in ear.of("stats")]
        # A busy machine may delay some of them.
        assert 0.8 < min(later - before for before, later in itertools.pairwise(at)) < 2

    async def test_runs_without_what_is_said(self, app: App) -> None:
        client = await app.account()
        deployment = await deployed(client, "sentiment")
        await client.post(f"/v1/deployments/{deployment['id']}/stop")
        agent = await client.post("/v1/agent", json={"name": "a", "model": "sentiment"})
        agent_id = agent.json().get("id")
        async with listening(app.app, key_of(client)) as ear:
            await ear.until(lambda name, _: name == "hello")
            if agent_id is None:
                # A model that generates no text cannot be an agent's model.
                assert agent.status_code == 400
                body = {"model": "chat", "source": str(MODELS / "tiny-chat")}
                chat = (await client.post("/v1/deployments", json=body)).raise_for_status().json()
                await client.post(f"/v1/deployments/{chat['id']}/stop")
                agent = await client.post("/v1/agent", json={"name": "a", "model": "chat"})
                agent_id = agent.raise_for_status().json()["id"]
            run = await client.post(f"/v1/agent/{agent_id}/runs", json={"input": "zebra"})
            run_id = run.raise_for_status().json()["id"]
            failed = await ear.until(
                lambda name, data: name == "run" and data["status"] == "failed"
            )
            await client.delete(f"/v1/agent/{agent_id}/runs/{run_id}")
            gone = await ear.until(lambda name, _: name == "run.deleted")
        assert (failed["id"], failed["agent_id"]) == (run_id, agent_id)
        assert failed["error"]["code"] and gone == {"id": run_id}
        assert "zebra" not in repr(ear.told)

    async def test_many_changes_are_told_once(self, app: App) -> None:
        client = await app.account()
        artifact_id = await artifact(client, "first")
        async with listening(app.app, key_of(client)) as ear:
            await ear.until(lambda name, _: name == "hello")
            for number in range(20):
                await client.patch(
                    f"/v1/model-artifacts/{artifact_id}", json={"display_name": f"name {number}"}
                )
            await ear.until(lambda name, data: data.get("display_name") == "name 19")
        assert len(ear.of("artifact")) < 20


class TestToWhom:
    async def test_accounts_hear_of_their_own(self, app: App) -> None:
        owner, other = await app.account("one"), await app.account("other")
        operator = {"authorization": f"Bearer {app.operator_key}"}
        theirs = f"accounts={other.account_id}"  # type: ignore[attr-defined]
        async with (
            listening(app.app, key_of(owner)) as first,
            listening(app.app, key_of(other)) as second,
            listening(app.app, key_of(other)) as third,
            listening(app.app, operator) as all_of_them,
            listening(app.app, operator, theirs) as chosen,
        ):
            ears = (first, second, third, all_of_them, chosen)
            for ear in ears:
                await ear.until(lambda name, _: name == "hello")
            mine, zebra = await artifact(owner, "mine"), await artifact(other, "zebra")
            for ear in (second, third, all_of_them, chosen):
                await ear.until(lambda _, data: data.get("id") == zebra)
            for ear in (first, all_of_them):
                await ear.until(lambda _, data: data.get("id") == mine)
            await asyncio.sleep(0.3)
        assert "zebra" not in repr(first.told) and zebra not in repr(first.told)
        for ear in (second, third, chosen):
            assert mine not in repr(ear.told)
        # A stream of several accounts reports no balance.
        assert all(stats["credits"] is None for stats in all_of_them.of("stats"))
        assert all(stats["credits"] is not None for stats in chosen.of("stats"))

    async def test_a_deployments_key_hears_of_its_videos(self, app: App) -> None:
        client = await app.account()
        account_id: str = client.account_id  # type: ignore[attr-defined]
        own_deployment, other = await deployed(client, "own"), await deployed(client, "other")
        body = {"scope": "deployment", "deployment_ids": [own_deployment["id"]]}
        key = (await client.post("/v1/api-keys", json=body)).json()["key"]
        rows = [
            video(
                account_id, deployment["id"], status="failed", completed_at=db.now(), error_code="x"
            )
            for deployment in (own_deployment, other)
        ]
        ids = [row.id for row in rows]
        async with listening(app.app, {"authorization": f"Bearer {key}"}) as ear:
            await ear.until(lambda name, _: name == "hello")
            await artifact(client, "zebra")
            async with app.platform.database.transaction() as session:
                session.add_all(rows)
            event = await ear.until(lambda name, _: name == "video")
            await client.delete(f"/v1/videos/{ids[0]}")
            await client.delete(f"/v1/videos/{ids[1]}")
            gone = await ear.until(lambda name, _: name == "video.deleted")
            await asyncio.sleep(1.2)
        assert (event["id"], gone["id"]) == (ids[0], ids[0])
        assert {name for name, _ in ear.told} == {"hello", "video", "video.deleted"}
        assert ids[1] not in repr(ear.told)

    async def test_nobody_without_a_key(self, app: App) -> None:
        for headers in ({}, {"authorization": "Bearer sk-a-b"}):
            async with listening(app.app, headers) as ear:
                await ear.over()
            assert ear.status == 401

    async def test_only_operators_choose(self, app: App) -> None:
        client = await app.account()
        async with listening(app.app, key_of(client), "accounts=acct_x") as ear:
            await ear.over()
        assert ear.status == 400 and ear.error["error"]["param"] == "accounts"


class TestItsEnd:
    async def test_ends_with_its_key(self, app: App) -> None:
        client = await app.account()
        made = (await client.post("/v1/api-keys", json={"scope": "account"})).json()
        async with listening(app.app, {"authorization": f"Bearer {made['key']}"}) as ear:
            await ear.until(lambda name, _: name == "hello")
            (await client.delete(f"/v1/api-keys/{made['id']}")).raise_for_status()
            await ear.over()
        name, data = ear.told[-1]
        assert (name, data["error"]["code"]) == ("", "invalid_api_key")

    async def test_ends_with_the_session(self, app: App) -> None:
        client = await app.account()
        key = client.headers["authorization"].partition(" ")[2]
        page = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app.app), base_url="http://stoker"
        )
        session = (await page.post("/console/session", json={"key": key})).json()
        cookie = {"cookie": f"stoker_session={page.cookies['stoker_session']}"}
        async with listening(app.app, cookie) as ear:
            await ear.until(lambda name, _: name == "hello")
            artifact_id = await artifact(client, "seen")
            await ear.until(lambda _, data: data.get("id") == artifact_id)
            gone = await page.delete("/console/session", headers={"x-csrf-token": session["csrf"]})
            assert gone.status_code == 204
            await ear.over()

    async def test_nothing_is_left_when_nobody_listens(self, app: App) -> None:
        client = await app.account()
        broadcast = app.parts.get(Broadcast)
        async with listening(app.app, key_of(client)) as ear:
            await ear.until(lambda name, _: name == "hello")
            assert broadcast._telling and app.platform.database.changes.is_heard
        assert not broadcast._listeners and broadcast._telling is None
        assert not app.platform.database.changes.is_heard

    async def test_so_many_and_no_more(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stoker.server.events.broadcast.MOST_OF_KEY", 2)
        client, other = await app.account(), await app.account("other")
        async with (
            listening(app.app, key_of(client)) as one,
            listening(app.app, key_of(client)) as two,
        ):
            for ear in (one, two):
                await ear.until(lambda name, _: name == "hello")
            async with listening(app.app, key_of(client)) as third:
                await third.over()
            assert (third.status, third.error["error"]["code"]) == (429, "too_many_listeners")
            assert third.error["error"]["message"].startswith("This key has 2 open event streams")
            async with listening(app.app, key_of(other)) as ear:
                await ear.until(lambda name, _: name == "hello")

    async def test_no_account_takes_the_places_of_others(
        self, app: App, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 12 streams, 4 are reserved for operators, and one account may open 7 of the other
        8.
        """
        monkeypatch.setattr("stoker.server.events.broadcast.MOST", 12)
        monkeypatch.setattr("stoker.server.events.broadcast.OF_OPERATORS", 4)
        greedy, other = await app.account(), await app.account("other")
        key, operator = key_of(greedy), key_of(app.client(app.operator_key))
        async with contextlib.AsyncExitStack() as streams:
            ears = [await streams.enter_async_context(listening(app.app, key)) for _ in range(7)]
            for ear in ears:
                await ear.until(lambda name, _: name == "hello")
            async with listening(app.app, key) as eighth:
                await eighth.over()
            assert (eighth.status, eighth.error["error"]["code"]) == (429, "too_many_listeners")
            assert "This account may open no more event streams" in eighth.error["error"]["message"]
            for other_key in [key_of(other), *[operator] * 4]:
                ear = await streams.enter_async_context(listening(app.app, other_key))
                await ear.until(lambda name, _: name == "hello")
            async with listening(app.app, operator) as last:
                await last.over()
            assert (last.status, last.error["error"]["code"]) == (429, "too_many_listeners")


class TestListener:
    def test_a_slow_one_is_reset(self, monkeypatch: pytest.MonkeyPatch) -> None:
        listener = Subscriber(Visibility(None), None, "key")
        for number in range(messages.MOST_WAITING + 3):
            listener.tell(b"%d " % number)
        received = listener.take()
        assert received.startswith(messages.RESET)
        last = b" ".join(b"%d" % (messages.MOST_WAITING + extra) for extra in (1, 2))
        assert received == messages.RESET + last + b" "
        assert listener.take() == b""

    def test_bytes_are_bounded_too(self) -> None:
        listener = Subscriber(Visibility(None), None, "key")
        for _ in range(20):
            listener.tell(b"x" * (1 << 20))
        assert len(listener.take()) <= messages.MOST_BYTES + len(messages.RESET)

    def test_reach(self) -> None:
        account_message = EventMessage(b"", "acct_1")
        film = EventMessage(b"", "acct_1", "dep_1")
        assert Visibility(None).includes(account_message) and Visibility(
            frozenset({"acct_1"})
        ).includes(film)
        assert not Visibility(frozenset({"acct_2"})).includes(account_message)
        narrow = Visibility(frozenset({"acct_1"}), frozenset({"dep_1"}))
        assert narrow.includes(film) and not narrow.includes(account_message)
