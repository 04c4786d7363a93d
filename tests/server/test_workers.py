"""Calls of models that worker processes answer, on a server with two of them."""

import contextlib
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

import stoker.demo
from tests.support.deploying import deploy
from tests.support.raw import answers, connect, read_all, read_one
from tests.support.scraping import scrape, scrape_until
from tests.support.server import Server, running
from tests.support.workers import (
    BY_SERVER,
    key_of,
    request_of,
    wait_for_workers,
    worker_processes,
)

MODELS = Path(stoker.demo.__file__).parent / "models"
WORKERS = 2
CALLS, CHAT = "/v1/classifications/text", "/v1/chat/completions"
CALL = {"model": "tiny-sentiment", "inputs": "A good film."}
TALK = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
IMAGE = {"type": "image_url", "image_url": {"url": "http://localhost/x"}}
GIVEN_S = 30
CHANGING = re.compile(
    rb'"(id|created|created_at|completed_at|item_id)":("[a-z]+[-_][0-9a-f]+"|\d+)'
)
SCORE = re.compile(rb"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with workers. Tests end its workers, so no other module may use it."""
    data_dir = tmp_path_factory.mktemp("workers") / "data"
    with running(data_dir, STOKER_WORKERS=str(WORKERS), STOKER_CONVERT_AFTER_S="3600") as server:
        wait_for_workers(server)
        yield server


@pytest.fixture(scope="module")
def client(busy: Server) -> Iterator[httpx.Client]:
    with busy.account("workers") as client:
        for model in ("tiny-sentiment", "tiny-chat"):
            deploy(client, MODELS / model, model)
        yield client


def wait_until_answered(client: httpx.Client) -> None:
    deadline = time.monotonic() + GIVEN_S
    while True:
        with contextlib.suppress(httpx.TransportError):
            client.post(CALLS, json=CALL).raise_for_status()
            return
        assert time.monotonic() < deadline


def answer_of(response: httpx.Response) -> tuple[int, Mapping[str, str], bytes]:
    """Returns the parts of a response that do not change from call to call, without scores."""
    headers = dict(response.headers)
    for name in ("date", "x-request-id", "content-length"):
        headers.pop(name, None)
    content = SCORE.sub(b"", CHANGING.sub(b"", response.content))
    return response.status_code, headers, content


def scores_of(response: httpx.Response) -> list[float]:
    return [float(score) for score in SCORE.findall(response.content)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CALLS, CALL),
        (CALLS, {**CALL, "inputs": ["One.", "Two."]}),
        (CALLS, {**CALL, "unknown": 1}),
        (CALLS, {"inputs": "x"}),
        (CALLS, {**CALL, "model": "none"}),
        (CALLS, {**CALL, "model": "tiny-chat"}),
        (CHAT, TALK),
        (CHAT, {**TALK, "stream": True}),
        (CHAT, {**TALK, "service_tier": "flex"}),
        (CHAT, {**TALK, "priority": 1}),
        (CHAT, {**TALK, "max_tokens": -1}),
        (CHAT, {**TALK, "messages": [{"role": "user", "content": [IMAGE]}]}),
        ("/v1/completions", {"model": "tiny-chat", "prompt": "a", "max_tokens": 2}),
        ("/v1/responses", {"model": "tiny-chat", "input": "a", "max_output_tokens": 2}),
        ("/v1/images/generations", {"model": "tiny-chat", "prompt": "a"}),
    ],
)
def test_workers_answer_like_the_server(client: httpx.Client, path: str, body: object) -> None:
    by_server = client.post(path, json=body, headers=BY_SERVER)
    for _ in range(2):
        by_worker = client.post(path, json=body)
        assert answer_of(by_worker) == answer_of(by_server)
        # The items of a list may share a batch or not, which changes the last digits.
        assert scores_of(by_worker) == pytest.approx(scores_of(by_server), abs=1e-6)


def test_a_connection_is_handed_over_and_returned(busy: Server, client: httpx.Client) -> None:
    key = key_of(client)
    call = request_of(key, CALLS, CALL)
    head = f"GET /v1/models HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n"
    listing, last = f"{head}\r\n".encode(), f"{head}connection: close\r\n\r\n".encode()
    with connect(busy) as connection:
        for _ in range(3):
            connection.sendall(call)
            assert read_one(connection).status == 200
            connection.sendall(listing)
            assert len(json.loads(read_one(connection).body)["data"]) == 2
        # Pipelined requests are answered in order.
        connection.sendall(call + listing + call + last)
        first, models, second, again = answers(read_all(connection))
    assert [first.status, models.status, second.status, again.status] == [200] * 4
    assert (first.body, models.body) == (second.body, again.body)


