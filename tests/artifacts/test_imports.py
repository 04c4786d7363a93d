"""Imports into a real server from a hub in this process, over HTTP and with the command."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.base.errors import InvalidRequestError
from stoker.registry.artifacts.imports.choosing import chosen
from stoker.registry.hub.client import HubFile
from tests.artifacts.support import (
    ARTIFACTS,
    MIB,
    Uploading,
    data,
    error,
    eventually,
    new_artifact,
    small_files,
)
from tests.cli.support import Cli
from tests.conftest import WITHOUT_MODELS, running
from tests.deployments.support import TEXT, TOKENS, bert
from tests.support.deploying import deploy
from tests.support.server import Server
from tools.stand_ins.model_hub import Misbehaviour, ModelHub, model_hub

REPO = "tests/tiny"
TOKEN = "hf_" + "s3cret" * 5


@pytest.fixture(scope="module")
def the_hub() -> Iterator[ModelHub]:
    with model_hub() as hub:
        yield hub


@pytest.fixture
def hub(the_hub: ModelHub, bert: Path) -> ModelHub:
    """A well-behaved hub with one model."""
    the_hub.repositories.clear()
    the_hub.asked.clear()
    the_hub.misbehaves = Misbehaviour()
    the_hub.sends_elsewhere, the_hub.pace_s = False, 0.0
    the_hub.put(REPO, bert)
    return the_hub


@pytest.fixture(scope="module")
def importer(the_hub: ModelHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that imports from the hub in small parts."""
    with running(
        tmp_path_factory.mktemp("importer") / "data",
        STOKER_HUB_ENDPOINT=the_hub.endpoint,
        STOKER_HUB_PRIVATE_HOSTS='["localhost"]',
        STOKER_UPLOAD_PART_MIB="1",
        STOKER_JOB_LEASE_S="5",
        STOKER_ARTIFACT_LIMIT_GIB=str(64 / 1024),
        **WITHOUT_MODELS,
    ) as server:
        yield server


@pytest.fixture
def client(importer: Server) -> Iterator[httpx.Client]:
    with importer.account() as client:
        yield client


def begin(client: httpx.Client, artifact_id: str, **body: Any) -> httpx.Response:
    return client.post(f"{ARTIFACTS}/{artifact_id}/imports", json={"repo_id": REPO, **body})


def begun(client: httpx.Client, artifact_id: str, **body: Any) -> dict[str, Any]:
    answer = begin(client, artifact_id, **body)
    assert answer.status_code == 202, answer.text
    return answer.json()["artifact"]


def found(client: httpx.Client, artifact_id: str) -> dict[str, Any]:
    return client.get(f"{ARTIFACTS}/{artifact_id}").raise_for_status().json()


def ended(client: httpx.Client, artifact_id: str) -> dict[str, Any]:
    """Waits until the artifact's import has ended and returns the artifact."""
    statuses = ("completed", "failed")
    assert eventually(lambda: found(client, artifact_id)["import"]["status"] in statuses)
    return found(client, artifact_id)


def imported(client: httpx.Client, **body: Any) -> dict[str, Any]:
    artifact_id = new_artifact(client)
    begun(client, artifact_id, **body)
    artifact = ended(client, artifact_id)
    assert artifact["import"]["status"] == "completed", artifact
    assert artifact["status"] == "ready", artifact
    return artifact


def failed(client: httpx.Client, **body: Any) -> dict[str, Any]:
    """Runs a failing import into a new artifact and returns its error. The artifact is
    unchanged.
    """
    artifact_id = new_artifact(client)
    begun(client, artifact_id, **body)
    artifact = ended(client, artifact_id)
    assert artifact["import"]["status"] == "failed", artifact
    assert (artifact["status"], artifact["upload_id"]) == ("created", None), artifact
    return artifact["import"]["error"]


