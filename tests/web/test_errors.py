"""Every row of the error table that is reachable over HTTP, and the shape of its body."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.base.errors import ErrorBody, StokerError
from stoker.inference.openai.registry import OPERATIONS
from stoker.models.tasks.base import Task
from stoker.models.tasks.registry import TASKS
from stoker.workloads.videos.endpoints import CREATE
from tests.artifacts.support import ARTIFACTS, Raw, Uploading, new_artifact
from tests.deployments.routes import app, places
from tests.deployments.support import (
    DEPLOYMENTS,
    MASKS,
    TEXT,
    TOKENS,
    call,
    check_error,
    deploy,
    key_for,
    upload,
)
from tests.support.server import Server, running

MIB = 1024 * 1024
JSON = {"content-type": "application/json"}
INVALID = ("InvalidRequestError", "invalid_request")
DEEP = "[" * 5000 + "]" * 5000
FORMS = [
    *(task for task in TASKS.values() if task.media),
    *(operation for operation in (*OPERATIONS, CREATE) if operation.media),
]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.account("errors") as client:
        yield client


@pytest.fixture(scope="module")
def artifact_id(server: Server, client: httpx.Client) -> str:
    return upload(server, client)


@pytest.fixture(scope="module")
def tagger(server: Server, client: httpx.Client, artifact_id: str) -> dict[str, Any]:
    server.wait_ready()
    return deploy(client, artifact_id, "tagger", max_queue=1)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that accepts only small bodies and allows an inference almost no time."""
    with running(
        tmp_path_factory.mktemp("strict") / "data",
        STOKER_BODY_LIMIT_MIB="1",
        STOKER_INFERENCE_TIMEOUT_S="0.00001",
        STOKER_LIST_LIMIT="4",
        STOKER_TEXT_LIMIT_CHARS="40",
    ) as server:
        yield server


@pytest.fixture(scope="module")
def strict_client(strict: Server) -> Iterator[httpx.Client]:
    with strict.account() as client:
        yield client