def test_a_request_may_arrive_in_pieces(busy: Server, client: httpx.Client) -> None:
    call = request_of(key_of(client), CALLS, CALL)
    with connect(busy) as connection:
        for at in range(0, len(call), 40):
            connection.sendall(call[at : at + 40])
            time.sleep(0.005)
        assert read_one(connection).status == 200


def test_a_slow_request_is_answered(busy: Server, client: httpx.Client) -> None:
    call = request_of(key_of(client), CALLS, CALL)
    with connect(busy) as connection:
        connection.sendall(call[:-5])
        # Longer than a worker waits.
        time.sleep(3.5)
        connection.sendall(call[-5:])
        assert read_one(connection).status == 200


def test_rate_limits_are_exact(busy: Server, client: httpx.Client) -> None:
    limit = 20
    with busy.client(busy.operator_key) as operator:
        body = {
            "scope": "account",
            "account_id": client.account_id,  # type: ignore[attr-defined]
            "requests_per_minute": limit,
        }
        key = operator.post("/v1/api-keys", json=body).raise_for_status().json()["key"]
    bodies = [CALL, {**CALL, "unknown": 1}]

    def send(number: int) -> httpx.Response:
        with busy.client(key) as limited:
            return limited.post(CALLS, json=bodies[number % 2])

    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(send, range(3 * limit)))
    statuses = Counter(response.status_code for response in responses)
    refilled = int((time.monotonic() - began) * limit / 60) + 1
    assert limit <= statuses[200] + statuses[400] <= limit + refilled
    assert statuses[429] == 3 * limit - statuses[200] - statuses[400]
    assert all("x-ratelimit-remaining-requests" in response.headers for response in responses)


def test_a_revoked_key_is_refused_at_once(busy: Server, client: httpx.Client) -> None:
    created = client.post("/v1/api-keys", json={"scope": "account"}).raise_for_status().json()
    with busy.client(created["key"]) as revoked:
        assert revoked.post(CALLS, json=CALL).status_code == 200
        client.delete(f"/v1/api-keys/{created['id']}").raise_for_status()
        for body in (CALL, {**CALL, "unknown": 1}):
            response = revoked.post(CALLS, json=body)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")


