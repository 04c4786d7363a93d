"""Background responses survive the end of their server, and revoked keys leave nothing."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.demo import __file__ as demo
from tests.openai.support import replayed
from tests.support.deploying import deploy, wait_for
from tests.support.server import Server

PATH = "/v1/responses"
WAIT_S = 90
SURE_CHARS = 1000
MODEL = Path(demo).parent / "models" / "tiny-chat"

pytestmark = pytest.mark.one_machine


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("stored") / "data"
    server = Server(data_dir, STOKER_JOB_LEASE_S="2")
    server.start()
    server.wait_ready()
    yield server
    server.stop()


def test_killed(own_server: Server) -> None:
    with own_server.account("kept") as client:
        deployment_id = deploy(client, MODEL, "chat", readiness="hot")["id"]
        asked = {"model": "chat", "input": "What is the capital of France?", "temperature": 0}
        more = {"max_output_tokens": 700, "ignore_eos": True}
        queued = client.post(PATH, json={**asked, **more, "background": True}).json()
        path = f"{PATH}/{queued['id']}"
        while client.get(path).json()["status"] == "queued":
            time.sleep(0.01)
        own_server.kill()
        own_server.restart()
        own_server.wait_ready()
        wait_for(client, deployment_id, "ready")
        answer = _until(client, path, 200, ("completed", "incomplete", "failed"))
        expected = client.post(PATH, json={**asked, **more}).json()
        assert answer["status"] == expected["status"]
        texts = [each["output"][0]["content"][0]["text"] for each in (answer, expected)]
        # Later tokens are nearly as likely as others, so rounding decides between them.
        assert texts[0][:SURE_CHARS] == texts[1][:SURE_CHARS]
        assert answer["usage"]["output_tokens"] == 700


def test_killed_with_a_follower(own_server: Server) -> None:
    """A client that received a part of the text learns that the rest is lost."""
    with own_server.account("followed") as client:
        deployment_id = deploy(client, MODEL, "chat", readiness="hot")["id"]
        body = {
            "model": "chat",
            "input": "What is the capital of France?",
            "max_output_tokens": 700,
            "ignore_eos": True,
        }
        queued = client.post(PATH, json={**body, "background": True}).json()
        path = f"{PATH}/{queued['id']}"
        received: list[dict[str, Any]] = []
        with (
            suppress(httpx.TransportError),
            client.stream("GET", path, params={"stream": True}) as stream,
        ):
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    received.append(json.loads(line.removeprefix("data: ")))
                    if received[-1]["type"].endswith("text.delta"):
                        own_server.kill()
        assert received[-1]["type"] == "response.output_text.delta"
        own_server.restart()
        own_server.wait_ready()
        wait_for(client, deployment_id, "ready")
        answer = _until(client, path, 200, ("completed", "incomplete", "failed"))
        assert answer["status"] == "failed"
        error: Any = answer["error"]
        assert "Create the response again" in error["message"]
        again = replayed(client.get(path, params={"stream": True}).content)
        assert again[: len(received)] == received
        assert [event["sequence_number"] for event in again] == [*range(len(again))]
        assert again[-1] == {
            "type": "response.failed",
            "sequence_number": len(again) - 1,
            "response": answer,
        }
        last = received[-1]["sequence_number"]
        params = {"stream": True, "starting_after": last}
        assert replayed(client.get(path, params=params).content) == again[last + 1 :]


def test_revoked_key(own_server: Server) -> None:
    with own_server.account("revoked") as client:
        deploy(client, MODEL, "chat", readiness="hot")
        key = client.post("/v1/api-keys", json={"scope": "account", "name": "short"}).json()
        headers = {"authorization": f"Bearer {key['key']}"}
        body = {"model": "chat", "input": "hi", "store": True, "max_output_tokens": 3}
        paths = [
            f"{PATH}/{client.post(PATH, json=body, headers=given).json()['id']}"
            for given in (headers, {})
        ]
        assert client.delete(f"/v1/api-keys/{key['id']}").status_code == 200
        _until(client, paths[0], 404)
        assert client.get(paths[1]).status_code == 200


def _until(
    client: httpx.Client, path: str, status: int, states: tuple[str, ...] = ()
) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while True:
        response = client.get(path)
        if response.status_code == status and (not states or response.json()["status"] in states):
            return response.json()
        assert time.monotonic() < deadline, response.text
        time.sleep(0.1)