class TestInvalidRequest:
    @pytest.mark.parametrize(
        "path",
        [
            TOKENS,
            "/v1/api-keys",
            DEPLOYMENTS,
            ARTIFACTS,
            *(one.path for one in (*OPERATIONS, CREATE)),
        ],
    )
    @pytest.mark.parametrize(
        "content",
        [
            b"{",
            b"{'scope': 1}",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"inputs": %s}' % DEEP.encode(),
            b'{"inputs": "\\ud800"',
        ],
        ids=["cut off", "quotes", "not UTF-8", "deep", "deep and closed", "surrogate"],
    )
    def test_malformed_json(self, client: httpx.Client, path: str, content: bytes):
        check_error(client.post(path, content=content, headers=JSON), 400, *INVALID)

    @pytest.mark.parametrize(
        ("path", "content", "words"),
        [
            ("/v1/chat/completions", b'{"a": "\\ud83d"}', "surrogate pair.* at line 1 column 14"),
            (TOKENS, b'{"inputs": "\\ude00 a"}', "surrogate pair.* at line 1 column 18"),
            ("/v1/chat/completions", b'{"a": 1\n "b": 2}', "expected .* at line 2 column 2"),
            (TOKENS, b'{"inputs": "a",}', "trailing comma at line 1 column 16"),
            (TOKENS, b'{"inputs": "a', "EOF .* at line 1 column 13"),
            (ARTIFACTS, b"{'a': 1}", "property name .* at character 2"),
            (ARTIFACTS, b'{"a": "\n"}', "Invalid control character at character 8"),
            ("/v1/api-keys", b'{"a": 1} x', "Extra data at character 10"),
        ],
    )
    def test_malformed_json_says_where(
        self, client: httpx.Client, path: str, content: bytes, words: str
    ):
        answer = client.post(path, content=content, headers=JSON)
        check_error(answer, 400, *INVALID)
        pattern = rf"The body is not valid JSON: .*{words}\."
        assert re.fullmatch(pattern, answer.json()["error"]["message"])

    @pytest.mark.parametrize("shape", FORMS, ids=lambda shape: shape.path)
    def test_brackets_nested_deeply_in_a_form(self, client: httpx.Client, shape: Task):
        """Python's parser would overflow its stack. A JSON body's parser also rejects more than 200
        levels.
        """
        media = dict.fromkeys(shape.media, (None, "aGVsbG8="))
        for name in ("any", "any[]", "timeout"):
            answer = client.post(shape.path, files={**media, name: (None, DEEP)})
            error = check_error(answer, 400, *INVALID, name.removesuffix("[]"))
            assert "too deeply" in error["message"]
        if shape.bare:
            kind = next(iter(shape.media.values()))
            answer = client.post(
                shape.path,
                content=b"x",
                headers={"content-type": f"{kind}/x"},
                params={"any": DEEP},
            )
            check_error(answer, 400, *INVALID, "any")

    def test_text_of_a_form_may_look_like_json(self, client: httpx.Client):
        """Brackets mark lists and objects, except in a field that can only be a text."""
        for text in ("[1, 2]", '{"a": 1}', DEEP):
            files = {"image": (None, "aGVsbG8="), "prompt": (None, text)}
            answer = client.post("/v1/images/edits", files=files | {"model": (None, "none")})
            check_error(answer, 404, "ModelNotFoundError", "model_not_found", "model")

    @pytest.mark.parametrize("path", [TOKENS, "/v1/api-keys", DEPLOYMENTS, ARTIFACTS])
    @pytest.mark.parametrize("content", [b"", b"null", b"[]", b'"text"', b"7"])
    def test_no_object(self, client: httpx.Client, path: str, content: bytes):
        check_error(client.post(path, content=content, headers=JSON), 400, *INVALID)

    @pytest.mark.parametrize(
        ("path", "body", "unknown", "nearest"),
        [
            (TOKENS, {"inputs": "x", "agregation_strategy": 1}, None, "aggregation_strategy"),
            (MASKS, {"inputs": "x", "topk": 1}, None, "top_k"),
            (MASKS, {"input": "x"}, None, "inputs"),
            ("/v1/api-keys", {"scop": "account"}, None, "scope"),
            (DEPLOYMENTS, {"model": "x", "artefact_id": "y"}, None, "artifact_id"),
            (DEPLOYMENTS, {"model": "x", "source": "y", "config": {"z": 1}}, "config.z", None),
            (ARTIFACTS, {"display_nam": "x"}, None, "display_name"),
        ],
    )
    def test_unknown_field(
        self,
        client: httpx.Client,
        path: str,
        body: dict[str, Any],
        unknown: str | None,
        nearest: str | None,
    ):
        unknown = unknown or next(name for name in reversed(body))
        error = check_error(client.post(path, json=body), 400, *INVALID, unknown)
        assert f"'{unknown}'" in error["message"]
        if nearest:
            assert f"'{nearest}'" in error["message"]

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            (TOKENS, {}, "inputs"),
            (TOKENS, {"inputs": []}, "inputs"),
            (TOKENS, {"inputs": 7}, "inputs"),
            (TOKENS, {"inputs": ["x", 7]}, "inputs[1]"),
            (TOKENS, {"inputs": "x", "aggregation_strategy": "all"}, "aggregation_strategy"),
            (MASKS, {"inputs": "x", "top_k": 0}, "top_k"),
            (MASKS, {"inputs": "x", "top_k": 1001}, "top_k"),
            (MASKS, {"inputs": "x", "top_k": 10**30}, "top_k"),
            (MASKS, {"inputs": "x", "top_k": 1.5}, "top_k"),
            (MASKS, {"inputs": "x", "model": "m" * 129}, "model"),
            ("/v1/classifications/text", {"inputs": "x", "top_k": -1}, "top_k"),
        ],
    )
    def test_missing_or_out_of_range(
        self, client: httpx.Client, path: str, body: dict[str, Any], param: str
    ):
        check_error(client.post(path, json=body), 400, *INVALID, param)

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
    def test_numbers_that_are_none(self, client: httpx.Client, number: str):
        content = f'{{"model": "x", "source": "y", "idle_timeout_s": {number}}}'
        check_error(
            client.post(DEPLOYMENTS, content=content, headers=JSON), 400, *INVALID, "idle_timeout_s"
        )

    def test_key_that_covers_several_needs_a_model(
        self, client: httpx.Client, artifact_id: str, tagger: dict[str, Any]
    ):
        second = deploy(client, artifact_id, "second")
        error = check_error(call(client), 400, *INVALID, "model")
        assert "tagger" in error["message"]
        assert "second" in error["message"]
        client.delete(f"{DEPLOYMENTS}/{second['id']}").raise_for_status()

    def test_limits_of_inputs(self, strict_client: httpx.Client, strict: Server):
        deploy(strict_client, upload(strict, strict_client), "limited")
        check_error(call(strict_client, inputs=["x"] * 5), 400, *INVALID, "inputs")
        check_error(call(strict_client, inputs="x" * 41), 400, *INVALID, "inputs")
        check_error(call(strict_client, inputs=["x", "x" * 41]), 400, *INVALID, "inputs[1]")


