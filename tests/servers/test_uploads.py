"""Uploads with requests that arrive at several servers."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.artifacts.support import MIB, Uploading
from tests.servers.support import SLACK_S, SOON_S, Pair, until


def seen(two: Pair) -> tuple[Uploading, Uploading]:
    """Opens an upload session and returns it as seen through both servers."""
    on_a, on_b = two.account()
    opened = Uploading.open(two.a, on_a)
    return opened, Uploading(two.b, on_b, opened.artifact_id, opened.upload_id, opened.part_size)


def test_what_one_has_received_the_other_tells(two: Pair) -> None:
    a, b = seen(two)
    content = b"{}" * 100
    a.put("config.json", content).raise_for_status()
    assert b.offset("config.json") == len(content)
    b.put("other.json", content).raise_for_status()
    assert {file["path"] for file in a.get()["files"]} == {"config.json", "other.json"}


def test_a_transfer_ends_with_the_session_that_another_server_closes(two: Pair) -> None:
    a, b = seen(two)
    with b.beginning("weights", MIB, b"some bytes") as sending:
        until(lambda: [file["path"] for file in a.get()["files"]] == ["weights"])
        a.client.delete(a.url).raise_for_status()
        begun = time.monotonic()
        answer = sending.answer()
        assert time.monotonic() - begun < SOON_S + SLACK_S
    assert answer.startswith(b"HTTP/1.1 409") and b"upload_closed" in answer, answer


def test_the_same_request_at_once(two: Pair) -> None:
    """Concurrent requests with one Idempotency-Key through both servers create one object. Each
    other request gets a conflict or the same answer.
    """
    clients = two.account()

    def make(at: int) -> httpx.Response:
        headers = {"idempotency-key": f"at once {at // 8}"}
        body = {"display_name": f"model {at // 8}"}
        return clients[at % 2].post("/v1/model-artifacts", json=body, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(make, range(24)))
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert {answer.status_code for answer in answers} <= {201, 409}
    listed = clients[0].get("/v1/model-artifacts").json()["data"]
    assert len(listed) == 3
    assert {artifact["id"] for artifact in listed} == made
