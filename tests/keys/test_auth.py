"""Access is denied by default: every route except `OPEN` needs a key with the necessary rights."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from stoker.base.errors import InvalidAPIKeyError
from stoker.platform.web.error_formats import TEI_PATHS
from tests.artifacts.support import Uploading
from tests.deployments.routes import BODIES, OPEN, OPERATORS, Place, is_inference, keyed, places
from tests.deployments.support import deploy, key_for, upload
from tests.support.deploying import deploy as deploy_folder
from tests.support.errors import error_of
from tests.support.server import Server

REFUSAL = InvalidAPIKeyError().body()


@dataclass
class Tenant:
    """An account with one object of every kind."""

    client: httpx.Client
    ids: dict[str, str]
    deployment_key: str


@pytest.fixture(scope="module")
def tenant(server: Server) -> Iterator[Tenant]:
    with server.account("tenant") as client:
        artifact_id = upload(server, client)
        deployment_id = deploy(client, artifact_id, "theirs")["id"]
        key = client.post("/v1/api-keys", json={"scope": "account"}).json()
        uploading = Uploading.open(server, client)
        uploading.put("config.json", b"{}").raise_for_status()
        ids = {
            "deployment_id": deployment_id,
            "key_id": key["id"],
            "model": "theirs",
            "artifact_id": uploading.artifact_id,
            "upload_id": uploading.upload_id,
            "path": "config.json",
            **made_video(client),
        }
        yield Tenant(client, ids, key_for(client, deployment_id))


def made_video(client: httpx.Client) -> dict[str, str]:
    """Returns the ids of a video and of the file with its content."""
    model = Path(stoker.demo.__file__).parent / "models" / "random-video-maker"
    deploy_folder(client, model, "film")
    body = {"model": "film", "prompt": "a boat", "num_inference_steps": 1, "seconds": 1}
    video = client.post("/v1/videos", json=body).raise_for_status().json()
    deadline = time.monotonic() + 120
    while video["status"] != "completed":
        assert time.monotonic() < deadline and video["status"] != "failed", video
        time.sleep(0.1)
        video = client.get(f"/v1/videos/{video['id']}").raise_for_status().json()
    files = client.get("/v1/files").raise_for_status().json()["data"]
    return {"video_id": video["id"], "file_id": files[0]["id"]}


@pytest.fixture(scope="module")
def bad_headers(server: Server) -> dict[str, list[tuple[bytes, bytes]]]:
    """Authorization headers that no route may accept."""
    with server.account("bad") as client:
        # Long enough to create the keys meanwhile on a busy machine.
        soon = datetime.now(UTC) + timedelta(seconds=3)
        expiring, revoked, good = (
            client.post("/v1/api-keys", json={"scope": "account", **more}).json()
            for more in ({"expires_at": soon.isoformat()}, {}, {})
        )
        client.delete(f"/v1/api-keys/{revoked['id']}").raise_for_status()
    _, public_id, secret = good["key"].split("-", 2)
    time.sleep(max(0.0, (soon - datetime.now(UTC)).total_seconds()))
    values = {
        "empty": b"",
        "no token": b"Bearer",
        "another scheme": f"Basic {good['key']}".encode(),
        "malformed": b"Bearer nonsense",
        "two parts": f"Bearer sk-{public_id}".encode(),
        "another prefix": f"Bearer pk-{public_id}-{secret}".encode(),
        "no secret": f"Bearer sk-{public_id}-".encode(),
        "wrong secret": f"Bearer sk-{public_id}-{secret[::-1]}".encode(),
        "cut secret": f"Bearer sk-{public_id}-{secret[:-1]}".encode(),
        "unknown public id": f"Bearer sk-{'0' * 16}-{secret}".encode(),
        "not ASCII": b"Bearer sk-\xe9-\xff",
        "overlong": b"Bearer sk-" + b"x" * 10_000,
        "expired": f"Bearer {expiring['key']}".encode(),
        "revoked": f"Bearer {revoked['key']}".encode(),
    }
    return {"absent": []} | {name: [(b"authorization", value)] for name, value in values.items()}


REASONS = {
    "absent": "The request has no API key",
    "malformed JSON": "The request has no API key",
    "empty": "The header Authorization has no API key",
    "no token": "The header Authorization has no API key",
    "another scheme": "The header Authorization has no API key",
    "malformed": "keys of this server begin with 'sk-'",
    "another prefix": "keys of this server begin with 'sk-'",
    "deployment scope": "its scope is 'deployment'. This request needs a key of scope '",
    "account scope": "its scope is 'account'. This request needs a key of scope 'operator'.",
}
"""Maps the reason of a refusal to a part of its message. All other reasons share one message."""


def check_refused(place: Place, response: httpx.Response, why: str) -> None:
    assert response.status_code == 401, (str(place), why, response.text)
    assert response.headers["www-authenticate"] == "Bearer"
    if place.method == "HEAD":
        return
    error = error_of(response)
    if place.path in TEI_PATHS:
        assert error.pop("error_type") == "Validation"
        error |= {"type": "InvalidAPIKeyError", "param": None}
    if place.path.startswith("/v1/messages"):
        assert error.pop("type") == "authentication_error"
        error |= {"type": "InvalidAPIKeyError", "param": None}
    if why not in REASONS:
        assert {"error": error} == REFUSAL
    assert REASONS.get(why, "") in error.pop("message"), (str(place), why)
    assert error == {"type": "InvalidAPIKeyError", "code": "invalid_api_key", "param": None}


class TestRouteTable:
    @pytest.mark.case(14)
    def test_open_paths_are_these_and_answer_anonymous_callers(self, server: Server):
        assert {place.path for place in places()} >= OPEN
        with server.client() as anonymous:
            statuses = {path: anonymous.get(path).status_code for path in OPEN - {"/ready"}}
        assert set(statuses.values()) == {200}, statuses

    @pytest.mark.case(13, 14, 15)
    @pytest.mark.parametrize("place", keyed(), ids=str)
    def test_every_bad_key_is_refused(
        self, server: Server, place: Place, bad_headers: dict[str, Any], shared: httpx.Client
    ):
        """The answer does not reveal if a key is unknown, expired or revoked."""
        for why, headers in bad_headers.items():
            check_refused(place, shared.request(place.method, place.url(), headers=headers), why)

    @pytest.mark.parametrize(
        "place", [one for one in keyed() if one.method in {"POST", "PATCH"}], ids=str
    )
    def test_body_of_an_anonymous_caller_is_not_parsed(self, place: Place, shared: httpx.Client):
        headers = {"content-type": "application/json"}
        response = shared.request(place.method, place.url(), content=b"{", headers=headers)
        check_refused(place, response, "malformed JSON")

    @pytest.mark.case(24)
    @pytest.mark.parametrize(
        "place", [one for one in keyed() if not is_inference(one.path)], ids=str
    )
    def test_deployment_key_manages_nothing(self, server: Server, place: Place, tenant: Tenant):
        with server.client(tenant.deployment_key) as client:
            response = client.request(place.method, place.url(tenant.ids))
        check_refused(place, response, "deployment scope")

    @pytest.mark.parametrize("place", [one for one in keyed() if one.path in OPERATORS], ids=str)
    def test_account_key_is_no_operator(self, place: Place, tenant: Tenant):
        body = {"name": "more"} if place.method == "POST" else None
        response = tenant.client.request(place.method, place.url(), json=body)
        check_refused(place, response, "account scope")

    @pytest.mark.case(13)
    @pytest.mark.parametrize(
        "host", ["{}/health?", "{}/health#", "x/health", "/health", "{}//health?"]
    )
    def test_host_header_opens_nothing(self, server: Server, shared: httpx.Client, host: str):
        """CVE-2026-48710: the URL of a request also depends on the Host header."""
        name = server.base_url.removeprefix("http://")
        for place in keyed():
            headers = {"host": host.format(name)}
            response = shared.request(place.method, place.url(), headers=headers)
            # A header that yields no valid URL is a bad request.
            assert response.status_code in {400, 401}, (str(place), response.text)

    @pytest.mark.case(13)
    def test_slash_at_the_end_is_no_way_around(self, shared: httpx.Client):
        for place in keyed():
            response = shared.request(place.method, place.url() + "/", follow_redirects=False)
            assert response.status_code in {307, 401, 404, 405}, str(place)


@pytest.mark.case(24)
class TestOtherAccounts:
    """Objects of another account are answered as if they did not exist."""

    @pytest.mark.parametrize(
        "place",
        [one for one in keyed() if one.parameters and one.path not in OPERATORS],
        ids=str,
    )
    def test_every_object_is_hidden(self, place: Place, tenant: Tenant, stranger: httpx.Client):
        has_body = place.method in {"PATCH", "POST", "PUT"}
        body = {"json": BODIES.get(place.path, {})} if has_body else {}
        theirs, nobodys = (
            stranger.request(place.method, place.url(ids), **body)
            for ids in (tenant.ids, {name: f"{value}0" for name, value in tenant.ids.items()})
        )
        assert theirs.status_code == nobodys.status_code == 404, theirs.text
        if place.method != "HEAD":
            hidden = theirs.text.replace(tenant.ids["model"], "?")
            assert hidden == nobodys.text.replace(tenant.ids["model"] + "0", "?")

    def test_lists_show_nothing(self, tenant: Tenant, stranger: httpx.Client):
        lists = ("/v1/deployments", "/v1/model-artifacts", "/v1/models", "/v1/files", "/v1/videos")
        for path in lists:
            assert tenant.client.get(path).json()["data"]
            assert stranger.get(path).json()["data"] == []

    def test_their_artifact_cannot_be_deployed(self, tenant: Tenant, stranger: httpx.Client):
        body = {"model": "mine", "artifact_id": tenant.ids["artifact_id"]}
        response = stranger.post("/v1/deployments", json=body)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "artifact_not_found"

    def test_header_gives_an_account_key_no_other_account(
        self, server: Server, tenant: Tenant, stranger: httpx.Client
    ):
        headers = {"x-stoker-account": tenant.client.account_id}  # type: ignore[attr-defined]
        assert stranger.get("/v1/deployments", headers=headers).json()["data"] == []

    def test_objects_are_still_there(self, tenant: Tenant):
        """A stranger's requests have not changed any object. Runs last."""
        ids = tenant.ids
        for path in (
            f"/v1/deployments/{ids['deployment_id']}",
            f"/v1/api-keys/{ids['key_id']}",
            f"/v1/model-artifacts/{ids['artifact_id']}/uploads/{ids['upload_id']}",
            f"/v1/videos/{ids['video_id']}",
            f"/v1/files/{ids['file_id']}/content",
        ):
            assert tenant.client.get(path).status_code == 200


