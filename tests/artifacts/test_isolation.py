"""No account reaches another account's artifacts, by any route or method."""

import re
from collections.abc import Iterator

import pytest

from stoker.registry.artifacts.endpoints import router
from tests.artifacts.support import ARTIFACTS, Uploading, deploy, error
from tests.support.server import Server

OBJECT_ROUTES = sorted(
    (method, route.path)
    for route in router.routes
    for method in route.methods
    if "{artifact_id}" in route.path
)


@pytest.fixture(scope="module")
def victim(server: Server) -> Iterator[Uploading]:
    with server.account("victim") as client:
        upload = Uploading.open(server, client)
        upload.put("config.json", b"{}").raise_for_status()
        yield upload


def _fill(path: str, upload: Uploading) -> str:
    values = {
        "artifact_id": upload.artifact_id,
        "upload_id": upload.upload_id,
        "path": "config.json",
        "number": "1",
    }
    return re.sub(r"{(\w+)(?::\w+)?}", lambda match: values[match[1]], path)


def test_the_table_has_all_routes() -> None:
    assert len(OBJECT_ROUTES) == 12


@pytest.mark.case(24)
@pytest.mark.parametrize(("method", "path"), OBJECT_ROUTES)
class TestEveryRoute:
    def test_anonymous(self, victim: Uploading, method: str, path: str) -> None:
        with victim.server.client() as client:
            answer = client.request(method, _fill(path, victim))
        assert answer.status_code == 401

    def test_another_account(self, victim: Uploading, method: str, path: str) -> None:
        with victim.server.account("thief") as client:
            takes_json = method == "PATCH" or path.endswith("/uploads")
            body = {"json": {}} if takes_json else {"content": b"{}"}
            stolen = client.request(method, _fill(path, victim), **body)
            unknown = client.request(
                method, _fill(path, victim).replace(victim.artifact_id, "art_0"), **body
            )
        assert stolen.status_code == 404
        if method != "HEAD":
            assert error(stolen, 404, "artifact_not_found")["message"] == "Artifact not found"
        assert stolen.content == unknown.content
        assert victim.file("config.json")["complete"]


def test_not_listed(victim: Uploading) -> None:
    with victim.server.account("thief") as client:
        assert client.get(ARTIFACTS).json()["data"] == []


@pytest.mark.case(24)
def test_an_own_artifact_does_not_open_others_uploads(victim: Uploading) -> None:
    with victim.server.account("thief") as client:
        own_upload = Uploading.open(victim.server, client)
        url = f"{ARTIFACTS}/{own_upload.artifact_id}/uploads/{victim.upload_id}"
        error(client.get(url), 404, "upload_not_found")
        error(client.put(f"{url}/files/config.json", content=b"x"), 404, "upload_not_found")
        error(client.delete(url), 404, "upload_not_found")


def test_deployment_keys_are_not_for_artifacts(ready: Uploading) -> None:
    deployment_id = deploy(ready.client, ready.artifact_id, "isolated")
    created = ready.client.post("/v1/api-keys", json={"deployment_ids": [deployment_id]})
    with ready.server.client(created.json()["key"]) as scoped:
        error(scoped.get(ARTIFACTS), 401, "invalid_api_key")
        error(scoped.get(f"{ARTIFACTS}/{ready.artifact_id}"), 401, "invalid_api_key")
        error(scoped.get(ready.url), 401, "invalid_api_key")
