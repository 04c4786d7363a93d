"""Features of every request: an id, a log line, a host, and the form of the Hugging Face
clients.
"""

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from stoker.base.config import Settings
from stoker.inference.routes import wait_seconds
from tests.artifacts.support import eventually
from tests.deployments.routes import app
from tests.deployments.support import DEPLOYMENTS, TOKENS, call, check_error, deploy, upload
from tests.support.server import Server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("requests") as client:
        deploy(client, upload(server, client), "tagger")
        yield client


def logged(server: Server, request_id: str) -> list[dict[str, Any]]:
    # The last line may be incomplete.
    lines = server.log.read_text().rpartition("\n")[0].splitlines()
    candidates = [json.loads(line) for line in lines if line[:1] == "{" and request_id in line]
    return [line for line in candidates if line.get("request_id") == request_id]


class TestRequestId:
    @pytest.mark.parametrize("given", ["mine-1", "A.b_C-9", "x" * 128])
    def test_sane_one_is_taken(self, client: httpx.Client, given: str):
        response = client.get("/v1/models", headers={"x-request-id": given})
        assert response.headers["x-request-id"] == given

    @pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a;b", '"', "<script>", "é"])
    def test_other_one_is_replaced(self, client: httpx.Client, given: str):
        headers = {"x-request-id": given.encode("latin-1")}
        response = client.get("/v1/models", headers=headers)
        assert response.headers["x-request-id"].startswith("req_")

    def test_made_ones_differ(self, client: httpx.Client):
        ids = {client.get("/v1/models").headers["x-request-id"] for _ in range(3)}
        assert len(ids) == 3
        assert all(request_id.startswith("req_") for request_id in ids)

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/health", 200),
            ("GET", "/openapi.json", 200),
            ("GET", "/nothing", 404),
            ("GET", "/%00", 404),
            ("DELETE", TOKENS, 405),
            ("POST", TOKENS, 400),
            ("GET", "/v1/accounts", 401),
            ("GET", "/v1/deployments/dep_x", 404),
        ],
    )
    def test_on_every_answer(self, client: httpx.Client, method: str, path: str, status: int):
        response = client.request(method, path, headers={"x-request-id": "every"})
        assert response.status_code == status
        assert response.headers["x-request-id"] == "every"
        assert response.headers["x-content-type-options"] == "nosniff"

    def test_on_the_log_line(self, server: Server, client: httpx.Client):
        client.get("/v1/models/none?limit=7", headers={"x-request-id": "logged-1"})
        assert eventually(lambda: bool(logged(server, "logged-1")))
        (line,) = logged(server, "logged-1")
        assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/models/{model}", 404)
        assert line["ms"] >= 0

    def test_log_has_no_input_and_no_line_of_the_clients(
        self, server: Server, client: httpx.Client
    ):
        call(client, "tagger\n", inputs="canary-of-an-input")
        headers = {"x-request-id": "logged-2"}
        client.get("/v1/models/a%0A%7B%22level%22:%22forged%22%7D", headers=headers)
        assert eventually(lambda: bool(logged(server, "logged-2")))
        assert "canary-of-an-input" not in server.log.read_text()
        assert len(logged(server, "logged-2")) == 1


class TestHost:
    @pytest.mark.parametrize(
        "host", ["models.example", "Models.Example:8000", "a.inner.example", "127.0.0.1"]
    )
    def test_on_the_list(self, gateway: Server, host: str):
        with gateway.client() as client:
            assert client.get("/health", headers={"host": host}).status_code == 200

    @pytest.mark.parametrize(
        "host",
        ["evil.example", "models.example.evil", "evilinner.example", "", "example", "x/../health"],
    )
    def test_any_other(self, gateway: Server, host: str):
        with gateway.client() as client:
            response = client.get("/health", headers={"host": host})
        check_error(response, 400, "InvalidRequestError", "invalid_request")
        assert response.headers["x-request-id"].startswith("req_")

    def test_anything_by_default(self, server: Server):
        with server.client() as client:
            assert client.get("/health", headers={"host": "any.example"}).status_code == 200

    def test_no_answer_is_made_of_it(self, server: Server, client: httpx.Client):
        for path in ("/v1/models/", "/v1/api-keys/", "/nothing", "/v1/api-keys"):
            response = client.get(path, headers={"host": "evil.example"})
            assert "evil.example" not in response.text + str(response.headers), path