def test_a_disconnect_cancels_the_call(busy: Server, client: httpx.Client) -> None:
    long = {**TALK, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with busy.client(busy.operator_key) as operator:
        before = scrape(operator).get("stoker_requests_total", outcome="cancelled")
        with connect(busy) as connection:
            connection.sendall(request_of(key_of(client), CHAT, long))
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
        scrape_until(operator, "stoker_requests_total", before + 1, outcome="cancelled")


def test_metrics_and_log_include_workers(busy: Server, client: httpx.Client) -> None:
    labels = {"route": CALLS, "method": "POST", "status": "200"}
    with busy.client(busy.operator_key) as operator:
        before = scrape(operator).get("stoker_http_requests_total", **labels)
        client.post(CALLS, json=CALL, headers={"x-request-id": "logged"}).raise_for_status()
        after = scrape(operator)
        assert after.get("stoker_http_requests_total", **labels) == before + 1
        assert after.get("stoker_connections_open") >= 1
    lines = [json.loads(line) for line in busy.log.read_text().splitlines() if '"logged"' in line]
    entry = {name: lines[-1][name] for name in ("logger", "event", "method", "path", "status")}
    assert entry == {
        "logger": "stoker.http",
        "event": "request",
        "method": "POST",
        "path": CALLS,
        "status": 200,
    }


def test_a_worker_answers(busy: Server, client: httpx.Client) -> None:
    call, workers = request_of(key_of(client), CALLS, CALL), worker_processes(busy)
    with connect(busy) as connection:
        connection.sendall(call)
        assert read_one(connection).status == 200
        for worker in workers:
            worker.suspend()
        try:
            connection.sendall(call)
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        finally:
            for worker in workers:
                worker.resume()
        connection.settimeout(GIVEN_S)
        assert read_one(connection).status == 200


def test_another_deployment_with_the_same_name(busy: Server, client: httpx.Client) -> None:
    key, model = key_of(client), "changing"
    before = deploy(client, MODELS / "tiny-sentiment", model)
    for status, path, body in ((200, CALLS, CALL), (400, CHAT, TALK)):
        for _ in range(WORKERS):
            # Each new connection goes to the worker with the fewest.
            with connect(busy) as first, connect(busy) as second:
                for connection in (first, second):
                    connection.sendall(request_of(key, path, {**body, "model": model}))
                    assert read_one(connection).status == status
    client.delete(f"/v1/deployments/{before['id']}").raise_for_status()
    deploy(client, MODELS / "tiny-chat", model)
    for _ in range(WORKERS):
        with connect(busy) as first, connect(busy) as second:
            for connection in (first, second):
                connection.sendall(request_of(key, CHAT, {**TALK, "model": model}))
                assert read_one(connection).status == 200


def test_links_to_files_are_left_to_the_server(client: httpx.Client) -> None:
    deploy(client, MODELS / "tiny-draw", "tiny-draw")
    drawing = {"model": "tiny-draw", "prompt": "a red circle", "num_inference_steps": 2}
    response = client.post("/v1/images/generations", json={**drawing, "response_format": "url"})
    (image,) = response.raise_for_status().json()["data"]
    assert client.get(image["url"]).raise_for_status().content.startswith(b"\x89PNG")


def test_a_killed_worker_is_replaced(busy: Server, client: httpx.Client) -> None:
    killed = worker_processes(busy)
    assert len(killed) == WORKERS
    with connect(busy) as connection:
        connection.sendall(request_of(key_of(client), CALLS, CALL))
        assert read_one(connection).status == 200
        for worker in killed:
            os.kill(worker.pid, signal.SIGKILL)
        assert read_all(connection) == b""
    psutil.wait_procs(killed, timeout=GIVEN_S)
    # A connection that was passed to an ending worker is lost. Later ones are answered.
    with busy.client(key_of(client)) as other:
        wait_until_answered(other)
    wait_for_workers(busy)
    assert not {worker.pid for worker in killed} & {it.pid for it in worker_processes(busy)}


def test_a_stop_lets_calls_finish(busy: Server, client: httpx.Client) -> None:
    workers = worker_processes(busy)
    stream = {**TALK, "max_tokens": 60, "ignore_eos": True, "stream": True}
    call = request_of(key_of(client), CALLS, CALL)
    with connect(busy) as connection, connect(busy) as idle, connect(busy) as late:
        late.sendall(call[:-1])
        idle.sendall(call)
        assert read_one(idle).status == 200
        connection.sendall(request_of(key_of(client), CHAT, stream))
        begun = connection.recv(100)
        assert busy.process
        busy.process.send_signal(signal.SIGTERM)
        assert read_all(idle) == b""
        late.sendall(call[-1:])
        (answer,) = answers(read_all(late))
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert busy.stop() == 0
        assert (begun + read_all(connection)).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert not any(worker.is_running() for worker in workers)


def test_workers_end_with_the_server(busy: Server, client: httpx.Client) -> None:
    busy.restart()
    wait_for_workers(busy)
    workers = worker_processes(busy)
    busy.kill()
    deadline = time.monotonic() + GIVEN_S
    while any(worker.is_running() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_draining_server_ends_connections_with_their_next_answer(tmp_path: Path) -> None:
    settings = {"STOKER_WORKERS": str(WORKERS), "STOKER_DRAIN_S": "3"}
    with running(tmp_path / "data", **settings) as server, server.account() as client:
        wait_for_workers(server)
        deploy(client, MODELS / "tiny-sentiment", "tiny-sentiment")
        call = request_of(key_of(client), CALLS, CALL)
        wait_until_answered(client)
        with connect(server) as kept:
            kept.sendall(call)
            assert (answer := read_one(kept)).status == 200
            assert "connection" not in answer.headers
            assert server.process
            server.process.send_signal(signal.SIGTERM)
            while client.get("/ready").status_code == 200:
                pass
            kept.sendall(call)
            [answer] = answers(read_all(kept))
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        with connect(server) as new:
            new.sendall(call)
            [answer] = answers(read_all(new))
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert server.process.wait(60) == 0