class TestEndpointNotSupported:
    def test_names_pipeline_and_endpoints(self, client: httpx.Client, tagger: dict[str, Any]):
        response = client.post(MASKS, json={"inputs": "x", "model": "tagger"})
        error = check_error(response, 400, "EndpointNotSupportedError", "endpoint_not_supported")
        assert error["message"].startswith("Endpoint not supported")
        assert "token-classification" in error["message"]
        assert TOKENS in error["message"]


class TestInvalidAPIKey:
    def test_anonymous(self, server: Server):
        with server.client() as anonymous:
            check_error(call(anonymous), 401, "InvalidAPIKeyError", "invalid_api_key")


class TestNotFound:
    def test_model(self, client: httpx.Client):
        error = check_error(
            call(client, "nobodys"), 404, "ModelNotFoundError", "model_not_found", "model"
        )
        assert error["message"].startswith("Model not found")

    @pytest.mark.parametrize(
        ("path", "code", "message"),
        [
            (f"{ARTIFACTS}/art_x", "artifact_not_found", "Artifact not found"),
            (f"{DEPLOYMENTS}/dep_x", "deployment_not_found", "Deployment not found"),
            (f"{DEPLOYMENTS}/dep_x/logs", "deployment_not_found", "Deployment not found"),
            ("/v1/api-keys/key_x", "api_key_not_found", "API key not found"),
        ],
    )
    def test_object(self, client: httpx.Client, path: str, code: str, message: str):
        error = check_error(client.get(path), 404, "NotFoundError", code)
        assert error["message"] == message

    def test_upload(self, client: httpx.Client):
        response = client.get(f"{ARTIFACTS}/{new_artifact(client)}/uploads/upl_x")
        check_error(response, 404, "NotFoundError", "upload_not_found")

    @pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/metric", "/v1/%2e%2e/x", "/%00"])
    def test_path(self, client: httpx.Client, path: str):
        check_error(client.get(path), 404, "NotFoundError", "not_found")


class TestMethodNotAllowed:
    def test_names_those_allowed(self, client: httpx.Client):
        response = client.get(TOKENS)
        check_error(response, 405, "MethodNotAllowedError", "method_not_allowed")
        assert response.headers["allow"] == "POST"
        response = client.put("/v1/api-keys")
        check_error(response, 405, "MethodNotAllowedError", "method_not_allowed")
        assert response.headers["allow"] == "GET, HEAD, POST"
        assert client.put("/docs/static/x").headers["allow"] == "GET, HEAD"

    async def test_names_all_methods_of_every_path(self):
        """The answer comes before any key is checked, so that the app alone suffices for the
        test.
        """
        paths: dict[str, set[str]] = {}
        for place in places():
            paths.setdefault(place.url(), set()).add(place.method)
        # Some paths also match another route, or end in a number.
        paths["/v1/model-artifacts/x/uploads/x/files/x/parts/1"] |= {"DELETE", "HEAD"}
        paths["/v1/agent/openapi.json"] |= paths["/v1/agent/x"]
        paths["/console/session"] |= paths["/console/x"]
        for name in ("compact", "input_tokens"):
            paths[f"/v1/responses/{name}"] |= paths["/v1/responses/x"]
        for methods in paths.values():
            methods.update({"HEAD"} & {verb.replace("GET", "HEAD") for verb in methods})
        transport = httpx.ASGITransport(app=app())
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for path, methods in paths.items():
                for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"} - methods:
                    response = await client.request(method, path)
                    assert response.status_code == 405, (method, path)
                    allowed = response.headers["allow"].split(", ")
                    assert (set(allowed), sorted(allowed)) == (methods, allowed), (method, path)


