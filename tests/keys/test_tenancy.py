"""Every method of every path, requested for objects of one account with the keys of another
account, and with the account's own keys of too little scope. The cases come from the route table,
so that no new route is left out.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.inference.registry import OF_OTHER_APIS
from stoker.models.tasks.registry import TASKS
from stoker.registry.files import service as files
from stoker.store import db
from stoker.store.tables.files import Purpose
from stoker.tenancy.usage.balances import Balance, CreditCheck
from stoker.workloads.videos.endpoints import CREATE
from tests.deployments.routes import (
    BODIES,
    CALLS,
    INFERENCE,
    MADE,
    OPERATORS,
    STREAMS,
    Place,
    is_inference,
    keyed,
)
from tests.support.app import App, serving
from tests.support.errors import error_of
from tests.support.rows import batch, importing, stored_response, trial, video

MODELS = Path(stoker.demo.__file__).parent / "models"
CANARY = "zebra"
"""Part of every name in the first account. No other account may read it."""

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    **{path: task.example for task in TASKS.values() for path in task.paths},
    **{operation.path: operation.example for operation in OF_OTHER_APIS},
    CREATE.path: CREATE.example,
}
LISTS = {
    "/v1/deployments",
    "/v1/model-artifacts",
    "/v1/api-keys",
    "/v1/agent",
    "/v1/usage",
    "/v1/usage/events",
    "/v1/credits",
    "/v1/credits/transfers",
    "/v1/quotas",
    "/v1/machine",
}
"""Paths that list data of the key's account only."""
OF_ALL = {"/v1/prices"}
"""Paths that belong to no account and may be read with any account's key."""
OWN = {"/v1/console/links"}
"""Paths that create an object for the calling key only."""
CREATING = {
    "/v1/deployments": {"model": "mine", "artifact_id": "{artifact_id}"},
    "/v1/api-keys": {"scope": "deployment", "deployment_ids": ["{deployment_id}"]},
    "/v1/agent": {"name": "mine", "model": "{model}"},
}
"""Bodies that name an object of the other account."""
WITHOUT_OBJECTS = {"/v1/model-artifacts"}
"""Creations with bodies that name no object."""
UPLOADS = {"/v1/files", "/v1/uploads"}
"""Paths at which every key creates objects of its own, with bodies that name no object."""
STARTING = {
    "/v1/batches": {
        "input_file_id": "{file_id}",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
}
"""Bodies for paths that every key may call. They name an object of the other account."""


@dataclass
class World:
    app: App
    owner: httpx.AsyncClient
    ids: dict[str, str]
    """Ids of the owner's objects, by name of the path parameter."""
    stranger: httpx.AsyncClient
    strangers_caller: httpx.AsyncClient
    """Client with a key for one of the stranger's deployments."""
    narrow: httpx.AsyncClient
    """Client with a key of the owner for another deployment."""

    async def state(self) -> dict[str, Any]:
        """Returns the owner's view of all objects."""
        ids = self.ids
        artifact, agent = (
            f"/v1/model-artifacts/{ids['artifact_id']}",
            f"/v1/agent/{ids['agent_id']}",
        )
        upload = f"{artifact}/uploads/{ids['upload_id']}"
        run = f"{agent}/runs/{ids['run_id']}"
        paths = (
            *(f"/v1/deployments/{ids['deployment_id']}", artifact, upload, agent, run),
            f"/v1/deployments/{ids['deployment_id']}/trials/{ids['trial_id']}",
            *(f"{run}/events", f"/v1/files/{ids['file_id']}", f"/v1/videos/{ids['video_id']}"),
            *("/v1/deployments", "/v1/model-artifacts", "/v1/agent", "/v1/files", "/v1/videos"),
            *("/v1/credits/transfers", "/v1/models"),
        )
        answers = {path: await self.owner.get(path) for path in paths}
        keys = (await self.owner.get("/v1/api-keys")).json()["data"]
        bodies = {path: response.raise_for_status().json() for path, response in answers.items()}
        return bodies | {"keys": [{**key, "last_used_at": None} for key in keys]}


@pytest.fixture(scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    data_dir = tmp_path_factory.mktemp("tenancy") / "data"
    async with serving(data_dir, source_dirs=[MODELS]) as app:
        owner, stranger = await app.account(CANARY), await app.account("stranger")
        ids = await made(app, owner)
        caller = app.client(await key_for(stranger, await deployed(stranger, "own")))
        narrow = app.client(await key_for(owner, await deployed(owner, "other")))
        yield World(app, owner, ids, stranger, caller, narrow)
        for client in (owner, stranger, caller, narrow):
            await client.aclose()


async def posted(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


async def deployed(client: httpx.AsyncClient, model: str) -> str:
    source = str(MODELS / "tiny-chat")
    return (await posted(client, "/v1/deployments", model=model, source=source))["id"]


async def key_for(client: httpx.AsyncClient, identifier: str) -> str:
    body = {"scope": "deployment", "deployment_ids": [identifier]}
    return (await posted(client, "/v1/api-keys", **body))["key"]


async def made(app: App, owner: httpx.AsyncClient) -> dict[str, str]:
    """Creates an object of every kind. Returns their ids."""
    model = f"{CANARY}-chat"
    deployment = await deployed(owner, model)
    # With a stopped deployment, runs and videos fail at once.
    (await owner.post(f"/v1/deployments/{deployment}/stop")).raise_for_status()
    artifact = (await posted(owner, "/v1/model-artifacts", display_name=CANARY))["id"]
    uploads = f"/v1/model-artifacts/{artifact}/uploads"
    upload = (await posted(owner, uploads))["upload_id"]
    put = await owner.put(f"{uploads}/{upload}/files/{CANARY}.json", content=b"{}")
    put.raise_for_status()
    agent = (await posted(owner, "/v1/agent", name=CANARY, model=model, instructions=CANARY))["id"]
    run = (await posted(owner, f"/v1/agent/{agent}/runs", input=CANARY))["id"]
    async with asyncio.timeout(30):
        while (await owner.get(f"/v1/agent/{agent}/runs/{run}")).json()["status"] != "failed":
            await asyncio.sleep(0.02)
    key = (await posted(owner, "/v1/api-keys", scope="account", name=CANARY))["id"]
    account_id = owner.account_id  # type: ignore[attr-defined]
    (file,) = await files.store(
        app.platform,
        account_id=account_id,
        deployment_id=deployment,
        purpose=Purpose.IMAGE,
        contents=[CANARY.encode()],
        content_type="image/png",
    )
    failed = {
        "status": "failed",
        "error_code": "timeout",
        "error_message": CANARY,
        "tries": 1,
        "completed_at": db.now(),
    }
    job = video(account_id, deployment, model=model, prompt=CANARY, **failed)
    job_id = job.id
    tried = trial(account_id, deployment, examples=[{"prompt": CANARY}], **failed)
    tried_id = tried.id
    fetched = importing(account_id, artifact, upload, repo_id=CANARY, **failed)
    fetched_id = fetched.id
    key_of_owner = next(one for one in (await owner.get("/v1/api-keys")).json()["data"])["id"]
    many = batch(account_id, deployment, state="failed", key_id=key_of_owner, **failed)
    many_id = many.id
    answered = stored_response(app.platform.secret, account_id, deployment, **failed)
    answered_id = answered.id
    async with app.platform.database.transaction() as session:
        session.add_all([job, tried, fetched, many, answered])
    parts = await posted(
        owner, "/v1/uploads", filename=CANARY, purpose="batch", bytes=9, mime_type="text/plain"
    )
    return {
        "deployment_id": deployment,
        "model": model,
        "artifact_id": artifact,
        "upload_id": upload,
        "import_id": fetched_id,
        "path": f"{CANARY}.json",
        "number": "1",
        "agent_id": agent,
        "run_id": run,
        "key_id": key,
        "file_id": file.id,
        "video_id": job_id,
        "trial_id": tried_id,
        "batch_id": many_id,
        "response_id": answered_id,
        "file_upload_id": parts["id"],
        "account_id": account_id,
    }


def nobodys(ids: Mapping[str, str]) -> dict[str, str]:
    """Returns ids of the same length that name no object."""
    unchanged = ("path", "number")
    return {
        name: identifier if name in unchanged else f"{identifier[:-4]}0000"
        for name, identifier in ids.items()
    }


async def ask(client: httpx.AsyncClient, place: Place, ids: Mapping[str, str]) -> httpx.Response:
    body: Any = None
    if place.method in {"POST", "PATCH"}:
        body = BODIES.get(place.path, {} if place.parameters else None)
    if place.method == "PUT":
        body = BODIES.get(place.path, {})
    return await client.request(place.method, place.url(ids), json=body)


def check_refused(place: Place, response: httpx.Response) -> None:
    assert response.status_code == 401, (str(place), response.text)
    if place.method != "HEAD":
        error = error_of(response)
        assert error["code"] == "invalid_api_key"
        assert error["message"].startswith("The API key is valid, but its scope is '"), str(place)


async def check_hidden(world: World, place: Place, client: httpx.AsyncClient) -> None:
    """Asserts that the answer equals that for a missing object, byte by byte."""
    ids = world.ids
    theirs, none = await ask(client, place, ids), await ask(client, place, nobodys(ids))
    assert theirs.status_code == none.status_code == 404, (str(place), theirs.text)
    # The requested name may be repeated in the answer.
    model, instead = ids["model"], nobodys(ids)["model"]
    assert theirs.text.replace(model, "") == none.text.replace(instead, "")
    assert CANARY not in theirs.text.replace(model, "")
    header_names = [set(response.headers) - {"x-request-id"} for response in (theirs, none)]
    assert header_names[0] == header_names[1]


def objects() -> list[Place]:
    return [place for place in keyed() if place.parameters and place.path not in OPERATORS]


def creations() -> list[Place]:
    """Returns calls and creations with bodies that name objects, and operators' routes."""
    return [
        place
        for place in keyed()
        if place.path in OPERATORS or (place.method == "POST" and not place.parameters)
    ]


def filled(body: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(body, dict):
        return {name: filled(value, ids) for name, value in body.items()}
    if isinstance(body, list):
        return [filled(item, ids) for item in body]
    return body.format(**ids) if isinstance(body, str) else body


@pytest.mark.case(24)
class TestMatrix:
    def test_every_route_has_its_place(self) -> None:
        """New routes must be added to these tests."""
        known = {*objects(), *creations()}
        for place in keyed():
            is_list = place.path in {*LISTS, *OF_ALL, *OPERATORS, *MADE, *STREAMS, *CALLS}
            is_list |= place.path == "/v1/models"
            assert place in known or (place.method == "GET" and is_list), f"{place} is new"
        for place in creations():
            covered = {*EXAMPLES, *CREATING, *OWN, *WITHOUT_OBJECTS, *OPERATORS, *OF_ALL}
            covered |= {*UPLOADS, *STARTING}
            assert place.path in covered, f"{place} is new"

    @pytest.mark.parametrize("place", objects(), ids=str)
    async def test_objects(self, world: World, place: Place) -> None:
        before = await world.state()
        await check_hidden(world, place, world.stranger)
        if place.path.startswith("/v1/models/"):
            await check_hidden(world, place, world.strangers_caller)
            # The model exists, but the key's scope does not include it.
            check_refused(place, await ask(world.narrow, place, world.ids))
        elif is_inference(place.path):
            await check_hidden(world, place, world.strangers_caller)
            await check_hidden(world, place, world.narrow)
        else:
            check_refused(place, await ask(world.strangers_caller, place, world.ids))
            check_refused(place, await ask(world.narrow, place, world.ids))
        assert await world.state() == before

    @pytest.mark.parametrize("place", creations(), ids=str)
    async def test_bodies_that_name_them(self, world: World, place: Place) -> None:
        before = await world.state()
        everyone = (world.stranger, world.strangers_caller, world.narrow)
        if place.path in OPERATORS or place.path in OF_ALL:
            for client in everyone:
                check_refused(place, await ask(client, place, world.ids))
        elif place.path in OWN:
            for client in everyone:
                answer = await client.post(place.path)
                assert answer.status_code == 201, answer.text
        elif place.path in UPLOADS:
            for client in everyone:
                answer = await client.post(place.path)
                assert answer.status_code in (400, 415), answer.text
        elif place.path in STARTING:
            for client in everyone:
                for ids in (world.ids, nobodys(world.ids)):
                    answer = await client.post(place.path, json=filled(STARTING[place.path], ids))
                    assert answer.status_code == 404, answer.text
                    assert answer.json()["error"]["code"] == "file_not_found"
        elif place.path in EXAMPLES:
            body = {**EXAMPLES[place.path], "model": world.ids["model"]}
            for client in (world.stranger, world.strangers_caller):
                answer = await client.post(place.path, json=body)
                assert answer.status_code == 404, answer.text
                assert error_of(answer)["code"] == "model_not_found"
            check_refused(place, await world.narrow.post(place.path, json=body))
        elif place.path in CREATING:
            body = filled(CREATING[place.path], world.ids)
            none = filled(CREATING[place.path], nobodys(world.ids))
            answers = [await world.stranger.post(place.path, json=one) for one in (body, none)]
            assert [one.status_code for one in answers] == [404, 404], answers[0].text
            texts = [
                one.text.replace(ids["model"], "")
                for one, ids in zip(answers, (world.ids, nobodys(world.ids)), strict=True)
            ]
            assert texts[0] == texts[1]
            for client in everyone[1:]:
                check_refused(place, await client.post(place.path, json=body))
        else:
            for client in everyone[1:]:
                check_refused(place, await client.post(place.path, json={"display_name": "x"}))
        assert await world.state() == before

    @pytest.mark.parametrize(
        "place",
        [
            one
            for one in keyed()
            if one.method == "GET" and not one.parameters and one.path not in STREAMS | CALLS
        ],
        ids=str,
    )
    async def test_lists(self, world: World, place: Place) -> None:
        everyone = (world.stranger, world.strangers_caller, world.narrow)
        answers = [await client.get(place.path) for client in everyone]
        if place.path in OPERATORS:
            for answer in answers:
                check_refused(place, answer)
            return
        assert answers[0].status_code == 200
        if place.path in INFERENCE or place.path in MADE:
            assert [response.status_code for response in answers[1:]] == [200, 200]
        elif place.path in OF_ALL:
            return
        else:
            for answer in answers[1:]:
                check_refused(place, answer)
        for client, answer in zip(everyone, answers, strict=True):
            assert CANARY not in answer.text
            # The owner's other key may see its own account.
            known = {"number", "path"} | ({"account_id"} if client is world.narrow else set())
            for name, identifier in world.ids.items():
                assert name in known or identifier not in answer.text, name

    async def test_account_named_beside_a_key(self, world: World) -> None:
        """Only an operator's key acts for the account that this header names."""
        headers = {"x-stoker-account": world.ids["account_id"]}
        for place in objects():
            if not is_inference(place.path):
                url = place.url(world.ids)
                for client, status in ((world.stranger, 404), (world.strangers_caller, 401)):
                    body = {"json": BODIES.get(place.path, {})}
                    options = body if place.method in {"POST", "PATCH", "PUT"} else {}
                    answer = await client.request(place.method, url, headers=headers, **options)
                    assert answer.status_code == status, (str(place), answer.text)
        body = {"scope": "account", "account_id": world.ids["account_id"]}
        answer = await world.stranger.post("/v1/api-keys", json=body)
        assert answer.status_code == 404


class TestOperators:
    """An operator's key that names an account has the rights of the account's own key."""

    @pytest.fixture
    async def acting(self, world: World) -> AsyncIterator[httpx.AsyncClient]:
        async with world.app.client(world.app.operator_key) as client:
            client.headers["x-stoker-account"] = world.ids["account_id"]
            yield client

    @pytest.mark.parametrize(
        "place",
        [one for one in keyed() if one.path not in {*OPERATORS, *STREAMS, *OWN, *OF_ALL}],
        ids=str,
    )
    async def test_is_answered_as_the_account(
        self, world: World, acting: httpx.AsyncClient, place: Place
    ) -> None:
        """Reads return the account's objects. Changes name missing objects, so that both clients
        can send them.
        """
        is_read = place.method in ("GET", "HEAD") or place.path in EXAMPLES
        ids = world.ids if is_read else nobodys(world.ids)
        answers = [await self.asked(client, place, ids) for client in (world.owner, acting)]
        owned, acted = answers
        assert acted.status_code == owned.status_code, acted.text
        assert "model_not_found" not in acted.text or place.path not in EXAMPLES
        if place.path not in WITHOUT_OBJECTS:
            assert volatile_left_out(acted) == volatile_left_out(owned)

    async def asked(
        self, client: httpx.AsyncClient, place: Place, ids: Mapping[str, str]
    ) -> httpx.Response:
        if place.method == "POST" and place.path in EXAMPLES:
            body = {**EXAMPLES[place.path], "model": ids["model"]}
            return await client.post(place.path, json=body)
        if place.method == "POST" and place.path in CREATING:
            return await client.post(place.path, json=filled(CREATING[place.path], ids))
        return await ask(client, place, ids)

    @pytest.mark.parametrize("path", ["/v1/models", "/v1/models/x"])
    async def test_is_asked_for_the_account(self, world: World, path: str) -> None:
        async with world.app.client(world.app.operator_key) as client:
            answers = [
                await client.get(path),
                await client.post("/v1/chat/completions", json={"model": "x", "messages": []}),
            ]
            for answer in answers:
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, "x-stoker-account")
                assert "Name the account" in error["message"]
            client.headers["x-stoker-account"] = "acct_none"
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                404,
                "account_not_found",
            )

    async def test_the_account_pays(self, world: World, acting: httpx.AsyncClient) -> None:
        """A call without credit is refused, as with the account's own key."""
        path = "/v1/classifications/text"
        known = world.app.parts.get(CreditCheck)
        known.learn([Balance(world.ids["account_id"], 0, 0)])
        try:
            answers = [
                await client.post(path, json={"model": world.ids["model"], "inputs": "a"})
                for client in (world.owner, acting)
            ]
        finally:
            known.learn([Balance(world.ids["account_id"], 1, 0)])
        assert [answer.status_code for answer in answers] == [402, 402]

    async def test_keys(self, world: World, acting: httpx.AsyncClient) -> None:
        """An operator creates, lists and deletes keys of the account that it names, and no
        others.
        """
        body = {"scope": "deployment", "deployment_ids": [world.ids["deployment_id"]]}
        made = await posted(acting, "/v1/api-keys", **body)
        assert made["account_id"] == world.ids["account_id"]
        listed = (await acting.get("/v1/api-keys?limit=100")).json()["data"]
        assert {key["account_id"] for key in listed} == {world.ids["account_id"]}
        (await acting.delete(f"/v1/api-keys/{made['id']}")).raise_for_status()
        others_key_id = (await world.stranger.get("/v1/api-keys")).json()["data"][0]["id"]
        assert (await acting.get(f"/v1/api-keys/{others_key_id}")).status_code == 404
        mixed = await acting.post("/v1/api-keys", json={**body, "account_id": "acct_other"})
        assert mixed.status_code == 400


def volatile_left_out(response: httpx.Response) -> Any:
    """Returns the answer without the parts that change from moment to moment."""
    is_json = response.headers.get("content-type", "").startswith("application/json")
    if not is_json or not response.content:
        return response.content
    return without(
        response.json(), {"last_used_at", "created_at", "id", "request_id", "waits_s", "at"}
    )


def without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: without(item, names) for name, item in value.items() if name not in names}
    return [without(item, names) for item in value] if isinstance(value, list) else value
