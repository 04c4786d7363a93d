"""Uploads of the same files by one account: only the first replica tests shared passes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from stoker.demo.setup import MODELS
from tests.support.deploying import deploy
from tests.support.server import Server

CHAT = MODELS / "tiny-chat"


@pytest.fixture
def clients(server: Server) -> Iterator[list[httpx.Client]]:
    """Returns clients of two accounts. Their deployments are deleted afterwards."""
    clients = [server.account("one"), server.account("two")]
    yield clients
    for client in clients:
        for row in client.get("/v1/deployments").raise_for_status().json()["data"]:
            client.delete(f"/v1/deployments/{row['id']}").raise_for_status()
        client.close()


def test_only_the_first_is_tested(
    server: Server, clients: list[httpx.Client], tmp_path: Path
) -> None:
    def tested(client: httpx.Client, folder: Path, model: str) -> bool:
        """Deploys and calls a model. Returns True if its replica tested shared passes."""
        made = deploy(client, folder, model)
        message = {"role": "user", "content": "Hi"}
        body = {"model": model, "messages": [message], "max_tokens": 1}
        client.post("/v1/chat/completions", json=body).raise_for_status()
        log = (server.runs_in / "logs" / f"{made['id']}.log").read_text()
        return "batch_invariance" in log

    other = shutil.copytree(CHAT, tmp_path / "other")
    (other / "notes.txt").write_text("another file")
    one, two = clients
    assert tested(one, CHAT, "first")
    assert not tested(one, CHAT, "second")
    assert tested(one, other, "other"), "the files differ"
    assert tested(two, CHAT, "theirs"), "accounts share no results"