class TestConflict:
    def test_model_exists(self, client: httpx.Client, artifact_id: str, tagger: dict[str, Any]):
        body = {"model": "tagger", "artifact_id": artifact_id}
        response = client.post(DEPLOYMENTS, json=body)
        check_error(response, 409, "ConflictError", "model_exists", "model")

    def test_artifact_in_use(self, client: httpx.Client, artifact_id: str, tagger: dict[str, Any]):
        for response in (
            client.delete(f"{ARTIFACTS}/{artifact_id}"),
            client.post(f"{ARTIFACTS}/{artifact_id}/uploads"),
        ):
            error = check_error(response, 409, "ConflictError", "artifact_in_use")
            assert "tagger" in error["message"]

    def test_artifact_not_ready(self, client: httpx.Client):
        body = {"model": "early", "artifact_id": new_artifact(client)}
        response = client.post(DEPLOYMENTS, json=body)
        check_error(response, 409, "ConflictError", "artifact_not_ready", "artifact_id")

    def test_upload_closed(self, server: Server, client: httpx.Client):
        first = Uploading.open(server, client)
        Uploading.open(server, client, first.artifact_id)
        check_error(first.put("config.json", b"{}"), 409, "ConflictError", "upload_closed")

    def test_deployment_stopped(self, client: httpx.Client, artifact_id: str):
        stopped = deploy(client, artifact_id, "stopped")
        client.post(f"{DEPLOYMENTS}/{stopped['id']}/stop").raise_for_status()
        check_error(call(client, "stopped"), 409, "ConflictError", "deployment_stopped")
        client.delete(f"{DEPLOYMENTS}/{stopped['id']}").raise_for_status()


@pytest.mark.case(19)
class TestPayloadTooLarge:
    @pytest.mark.parametrize("path", [TOKENS, "/v1/api-keys", DEPLOYMENTS, ARTIFACTS])
    def test_declared(self, strict: Server, strict_client: httpx.Client, path: str):
        """A body is rejected by its Content-Length before any of it was sent."""
        with Raw.connect(strict) as raw:
            raw.send(
                f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
                f"authorization: {strict_client.headers['authorization']}\r\n"
                f"content-length: {MIB + 1}\r\n\r\n".encode()
            )
            answer = raw.answer()
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'"payload_too_large"' in answer

    @pytest.mark.parametrize("path", [TOKENS, "/v1/api-keys", DEPLOYMENTS, ARTIFACTS])
    def test_chunked(self, strict_client: httpx.Client, path: str):
        def chunks() -> Iterator[bytes]:
            for _ in range(17):
                yield b" " * (MIB // 16)

        response = strict_client.post(path, content=chunks(), headers=JSON)
        error = check_error(response, 413, "PayloadTooLargeError", "payload_too_large")
        assert str(MIB) in error["message"]

    def test_limit_itself_is_allowed(self, strict_client: httpx.Client):
        content = b'{"scope": "account"}'.ljust(MIB)
        assert strict_client.post("/v1/api-keys", content=content, headers=JSON).status_code == 201

    def test_anonymous_caller_is_not_even_measured(self, strict: Server):
        with strict.client() as anonymous:
            response = anonymous.post("/v1/api-keys", content=b" " * (MIB + 1), headers=JSON)
        check_error(response, 401, "InvalidAPIKeyError", "invalid_api_key")


class TestUnsupportedMediaType:
    @pytest.mark.parametrize("path", [TOKENS, "/v1/api-keys", DEPLOYMENTS, "/v1/accounts"])
    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "image/x"])
    def test_other_type(self, server: Server, client: httpx.Client, path: str, kind: str):
        key = server.operator_key if path == "/v1/accounts" else None
        headers = {"content-type": kind}
        if key:
            headers["authorization"] = f"Bearer {key}"
        response = client.post(path, content=b'{"inputs": "x"}', headers=headers)
        error = check_error(response, 415, "UnsupportedMediaTypeError", "unsupported_media_type")
        assert kind in error["message"]

    def test_charset_is_no_other_type(self, client: httpx.Client):
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        response = client.post("/v1/api-keys", content=b'{"scope": "account"}', headers=headers)
        assert response.status_code == 201


