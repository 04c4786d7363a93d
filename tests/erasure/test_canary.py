"""The data folder and the log contain no byte of a deleted account's texts."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from tests.adapters.support import made
from tests.support.deploying import deploy, deployment
from tests.support.server import Server, running

CANARY = "canaryzq"
MODELS = Path(stoker.demo.__file__).parent / "models"


@pytest.fixture(scope="module")
def erasing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("erasing") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a model with the canary word in its card, in a format that keeps the file
    unchanged.
    """
    folder = tmp_path_factory.mktemp("canary") / CANARY
    shutil.copytree(MODELS / "tiny-chat", folder)
    (folder / "README.md").write_text(f"# A model of {CANARY}\n")
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates an adapter that is merged into a copy of its base."""
    folder = tmp_path_factory.mktemp("adapter") / f"{CANARY}-adapter"
    made(folder, base, loader="AutoModelForCausalLM", task_type="CAUSAL_LM", use_dora=True)
    return folder


def places(server: Server, word: str) -> set[str]:
    """Returns the server's files, including its log, that contain a word in their names or their
    bytes.
    """
    paths = set[str]()
    for path in [*server.data_dir.rglob("*"), server.log]:
        if word in path.name or (path.is_file() and word.encode() in path.read_bytes()):
            paths.add(path.relative_to(server.data_dir.parent).as_posix())
    return paths


def ask(client: httpx.Client, model: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": f"Hello {CANARY}"}]
    body = {"model": model, "messages": messages, "max_tokens": 4, **fields}
    return client.post("/v1/chat/completions", json=body)


def fill(client: httpx.Client, base: Path, adapter: Path) -> None:
    """Makes an account store and run objects of all kinds."""
    model = f"{CANARY}-chat"
    deployed = deploy(client, base, model, engine="torch")
    merged = f"{CANARY}-merged"
    deploy(client, adapter, merged, adapter_of=model)
    for name in (model, merged):
        ask(client, name).raise_for_status()
    place = f"/v1/deployments/{deployed['id']}"
    request = {"messages": [{"role": "user", "content": CANARY}], "max_tokens": 2}
    check = {"name": CANARY, "request": request, "expect": {"status": 200}}
    client.put(f"{place}/checks", json={"checks": [check]}).raise_for_status()
    client.post(f"{place}/checks/run").raise_for_status()
    version = {"dtype": "bfloat16", "note": CANARY, "promote": "manual"}
    client.post(f"{place}/versions", json=version).raise_for_status()
    client.post(f"{place}/trials", json={"examples": [request]}).raise_for_status()
    body = {"name": CANARY, "model": model, "instructions": CANARY}
    agent = client.post("/v1/agent", json=body).raise_for_status().json()["id"]
    for _ in range(2):
        # One run has most likely ended when the account is deleted.
        key = {"idempotency-key": CANARY}
        runs = f"/v1/agent/{agent}/runs"
        client.post(runs, json={"input": CANARY}, headers=key).raise_for_status()
    client.post("/v1/api-keys", json={"scope": "account", "name": CANARY}).raise_for_status()
    client.post("/v1/console/links").raise_for_status()
    opened = client.post("/v1/model-artifacts", json={"display_name": CANARY}).raise_for_status()
    uploads = f"/v1/model-artifacts/{opened.json()['id']}/uploads"
    upload = client.post(uploads).raise_for_status().json()["upload_id"]
    content = CANARY.encode() * 1000
    client.put(f"{uploads}/{upload}/files/{CANARY}.json", content=content).raise_for_status()


@pytest.mark.one_machine
def test_no_byte_is_left(erasing_server: Server, base: Path, adapter: Path) -> None:
    server = erasing_server
    server.wait_ready()
    with server.account("other") as other, server.account(CANARY) as client:
        deployed = deploy(other, MODELS / "tiny-chat", "kept", engine="torch")
        choices = ask(other, "kept", temperature=0).raise_for_status().json()["choices"]
        fill(client, base, adapter)
        account = f"/v1/accounts/{client.account_id}"  # type: ignore[attr-defined]
        before = places(server, CANARY)
        for kind in ("data/stoker.db", "data/models/", "data/blobs/"):
            assert any(path.startswith(kind) for path in before), kind
        with server.client(server.operator_key) as operator:
            grant = {"amount_microcredits": 7, "note": CANARY}
            operator.post(f"{account}/credits", json=grant).raise_for_status()
            operator.delete(account).raise_for_status()
            assert operator.get(account).status_code == 404
        assert client.get("/v1/models").status_code == 401
        assert places(server, CANARY) == set()
        artifact = deployment(other, deployed["id"])["artifact_id"]
        logs = {path.name for path in (server.data_dir / "logs").iterdir()}
        assert {name for name in logs if name.startswith("dep_")} <= {f"{deployed['id']}.log"}
        blobs = {path.name for path in (server.data_dir / "blobs" / "artifacts").iterdir()}
        assert blobs == {artifact}
        server.stop()
        assert places(server, CANARY) == set()
        server.restart()
        server.wait_ready()
        assert places(server, CANARY) == set()
        again = ask(other, "kept", temperature=0).raise_for_status().json()["choices"]
        assert again == choices