class TestHuggingFaceForm:
    def test_parameters_stand_beside_inputs(self, server: Server, client: httpx.Client):
        server.wait_ready()
        beside = call(client, aggregation_strategy="simple")
        below = call(client, parameters={"aggregation_strategy": "simple"})
        assert beside.status_code == below.status_code == 200
        assert beside.json() == below.json()

    @pytest.mark.parametrize("parameters", [None, {}])
    def test_none(self, client: httpx.Client, parameters: object):
        assert call(client, parameters=parameters).json() == call(client).json()

    def test_unknown_one(self, client: httpx.Client):
        response = call(client, parameters={"agregation_strategy": "simple"})
        error = check_error(
            response, 400, "InvalidRequestError", "invalid_request", "agregation_strategy"
        )
        assert "'aggregation_strategy'" in error["message"]

    @pytest.mark.parametrize("value", ["simple", "max"])
    def test_given_twice(self, client: httpx.Client, value: str):
        response = call(
            client, aggregation_strategy="simple", parameters={"aggregation_strategy": value}
        )
        error = check_error(response, 400, "InvalidRequestError", "invalid_request")
        assert "'aggregation_strategy' is given twice" in error["message"]

    def test_inputs_below_parameters_are_given_twice_too(self, client: httpx.Client):
        response = call(client, parameters={"inputs": "another"})
        assert response.status_code == 400

    @pytest.mark.parametrize("parameters", [7, "x", [], [["aggregation_strategy", "simple"]]])
    def test_no_object(self, client: httpx.Client, parameters: object):
        assert call(client, parameters=parameters).status_code == 400


class TestPrefer:
    @pytest.mark.parametrize(
        "value",
        [
            "wait=60",
            "respond-async, wait=60",
            'wait="60"',
            "WAIT=60",
            "wait=60; x=y",
            "wait=60, wait=1",
            "wait=999999999",
        ],
    )
    def test_wait(self, client: httpx.Client, value: str):
        body = {"inputs": "x", "model": "tagger"}
        assert client.post(TOKENS, json=body, headers={"prefer": value}).status_code == 200
        named = float(re.search(r"[0-9]+", value)[0])  # type: ignore[index]
        assert wait_seconds(Settings(), value) == min(named, Settings().wait_max_s)

    def test_in_several_headers(self, server: Server, client: httpx.Client):
        """Several `Prefer` headers form one list (RFC 9110, section 5.3)."""
        cold = deploy(client, upload(server, client), "cold")
        headers = [("prefer", "respond-async"), ("prefer", "wait=0")]
        body = {"inputs": "x", "model": "cold"}
        assert client.post(TOKENS, json=body, headers=headers).status_code == 503
        client.delete(f"{DEPLOYMENTS}/{cold['id']}").raise_for_status()

    @pytest.mark.parametrize(
        "value", ["wait=-1", "wait=x", "wait", "x" * 256, "x" * 10_000, "wait=1e9", "wait=٣", ","]
    )
    def test_what_it_does_not_know_is_ignored(self, client: httpx.Client, value: str):
        """An unknown preference is no error (RFC 7240, section 2)."""
        body = {"inputs": "x", "model": "tagger"}
        headers = {"prefer": value.encode()}
        assert client.post(TOKENS, json=body, headers=headers).status_code == 200
        assert wait_seconds(Settings(), value) == Settings().wait_default_s


def test_no_handler_waits_for_a_thread() -> None:
    """Handlers and their dependencies are coroutines, because FastAPI runs other functions in a
    thread pool.
    """

    def calls(dependant: Dependant) -> Iterator[Any]:
        yield dependant.call
        for below in dependant.dependencies:
            yield from calls(below)

    routes = [getattr(found, "route", found) for found in iter_route_contexts(app().routes)]
    keyed = [route for route in routes if isinstance(route, APIRoute)]
    found = [call for route in keyed for call in calls(route.dependant)]
    assert len(found) > 200
    # For a callable object, its `__call__` method decides.
    plain = [call if inspect.isfunction(call) else call.__call__ for call in found]
    assert [
        call
        for call in plain
        if not inspect.iscoroutinefunction(call) and not inspect.isasyncgenfunction(call)
    ] == []
