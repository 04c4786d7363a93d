import httpx
import pytest

from tests.artifacts.support import (
    ARTIFACTS,
    Uploading,
    deploy,
    error,
    eventually,
    new_artifact,
)
from tests.support.server import Server


class TestCreate:
    def test_anonymous(self, server: Server) -> None:
        with server.client() as client:
            error(client.post(ARTIFACTS, json={"display_name": "x"}), 401, "invalid_api_key")

    def test_created(self, client: httpx.Client) -> None:
        response = client.post(
            ARTIFACTS, json={"display_name": "Names", "pipeline": "token-classification"}
        )
        assert response.status_code == 201
        artifact = response.json()
        assert artifact.pop("id").startswith("art_")
        assert artifact.pop("created_at") == artifact.pop("updated_at")
        assert artifact == {
            "object": "model_artifact",
            "display_name": "Names",
            "pipeline": "token-classification",
            "status": "created",
            "size_gb": 0,
            "size_bytes": 0,
            "failure": None,
            "inspection": None,
            "upload_id": None,
            "origin": None,
            "import": None,
        }

    def test_unservable_pipeline(self, client: httpx.Client) -> None:
        response = client.post(
            ARTIFACTS, json={"display_name": "x", "pipeline": "token-clasification"}
        )
        details = error(response, 400, "invalid_request")
        assert details["param"] == "pipeline"
        assert "Did you mean 'token-classification'?" in details["message"]
        assert "fill-mask" in details["message"]

    def test_unknown_field(self, client: httpx.Client) -> None:
        response = client.post(ARTIFACTS, json={"display_name": "x", "pipline": "fill-mask"})
        assert "'pipeline'" in error(response, 400, "invalid_request")["message"]

    @pytest.mark.parametrize("name", ["", "x" * 129, "a\x00b", "a\nb", 7, None])
    def test_bad_name(self, client: httpx.Client, name: object) -> None:
        response = client.post(ARTIFACTS, json={"display_name": name})
        assert error(response, 400, "invalid_request")["param"] == "display_name"

    def test_lone_surrogate(self, client: httpx.Client) -> None:
        response = client.post(
            ARTIFACTS,
            content=rb'{"display_name": "\ud800"}',
            headers={"content-type": "application/json"},
        )
        error(response, 400, "invalid_request")

    def test_idempotency_key(self, client: httpx.Client) -> None:
        headers = {"idempotency-key": "once"}
        first = client.post(ARTIFACTS, json={"display_name": "x"}, headers=headers)
        again = client.post(ARTIFACTS, json={"display_name": "x"}, headers=headers)
        other = client.post(ARTIFACTS, json={"display_name": "y"}, headers=headers)
        assert (again.status_code, again.json()) == (201, first.json())
        error(other, 409, "idempotency_mismatch")
        assert len(client.get(ARTIFACTS).json()["data"]) == 1


class TestList:
    def test_pages(self, client: httpx.Client) -> None:
        ids = [new_artifact(client) for _ in range(3)]
        first = client.get(ARTIFACTS, params={"limit": 2, "order": "asc"}).json()
        rest = client.get(ARTIFACTS, params={"after": first["last_id"], "order": "asc"}).json()
        assert [artifact["id"] for artifact in first["data"] + rest["data"]] == sorted(ids)
        assert (first["has_more"], rest["has_more"]) == (True, False)


class TestUpdate:
    def test_renamed(self, client: httpx.Client) -> None:
        artifact_id = new_artifact(client)
        changed = client.patch(f"{ARTIFACTS}/{artifact_id}", json={"display_name": "new"}).json()
        assert changed["display_name"] == "new"
        assert changed["updated_at"] > changed["created_at"]
        assert client.get(f"{ARTIFACTS}/{artifact_id}").json() == changed

    def test_nothing_to_change(self, client: httpx.Client) -> None:
        artifact_id = new_artifact(client)
        before = client.get(f"{ARTIFACTS}/{artifact_id}").json()
        assert client.patch(f"{ARTIFACTS}/{artifact_id}", json={}).json() == before

    def test_pipeline_is_fixed(self, client: httpx.Client) -> None:
        artifact_id = new_artifact(client)
        response = client.patch(f"{ARTIFACTS}/{artifact_id}", json={"pipeline": "fill-mask"})
        assert error(response, 400, "invalid_request")["param"] == "pipeline"


class TestDelete:
    def test_deleted_with_its_files(self, server: Server, client: httpx.Client) -> None:
        upload = Uploading.open(server, client)
        upload.put("config.json", b"{}").raise_for_status()
        assert upload.stored() == [b"{}"]
        url = f"{ARTIFACTS}/{upload.artifact_id}"
        assert client.delete(url).json() == {
            "id": upload.artifact_id,
            "object": "model_artifact.deleted",
            "deleted": True,
        }
        assert eventually(lambda: not upload.folder.parent.exists())
        for method in ("GET", "DELETE"):
            error(client.request(method, url), 404, "artifact_not_found")
        error(client.get(upload.url), 404, "artifact_not_found")

    def test_in_use(self, ready: Uploading) -> None:
        client, url = ready.client, f"{ARTIFACTS}/{ready.artifact_id}"
        deployment_id = deploy(client, ready.artifact_id, "my-tagger")
        assert "my-tagger" in error(client.delete(url), 409, "artifact_in_use")["message"]
        assert ready.stored()
        client.delete(f"/v1/deployments/{deployment_id}").raise_for_status()
        assert client.delete(url).status_code == 200