def stored(server: Server, artifact: dict[str, Any]) -> set[bytes]:
    """Returns the contents of an artifact's files on the disk."""
    folder = server.data_dir / "blobs" / "artifacts" / artifact["id"]
    return {path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_weights(size: int, seed: int = 1) -> dict[str, bytes]:
    """Returns files with the names of a model. Inspection rejects them."""
    return {"config.json": b"{}", "model.safetensors": data(size, seed)}


class TestImport:
    def test_is_the_model_that_an_upload_would_be(
        self, importer: Server, client: httpx.Client, hub: ModelHub, bert: Path
    ) -> None:
        commit = hub.put(REPO, {**files_of(bert), "pytorch_model.bin": b"x", "a.py": b"x"})
        artifact = imported(client)

        origin = {"hub": hub.endpoint, "repo_id": REPO, "revision": "main", "commit": commit}
        assert artifact["origin"] == origin
        files = files_of(bert)
        assert hub.paths(REPO) == set(files)
        import_state = artifact["import"]
        assert (import_state["files"], import_state["commit"]) == (len(files), commit)
        assert import_state["bytes"] == import_state["bytes_total"] == sum(map(len, files.values()))
        assert stored(importer, artifact) == set(files.values())
        assert artifact["pipeline"] == "token-classification"

    def test_begins_as_it_says(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.pace_s = 0.2
        commit = hub.put(REPO, with_weights(3 * MIB))
        artifact_id = new_artifact(client)
        answer = begin(client, artifact_id)
        assert answer.status_code == 202, answer.text
        artifact = answer.json()["artifact"]
        assert commit in answer.json()["message"]
        assert artifact["status"] == "uploading"
        assert artifact["import"]["status"] in ("queued", "in_progress")
        assert artifact["import"]["bytes_total"] == 3 * MIB + 2
        listed = client.get(ARTIFACTS).raise_for_status().json()["data"]
        assert [item["import"]["id"] for item in listed] == [artifact["import"]["id"]]
        assert client.delete(f"{ARTIFACTS}/{artifact_id}").status_code == 200

    def test_parts_elsewhere_and_no_token_there(
        self, importer: Server, client: httpx.Client, hub: ModelHub
    ) -> None:
        """Large files come from another host, which does not receive the token."""
        hub.sends_elsewhere = True
        files = with_weights(5 * MIB + 17)
        hub.put(REPO, files)
        hub.repositories[REPO].token = TOKEN
        artifact_id = new_artifact(client)
        begun(client, artifact_id, token=TOKEN)
        artifact = ended(client, artifact_id)
        # The import received all files, but inspection rejected them.
        assert artifact["import"]["error"]["code"] == artifact["failure"]["code"]
        assert artifact["import"]["bytes_total"] == sum(map(len, files.values()))
        ranges = {
            request.headers.get("Range") for request in hub.asked if "localhost" in request.host
        }
        assert len(ranges) == 6
        for request in hub.asked:
            is_told = "Authorization" in request.headers
            assert is_told == ("localhost" not in request.host)

    def test_of_a_revision(self, client: httpx.Client, hub: ModelHub, bert: Path) -> None:
        first = hub.repositories[REPO].revisions["main"]
        second = hub.put(REPO, {**files_of(bert), "README.md": b"# second"}, "refs/pr/1")
        assert imported(client, revision="refs/pr/1")["origin"]["commit"] == second
        assert imported(client, revision=first)["origin"]["commit"] == first

    def test_a_newer_commit_takes_the_place(self, client: httpx.Client, hub: ModelHub) -> None:
        artifact = imported(client)
        newer = {**hub.repositories[REPO].commits[artifact["origin"]["commit"]], "NOTICE": b"new"}
        commit = hub.put(REPO, newer)
        begun(client, artifact["id"])
        assert ended(client, artifact["id"])["origin"]["commit"] == commit

    def test_an_upload_afterwards_has_no_origin(
        self, importer: Server, client: httpx.Client, hub: ModelHub, bert: Path
    ) -> None:
        artifact = imported(client)
        upload = Uploading.open(importer, client, artifact["id"])
        upload.put_folder(bert)
        assert upload.complete().json()["artifact"]["status"] == "ready"
        assert found(client, artifact["id"])["origin"] is None

    def test_is_begun_once(self, client: httpx.Client, hub: ModelHub) -> None:
        """An import with an Idempotency-Key starts once, even if responses are lost."""
        artifact_id = new_artifact(client)
        headers = {"idempotency-key": "one"}
        body = {"repo_id": REPO}
        path = f"{ARTIFACTS}/{artifact_id}/imports"
        first, second = (client.post(path, json=body, headers=headers) for _ in range(2))
        assert first.status_code == second.status_code == 202
        assert first.json() == second.json()
        # Wait for the end, so that this import sends no requests to the hub while another test
        # checks them.
        ended(client, artifact_id)

    def test_answers_as_the_pushed_model(self, hub: ModelHub, bert: Path, tmp_path: Path) -> None:
        settings = {"STOKER_HUB_ENDPOINT": hub.endpoint}
        with running(tmp_path / "data", **settings) as real, real.account() as client:
            artifact = imported(client)
            body = {"model": "imported", "artifact_id": artifact["id"]}
            client.post("/v1/deployments", json=body).raise_for_status()
            deploy(client, bert, "pushed")
            both = [
                client.post(TOKENS, json={"inputs": TEXT, "model": model}).raise_for_status()
                for model in ("imported", "pushed")
            ]
        assert both[0].json() == both[1].json() != []


class TestRefused:
    @pytest.mark.parametrize(
        "repo_id", ["", "a/b/c", "../x", "a/..", "/a", "a b", "a/b?x=1", "x" * 300, "a/%2e%2e"]
    )
    def test_repository_that_is_none(
        self, client: httpx.Client, hub: ModelHub, repo_id: str
    ) -> None:
        answer = begin(client, new_artifact(client), repo_id=repo_id)
        assert error(answer, 400, "invalid_request")["param"] == "repo_id"
        assert not hub.asked

    @pytest.mark.parametrize("revision", ["", "..", "a b", "a\nb", "x" * 256, "a?b"])
    def test_revision_that_is_none(
        self, client: httpx.Client, hub: ModelHub, revision: str
    ) -> None:
        answer = begin(client, new_artifact(client), revision=revision)
        assert error(answer, 400, "invalid_request")["param"] == "revision"
        assert not hub.asked

    def test_what_is_not_there(self, client: httpx.Client, hub: ModelHub) -> None:
        artifact_id = new_artifact(client)
        missing = error(begin(client, artifact_id, repo_id="no/one"), 404, "repository_not_found")
        assert "token" in missing["message"]
        missing = error(begin(client, artifact_id, revision="v9"), 404, "revision_not_found")
        assert "v9" in missing["message"]
        assert found(client, artifact_id)["status"] == "created"

    def test_token_without_rights(
        self, importer: Server, client: httpx.Client, hub: ModelHub
    ) -> None:
        hub.repositories[REPO].token = TOKEN
        wrong = "hf_" + "wr0ng" * 5
        artifact_id = new_artifact(client)
        for token in (None, wrong):
            body = {} if token is None else {"token": token}
            details = error(begin(client, artifact_id, **body), 404, "repository_not_found")
            assert wrong not in details["message"]
        assert wrong not in importer.log.read_text()

    def test_gated(self, client: httpx.Client, hub: ModelHub) -> None:
        repository = hub.repositories[REPO]
        repository.token, repository.is_gated = TOKEN, True
        artifact_id = new_artifact(client)
        details = error(begin(client, artifact_id), 403, "repository_gated")
        assert f"{hub.endpoint}/{REPO}" in details["message"]
        assert "send a token" in details["message"]
        details = error(begin(client, artifact_id, token="hf_other"), 403, "repository_gated")
        assert "no access" in details["message"]

    def test_no_weights(self, client: httpx.Client, hub: ModelHub) -> None:
        for name, word in (("pytorch_model.bin", "pickles"), ("a.txt", "safetensors or GGUF")):
            hub.put(REPO, {"config.json": b"{}", name: b"x"})
            details = error(begin(client, new_artifact(client)), 400, "no_safe_weights")
            assert word in details["message"]

    def test_one_of_several_gguf(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.put(REPO, {f"m.{kind}.gguf": b"x" for kind in ("Q4_K", "Q4_K_M", "Q8_0")})
        details = error(begin(client, new_artifact(client)), 400, "invalid_request")
        assert details["param"] == "gguf"
        assert "Q4_K_M" in details["message"]
        artifact_id = new_artifact(client)
        begun(client, artifact_id, gguf="q4_k")
        ended(client, artifact_id)

    def test_too_large(self, client: httpx.Client, hub: ModelHub) -> None:
        """A model that is too large is rejected before any byte of it is fetched."""
        hub.put(REPO, with_weights(65 * MIB))
        answer = begin(client, new_artifact(client))
        error(answer, 413, "payload_too_large")
        assert not hub.paths(REPO)

    def test_nothing_else_of_the_account(
        self, importer: Server, client: httpx.Client, hub: ModelHub
    ) -> None:
        artifact_id = new_artifact(client)
        with importer.account() as other:
            error(begin(other, artifact_id), 404, "artifact_not_found")
        assert not hub.asked

    def test_switched_off(self, hub: ModelHub, tmp_path: Path) -> None:
        settings = {
            "STOKER_HUB_IMPORTS": "false",
            "STOKER_HUB_ENDPOINT": hub.endpoint,
            **WITHOUT_MODELS,
        }
        with running(tmp_path / "data", **settings) as off, off.account() as client:
            error(begin(client, new_artifact(client)), 403, "imports_disabled")
        assert not hub.asked

    @pytest.mark.parametrize(
        "listing", [b"[]", b"{", b'{"sha":"x","siblings":[]}', b"x" * (5 * MIB)]
    )
    def test_list_that_is_none(self, client: httpx.Client, hub: ModelHub, listing: bytes) -> None:
        hub.misbehaves.listing = listing
        error(begin(client, new_artifact(client)), 502, "hub_error")

    def test_paths_that_lead_out(self, client: httpx.Client, hub: ModelHub, bert: Path) -> None:
        """Paths that lead outside the folder are skipped, as are all unneeded files."""
        odd = dict.fromkeys(["../../evil.json", "/etc/x.json", "a b.json", "", ".", "/"], b"{}")
        hub.put(REPO, {**files_of(bert), **odd})
        imported(client)
        assert hub.paths(REPO) == set(files_of(bert))


class TestMisbehaving:
    def test_other_bytes(self, importer: Server, client: httpx.Client, hub: ModelHub) -> None:
        hub.misbehaves.wrong_bytes = True
        details = failed(client)
        assert details["code"] == "hub_mismatch"
        assert "digest" in details["message"]

    def test_other_size(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.misbehaves.other_size = True
        assert failed(client)["code"] == "hub_mismatch"

    def test_other_commit(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.misbehaves.other_commit = True
        assert failed(client)["code"] == "hub_error"

    def test_no_ranges(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.put(REPO, with_weights(2 * MIB))
        hub.misbehaves.no_ranges = True
        assert "range requests" in failed(client)["message"]

    @pytest.mark.parametrize(
        "where", ["http://127.0.0.2:80", "http://169.254.169.254", "file:///etc", "http://[::1]"]
    )
    def test_redirects_inward(self, client: httpx.Client, hub: ModelHub, where: str) -> None:
        hub.misbehaves.redirects_to = where
        assert failed(client)["code"] == "hub_error"

    def test_redirects_for_ever(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.misbehaves.redirects_to = hub.endpoint
        assert "redirects more than" in failed(client)["message"]

    def test_file_that_goes(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.pace_s = 0.2
        # More parts than the import fetches at the same time.
        commit = hub.put(REPO, with_weights(12 * MIB))
        artifact_id = new_artifact(client)
        begun(client, artifact_id)
        hub.repositories[REPO].commits[commit].clear()
        assert ended(client, artifact_id)["import"]["error"]["code"] == "hub_error"

    def test_fails_at_first(self, client: httpx.Client, hub: ModelHub) -> None:
        hub.misbehaves.statuses = [500, 503]
        hub.misbehaves.breaks_off = 1
        imported(client)

    def test_no_digests(self, client: httpx.Client, hub: ModelHub) -> None:
        """Without digests, an import checks only the sizes."""
        hub.misbehaves.no_digests = True
        imported(client)

    def test_is_not_there(self, tmp_path: Path) -> None:
        with model_hub() as gone:
            endpoint = gone.endpoint
        settings = {"STOKER_HUB_ENDPOINT": endpoint, **WITHOUT_MODELS}
        with running(tmp_path / "data", **settings) as server, server.account() as client:
            answer = begin(client, new_artifact(client))
            error(answer, 503, "hub_unavailable")
            assert answer.headers["retry-after"]


class TestFullDisk:
    def test_goes_on_once_there_is_room(
        self, importer: Server, client: httpx.Client, hub: ModelHub
    ) -> None:
        hub.put(REPO, with_weights(8 * MIB))
        artifact_id = new_artifact(client)
        with small_files(importer, 5 * MIB // 2):
            begun(client, artifact_id)
            assert eventually(lambda: "insufficient_storage" in importer.log.read_text())
        artifact = ended(client, artifact_id)
        # The files are complete, but inspection rejected them.
        assert artifact["failure"], artifact
        assert artifact["import"]["error"]["code"] == artifact["failure"]["code"]


class TestEnd:
    def test_cancelled(self, importer: Server, client: httpx.Client, hub: ModelHub) -> None:
        """A cancelled import leaves the artifact as it was before."""
        before = imported(client)
        hub.pace_s = 0.2
        hub.put(REPO, with_weights(8 * MIB))
        importing = begun(client, before["id"])["import"]
        path = f"{ARTIFACTS}/{before['id']}/imports/{importing['id']}"
        assert eventually(lambda: bool(hub.paths(REPO) & {"model.safetensors"}))
        assert client.delete(path).raise_for_status().json()["deleted"] is True
        error(client.delete(path), 404, "import_not_found")
        after = found(client, before["id"])
        assert after["import"] is None
        assert (after["status"], after["origin"]) == ("ready", before["origin"])
        files = hub.repositories[REPO].commits[before["origin"]["commit"]]
        assert eventually(lambda: stored(importer, after) == set(files.values()))

    def test_ended_is_not_cancelled(self, client: httpx.Client, hub: ModelHub) -> None:
        artifact = imported(client)
        path = f"{ARTIFACTS}/{artifact['id']}/imports/{artifact['import']['id']}"
        error(client.delete(path), 409, "import_ended")

    def test_an_upload_supersedes_it(
        self, importer: Server, client: httpx.Client, hub: ModelHub
    ) -> None:
        hub.pace_s = 0.2
        hub.put(REPO, with_weights(8 * MIB))
        artifact_id = new_artifact(client)
        begun(client, artifact_id)
        upload = Uploading.open(importer, client, artifact_id)
        artifact = ended(client, artifact_id)
        assert artifact["import"]["error"]["code"] == "upload_closed"
        assert artifact["upload_id"] == upload.upload_id

    def test_no_client_adds_to_it(self, client: httpx.Client, hub: ModelHub, bert: Path) -> None:
        """Clients cannot add files to an import, because the artifact names one hub as the origin
        of all its files.
        """
        hub.pace_s = 0.2
        commit = hub.put(REPO, files_of(bert))
        artifact = begun(client, new_artifact(client))
        upload = f"{ARTIFACTS}/{artifact['id']}/uploads/{artifact['upload_id']}"
        for path in ("files/config.json", "files/other.txt", "files/model.safetensors/parts/1"):
            error(client.put(f"{upload}/{path}", content=b"{}"), 409, "upload_of_import")
        error(client.post(f"{upload}/complete"), 409, "upload_of_import")
        hub.pace_s = 0
        after = ended(client, artifact["id"])
        assert (after["status"], after["origin"]["commit"]) == ("ready", commit)
        assert after["size_bytes"] == sum(map(len, files_of(bert).values()))

    def test_token_is_erased(self, importer: Server, client: httpx.Client, hub: ModelHub) -> None:
        hub.repositories[REPO].token = TOKEN
        imported(client, token=TOKEN)
        assert {request.headers.get("Authorization") for request in hub.asked} == {
            f"Bearer {TOKEN}"
        }
        for path in importer.data_dir.rglob("*"):
            assert not path.is_file() or TOKEN.encode() not in path.read_bytes()
        assert TOKEN not in importer.log.read_text()

    def test_goes_on_after_a_kill(self, hub: ModelHub, tmp_path: Path) -> None:
        """An import continues after a kill and does not fetch durable parts again."""
        hub.put(REPO, with_weights(12 * MIB))
        settings = {
            "STOKER_HUB_ENDPOINT": hub.endpoint,
            "STOKER_UPLOAD_PART_MIB": "1",
            "STOKER_JOB_LEASE_S": "2",
            **WITHOUT_MODELS,
        }
        with running(tmp_path / "data", **settings) as server, server.account() as client:
            hub.pace_s = 0.02
            artifact_id = new_artifact(client)
            begun(client, artifact_id)
            assert eventually(lambda: found(client, artifact_id)["import"]["bytes"] > 3 * MIB)
            server.kill()
            before = len(hub.asked)
            hub.pace_s = 0.0
            server.restart()
            artifact = ended(client, artifact_id)
            assert artifact["failure"], artifact
            ranges = {request.headers.get("Range") for request in hub.asked[before:]}
            assert len(ranges) < 10
            assert artifact["import"]["error"]["code"] == artifact["failure"]["code"]


class TestCommand:
    def test_imports_and_deploys(self, hub: ModelHub, tmp_path: Path) -> None:
        with running(tmp_path / "data", STOKER_HUB_ENDPOINT=hub.endpoint) as server:
            cli = cli_of(server)
            artifact = cli.json("artifacts", "import", f"hf:{REPO}")
            assert artifact["status"] == "ready"
            assert artifact["display_name"] == REPO
            shown = cli.run("artifacts", "show", artifact["id"]).stdout
            assert hub.endpoint in shown
            deployment = cli.json("deploy", f"hf:{REPO}@main", "--as", "my-model")
            assert deployment["model"] == "my-model"
            answer = cli.json("call", "my-model", TEXT)
            assert answer

    def test_says_what_is_wrong(self, importer: Server, hub: ModelHub) -> None:
        cli = cli_of(importer)
        done = cli.run("artifacts", "import", "no/one")
        assert done.returncode == 1
        assert "repository_not_found" in done.stderr
        # The failed import leaves no artifact behind.
        assert cli.json("artifacts", "list") == []
        hub.misbehaves.wrong_bytes = True
        done = cli.run("artifacts", "import", REPO)
        assert done.returncode == 1
        assert "hub_mismatch" in done.stderr
        assert cli.run("deploy", "a", "b", "--as", "c").returncode == 2
        assert cli.run("artifacts", "import", "a b").returncode == 2
        assert cli.run("artifacts", "import", REPO, "--token-from", "NOT_SET").returncode == 2

    def test_token_from_a_variable(self, importer: Server, hub: ModelHub) -> None:
        hub.repositories[REPO].token = TOKEN
        cli = cli_of(importer, HF_TOKEN=TOKEN)
        assert cli.run("artifacts", "import", REPO).returncode == 1
        artifact = cli.json("artifacts", "import", REPO, "--token-from", "HF_TOKEN")
        assert artifact["status"] == "ready"

    def test_updates(self, importer: Server, hub: ModelHub) -> None:
        cli = cli_of(importer)
        first = cli.json("artifacts", "import", REPO)
        made = cli.json("deploy", "followed", first["id"])
        unchanged = cli.json("artifacts", "update", first["id"])
        assert (unchanged["is_newer"], unchanged["versions"]) == (False, [])
        assert unchanged["artifact"]["id"] == first["id"]
        commit = hub.put(REPO, bert())
        updated = cli.json("artifacts", "update", first["id"])
        assert updated["artifact"]["origin"]["commit"] == commit
        (version,) = updated["versions"]
        assert (version["number"], version["status"]) == (2, "live")
        assert version["note"] == f"commit {commit}"
        shown = cli.json("deployments", "show", "followed")
        assert (shown["id"], shown["artifact_id"]) == (made["id"], updated["artifact"]["id"])
        # The former artifact stays for a rollback.
        assert cli.json("versions", "rollback", "followed")["artifact_id"] == first["id"]
        assert [artifact["id"] for artifact in cli.json("artifacts", "list")] == [
            updated["artifact"]["id"],
            first["id"],
        ]

    def test_cancels(self, importer: Server, client: httpx.Client, hub: ModelHub) -> None:
        hub.pace_s = 0.2
        hub.put(REPO, with_weights(8 * MIB))
        artifact_id = new_artifact(client)
        begun(client, artifact_id)
        cli = Cli(importer.base_url, client.headers["authorization"].removeprefix("Bearer "))
        assert "Cancelled imp_" in cli.run("artifacts", "cancel", artifact_id).stderr
        assert cli.run("artifacts", "cancel", artifact_id).returncode == 1


class TestChosen:
    """The files of a repository that an import fetches. tests/client/test_model_files.py has the
    rules that the command line and the console share with it.
    """

    def test_leaves_out_spare_files(self) -> None:
        shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        fetched = ["config.json", *shards, "model.safetensors.index.json"]
        skipped = ["consolidated.safetensors", "onnx/config.json", "model.gguf", "../config.json"]
        assert names(chosen(listed(*fetched, *skipped), None)) == sorted(fetched)

    def test_of_gguf(self) -> None:
        gguf = ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "mmproj-m.gguf"]
        files = listed(*gguf, "config.json", "model.safetensors", "model.safetensors.index.json")
        assert names(chosen(files, "Q4_K")) == ["config.json", "m-Q4_K.gguf"]
        assert names(chosen(files, "m-Q4_K_M.gguf")) == ["config.json", "m-Q4_K_M.gguf"]
        assert names(chosen(listed("m-Q4_K.gguf", "mmproj-m.gguf"), None)) == ["m-Q4_K.gguf"]
        with pytest.raises(InvalidRequestError, match="several GGUF"):
            chosen(listed(*gguf), None)

    def test_smallest_first(self) -> None:
        """The smallest files are fetched first, so that errors in a configuration appear before
        gigabytes are fetched.
        """
        files = chosen([one("model.safetensors", 9), one("config.json", 3)], None)
        assert [file.path for file in files] == ["config.json", "model.safetensors"]


def one(path: str, size: int = 1) -> HubFile:
    digest = hashlib.sha256(path.encode()).hexdigest()
    return HubFile(path=path, size=size, sha256=digest, git_sha1=None)


def listed(*paths: str) -> list[HubFile]:
    return [one(path) for path in paths]


def names(files: list[HubFile]) -> list[str]:
    return sorted(file.path for file in files)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def cli_of(server: Server, **settings: str) -> Cli:
    with server.account() as client:
        key = client.headers["authorization"].removeprefix("Bearer ")
    return Cli(server.base_url, key, settings)