class TestRateLimit:
    def test_full_queue(self, server: Server, client: httpx.Client, artifact_id: str):
        narrow = deploy(client, artifact_id, "narrow", max_queue=1)
        key = key_for(client, narrow["id"])

        def one(_: int) -> httpx.Response:
            with server.client(key) as caller:
                return call(caller)

        # The first call waits for the model to load. The others arrive during this wait.
        with ThreadPoolExecutor(4) as pool:
            answers = sorted(pool.map(one, range(4)), key=lambda answer: answer.status_code)
        assert answers[0].status_code == 200
        for refused in answers[1:]:
            check_error(refused, 429, "RateLimitError", "queue_full")
            assert 1 <= int(refused.headers["retry-after"]) <= 120
        client.delete(f"{DEPLOYMENTS}/{narrow['id']}").raise_for_status()


class TestModelLoading:
    def test_no_wait(self, client: httpx.Client, artifact_id: str):
        cold = deploy(client, artifact_id, "cold")
        response = call(client, "cold", wait=0)
        error = check_error(response, 503, "ModelLoadingError", "model_loading")
        assert 0 <= error["progress"] <= 1
        assert 1 <= int(response.headers["retry-after"]) <= 120
        # The request that did not wait has started the model for the next one.
        assert call(client, "cold", wait=60).status_code == 200
        client.delete(f"{DEPLOYMENTS}/{cold['id']}").raise_for_status()


class TestTimeout:
    def test_inference_has_its_own_limit(self, strict: Server, strict_client: httpx.Client):
        strict.wait_ready()
        slow = deploy(strict_client, upload(strict, strict_client), "slow")
        # Loading takes far longer than the limit. The limit starts only when the model is ready.
        response = call(strict_client, "slow", wait=60)
        check_error(response, 504, "TimeoutError", "timeout")
        answer = strict_client.get(f"{DEPLOYMENTS}/{slow['id']}").json()
        assert answer["status"] == "ready"


class TestMessages:
    @pytest.mark.case(12)
    def test_carry_nothing_of_the_server(self, server: Server, client: httpx.Client):
        """Error messages contain no path, address or key, for any invalid request."""
        api_key = client.headers["authorization"].removeprefix("Bearer ")
        responses = [
            client.post(DEPLOYMENTS, json={"model": "x", "source": "/etc"}),
            client.post(DEPLOYMENTS, json={"model": "x", "source": "../.."}),
            client.post(DEPLOYMENTS, json={"model": "x", "source": str(server.data_dir)}),
            client.post(DEPLOYMENTS, json={"model": api_key, "artifact_id": "x"}),
            client.post("/v1/api-keys", json={"scope": api_key}),
            client.post(TOKENS, json={"inputs": TEXT, "model": "x"}),
            client.get("/v1/deployments", params={"limit": "x"}),
            client.get("/nothing"),
        ]
        for response in responses:
            assert response.status_code >= 400
            message = response.json()["error"]["message"]
            for secret in (str(server.data_dir), str(Path(__file__).parents[2]), api_key):
                assert secret not in message
            assert not re.search(r"Traceback|\.py\b|0x[0-9a-f]{6}|site-packages", message), message

    def test_every_error_has_a_body_of_the_declared_shape(self):
        for error in _all(StokerError):
            made = error("Message.", param="field", progress=0.5, retry_after_s=1e9)
            assert ErrorBody.model_validate(made.body()).error.type == error.type
            assert int(made.headers.get("retry-after", "120")) == 120


def _all(base: type[StokerError]) -> list[type[StokerError]]:
    return [base, *(descendant for child in base.__subclasses__() for descendant in _all(child))]