class TestOperator:
    def test_acts_for_an_account(self, server: Server, tenant: Tenant):
        headers = {"x-stoker-account": tenant.client.account_id}  # type: ignore[attr-defined]
        with server.client(server.operator_key) as operator:
            listed = operator.get("/v1/deployments", headers=headers).json()["data"]
        assert {deployment["model"] for deployment in listed} == {"film", "theirs"}

    def test_must_name_the_account(self, server: Server):
        with server.client(server.operator_key) as operator:
            response = operator.get("/v1/deployments")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-stoker-account"

    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_unknown_account(self, server: Server, method: str):
        with server.client(server.operator_key) as operator:
            response = operator.request(
                method,
                "/v1/model-artifacts",
                json={"display_name": "x"},
                headers={"x-stoker-account": "acct_nobody"},
            )
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "account_not_found"


class TestDeploymentKey:
    def test_sees_its_models_only(self, server: Server, tenant: Tenant):
        with server.client(tenant.deployment_key) as client:
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["theirs"]

    def test_model_out_of_its_scope(self, server: Server, tenant: Tenant):
        listed = tenant.client.get("/v1/deployments").json()["data"]
        other = deploy(tenant.client, listed[-1]["artifact_id"], "other")
        with server.client(tenant.deployment_key) as client:
            for response in (
                client.get("/v1/models/other"),
                client.post("/v1/classifications/token", json={"inputs": "x", "model": "other"}),
            ):
                assert response.status_code == 401
                message = response.json()["error"]["message"]
                assert "scope is 'deployment' and it does not cover 'other'" in message
            assert client.get("/v1/models/nobodys").status_code == 404
        tenant.client.delete(f"/v1/deployments/{other['id']}").raise_for_status()

    def test_deleted_deployment(self, server: Server, tenant: Tenant):
        listed = tenant.client.get("/v1/deployments").json()["data"]
        passing = deploy(tenant.client, listed[-1]["artifact_id"], "passing")
        with server.client(key_for(tenant.client, passing["id"])) as client:
            tenant.client.delete(f"/v1/deployments/{passing['id']}").raise_for_status()
            response = client.post("/v1/classifications/token", json={"inputs": "x"})
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"


@pytest.fixture(scope="module")
def shared(server: Server) -> Iterator[httpx.Client]:
    """Yields a client without a key."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def stranger(server: Server) -> Iterator[httpx.Client]:
    with server.account("stranger") as client:
        yield client
