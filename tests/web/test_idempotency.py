import inspect
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from stoker.platform.web.idempotency import KEPT, IdempotencyRecord, forget_old
from stoker.store import db
from stoker.store.db import Database
from tests.artifacts.support import ARTIFACTS
from tests.deployments.routes import app
from tests.deployments.support import DEPLOYMENTS, check_error, upload
from tests.support.server import Server

KEYS, LINKS = "/v1/api-keys", "/v1/console/links"
_SECRET = {"key", "link", "secret", "token", "url", "csrf"}


def sign_in(server: Server, link: str) -> dict[str, Any]:
    with server.client() as browser:
        origin = {"origin": server.base_url, "sec-fetch-site": "same-origin"}
        body = {"link": link.partition("#link=")[2]}
        return browser.post("/console/session", json=body, headers=origin).raise_for_status().json()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("idempotency") as client:
        yield client


def post(client: httpx.Client, path: str, body: object, key: str, **headers: str) -> httpx.Response:
    return client.post(path, json=body, headers={"idempotency-key": key, **headers})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (ARTIFACTS, {"display_name": "x"}),
        (KEYS, {"scope": "account"}),
        ("/v1/accounts", {"name": "x"}),
    ],
)
def test_same_key_and_body_give_the_first_answer(
    server: Server, client: httpx.Client, path: str, body: dict[str, str]
):
    if path == "/v1/accounts":
        client = server.client(server.operator_key)
    first, again = (post(client, path, body, "same") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    listed = client.get(path, params={"limit": 2}).json()["data"]
    assert listed[0]["id"] == first.json()["id"]
    assert len(listed) < 2 or listed[1]["id"] != first.json()["id"]


def test_deployments_are_made_once(server: Server, client: httpx.Client):
    body = {"model": "once", "artifact_id": upload(server, client)}
    first, again = (post(client, DEPLOYMENTS, body, "deploy") for _ in range(2))
    assert again.json() == first.json()
    assert post(client, DEPLOYMENTS, body, "another").status_code == 409
    assert len(client.get(DEPLOYMENTS).json()["data"]) == 1


def test_upload_sessions_are_opened_once(client: httpx.Client):
    artifact_id = client.post(ARTIFACTS, json={"display_name": "x"}).json()["id"]
    first, again = (
        client.post(f"{ARTIFACTS}/{artifact_id}/uploads", headers={"idempotency-key": "open"})
        for _ in range(2)
    )
    assert again.json()["upload_id"] == first.json()["upload_id"]


def test_another_body_is_a_conflict(client: httpx.Client):
    assert post(client, KEYS, {"scope": "account"}, "reused").status_code == 201
    response = post(client, KEYS, {"scope": "account", "name": "b"}, "reused")
    check_error(response, 409, "ConflictError", "idempotency_mismatch", "Idempotency-Key")


def test_key_belongs_to_path_and_account(server: Server, client: httpx.Client):
    first = post(client, ARTIFACTS, {"display_name": "x"}, "shared")
    assert post(client, KEYS, {"scope": "account"}, "shared").status_code == 201
    with server.account() as other:
        theirs = post(other, ARTIFACTS, {"display_name": "x"}, "shared")
    assert theirs.json()["id"] != first.json()["id"]


@pytest.mark.case(28)
def test_records_belong_to_the_key_that_asked(server: Server, client: httpx.Client):
    """A second key of the account, even with fewer rights, gets no answer of the first key."""
    body, headers = {"display_name": "x"}, {"idempotency-key": "of-one-key"}
    other_key = client.post(KEYS, json={"scope": "account"}).json()["key"]
    first = post(client, ARTIFACTS, body, "of-one-key").json()
    with server.client(other_key) as other:
        assert post(other, ARTIFACTS, body, "of-one-key").json()["id"] != first["id"]
    model = {"model": "of-one-key", "artifact_id": upload(server, client)}
    deployment = client.post(DEPLOYMENTS, json=model).raise_for_status().json()["id"]
    narrow = client.post(KEYS, json={"deployment_ids": [deployment]}).json()["key"]
    link = client.post(LINKS, headers=headers).raise_for_status().json()["url"]
    with server.client(narrow) as caller:
        answer = caller.post(LINKS, headers=headers)
        signed_in = sign_in(server, answer.raise_for_status().json()["url"])
    assert answer.json()["url"] != link
    assert signed_in["scope"] == "deployment"


@pytest.mark.case(28)
def test_links_are_not_remembered(client: httpx.Client):
    """A repeated request with the same key and Idempotency-Key gets no link."""
    headers = {"idempotency-key": "secret"}
    link = client.post(LINKS, headers=headers).raise_for_status().json()["url"]
    again = client.post(LINKS, headers=headers)
    check_error(again, 409, "ConflictError", "idempotency_secret", "Idempotency-Key")
    assert link.partition("#")[2] not in again.text


def test_no_answer_that_opens_something_once_is_remembered():
    """Checks every route that remembers its answers, by the fields of these answers."""
    routes = [getattr(context, "route", context) for context in iter_route_contexts(app().routes)]
    secret: list[str] = []
    for route in [route for route in routes if isinstance(route, APIRoute)]:
        is_remembered = "idempotent" in inspect.signature(route.endpoint).parameters
        if is_remembered and _SECRET & set(getattr(route.response_model, "model_fields", ())):
            secret.append(route.path)
            # A new key's answer is stored sealed and repeated, as the API promises. A link is never
            # repeated.
            is_single_use = "is_single_use=True" in inspect.getsource(route.endpoint)
            assert is_single_use == (route.path != KEYS), route.path
    assert {KEYS, LINKS} <= set(secret)


def test_operator_acts_for_one_account_at_a_time(server: Server, client: httpx.Client):
    with server.account() as other, server.client(server.operator_key) as operator:
        accounts = [client.account_id, other.account_id]  # type: ignore[attr-defined]
        made = [
            post(
                operator,
                ARTIFACTS,
                {"display_name": "x"},
                "for-two",
                **{"x-stoker-account": account},
            ).json()["id"]
            for account in accounts
        ]
        assert made[0] != made[1]
        assert other.get(f"{ARTIFACTS}/{made[1]}").status_code == 200


def test_failed_request_is_not_remembered(client: httpx.Client):
    assert post(client, KEYS, {"deployment_ids": ["dep_none"]}, "retried").status_code == 404
    assert post(client, KEYS, {"scope": "account"}, "retried").status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_bad_key(client: httpx.Client, key: str):
    response = post(client, KEYS, {"scope": "account"}, key)
    check_error(response, 400, "InvalidRequestError", "invalid_request", "idempotency-key")


def test_concurrent_requests_create_once(server: Server, client: httpx.Client):
    def create(_: int) -> httpx.Response:
        return post(client, ARTIFACTS, {"display_name": "raced"}, "race")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(8)))
    assert len({answer.text for answer in answers if answer.status_code == 201}) == 1
    listed = client.get(ARTIFACTS, params={"limit": 100}).json()["data"]
    assert [artifact["display_name"] for artifact in listed].count("raced") == 1


async def test_records_are_forgotten_in_time(tmp_path: Path):
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/stoker.db")
    now = db.now()
    try:
        await database.migrate()
        async with database.transaction() as session:
            for name, age in (("old", KEPT + timedelta(seconds=1)), ("new", KEPT / 2)):
                session.add(
                    IdempotencyRecord(
                        id=name,
                        body_sha256="",
                        response=json.dumps({}).encode(),
                        created_at=now - age,
                    )
                )
        await forget_old(database, now - KEPT)
        async with database.reading() as session:
            assert await session.get(IdempotencyRecord, "old") is None
            assert await session.get(IdempotencyRecord, "new") is not None
    finally:
        await database.close()
