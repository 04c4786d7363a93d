"""Pages of other origins: the browser's preflight requests, and the answers that scripts may
read.
"""

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.responses import StreamingResponse

from stoker.base.config import Settings
from stoker.server.app import create_app
from tests.cli.support import Cli
from tests.support.server import PAGES, Server

CHAT = "/v1/chat/completions"
PAGE, LOCAL = PAGES
OTHER = "https://evil.example"
SDK = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
ALLOWED, EXPOSES = "access-control-allow-origin", "access-control-expose-headers"


@pytest.fixture(scope="module")
def client(gateway: Server) -> Iterator[httpx.Client]:
    with gateway.account("pages") as client:
        yield client


def preflight(
    client: httpx.Client, path: str, origin: str = PAGE, method: str = "POST", **more: str
) -> httpx.Response:
    """Sends the request, without a key, that a browser sends before a script's request."""
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": SDK,
        **more,
    }
    return httpx.options(f"{client.base_url}{path}", headers=headers, verify=False)


class TestPreflight:
    @pytest.mark.parametrize("origin", [PAGE, LOCAL])
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", CHAT),
            ("PATCH", "/v1/deployments/dep_x"),
            ("DELETE", "/v1/videos/video_x"),
            ("PUT", "/v1/model-artifacts/a/uploads/u/files/x/y"),
            ("GET", "/v1/models"),
            ("GET", "/health"),
            ("GET", "/nothing"),
        ],
    )
    def test_answered_without_a_key(
        self, client: httpx.Client, method: str, path: str, origin: str
    ):
        answer = preflight(client, path, origin, method)
        assert answer.status_code == 200
        assert answer.headers[ALLOWED] == origin
        assert method in answer.headers["access-control-allow-methods"].split(", ")
        assert answer.headers["access-control-allow-headers"] == SDK
        assert int(answer.headers["access-control-max-age"]) > 0
        assert "origin" in answer.headers["vary"].lower()
        assert answer.headers["x-request-id"]
        assert "access-control-allow-credentials" not in answer.headers

    @pytest.mark.parametrize(
        "origin", [OTHER, "null", f"{PAGE}.evil.example", f"{PAGE}:8443", "http://chat.example"]
    )
    def test_of_other_pages(self, client: httpx.Client, origin: str):
        answer = preflight(client, CHAT, origin)
        assert answer.status_code == 400
        assert ALLOWED not in answer.headers
        error = answer.json()["error"]
        assert error["code"] == "invalid_request"
        assert "STOKER_CORS_ORIGINS" in error["message"]

    def test_of_another_method(self, client: httpx.Client):
        answer = preflight(client, CHAT, method="TRACE")
        assert answer.status_code == 400
        assert "not TRACE" in answer.json()["error"]["message"]

    def test_from_a_public_page_to_a_private_network(self, client: httpx.Client):
        request_headers = {"access-control-request-private-network": "true"}
        answer = preflight(client, CHAT, **request_headers)
        assert answer.headers["access-control-allow-private-network"] == "true"


class TestAnswers:
    @pytest.mark.parametrize(
        ("method", "path", "key", "status"),
        [
            ("GET", "/v1/models", True, 200),
            ("GET", "/v1/models", False, 401),
            ("GET", "/nothing", True, 404),
            ("GET", "/%00", True, 404),
            ("PUT", "/v1/models", True, 405),
            ("POST", CHAT, True, 400),
            ("GET", "/health", False, 200),
            ("GET", "/openapi.json", False, 200),
        ],
    )
    def test_can_be_read(
        self, client: httpx.Client, method: str, path: str, key: bool, status: int
    ):
        headers = {"origin": PAGE} | ({} if key else {"authorization": ""})
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == status
        assert answer.headers[ALLOWED] == PAGE
        assert "Origin" in answer.headers["vary"].split(", ")
        exposed = answer.headers[EXPOSES].split(", ")
        assert {"x-request-id", "retry-after", "openai-poll-after-ms"} <= set(exposed)
        assert "access-control-allow-credentials" not in answer.headers

    def test_by_other_pages_cannot(self, client: httpx.Client):
        answer = client.get("/v1/models", headers={"origin": OTHER})
        assert answer.status_code == 200
        assert ALLOWED not in answer.headers

    def test_without_a_page_are_as_ever(self, client: httpx.Client):
        answer = client.get("/v1/models")
        assert not [name for name in answer.headers if name.startswith("access-control")]


def app_for(tmp_path: Path, *origins: str) -> FastAPI:
    """Returns the app with two additional routes: one fails, the other streams."""
    app = create_app(Settings(data_dir=tmp_path, cors_origins=list(origins)))

    async def fails() -> None:
        raise RuntimeError("a bug")

    async def parts() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    async def streams() -> StreamingResponse:
        return StreamingResponse(parts(), media_type="text/event-stream")

    app.add_api_route("/fails", fails)
    app.add_api_route("/streams", streams)
    return app


async def get(app: FastAPI, path: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://stoker") as client:
        return await client.get(path, headers=headers)


async def test_failures_of_the_server_can_be_read(tmp_path: Path) -> None:
    answer = await get(app_for(tmp_path, PAGE), "/fails", origin=PAGE)
    assert (answer.status_code, answer.headers[ALLOWED]) == (500, PAGE)
    assert answer.json()["error"]["code"] == "internal_error"
    assert answer.headers["x-request-id"]


async def test_streams_can_be_read(tmp_path: Path) -> None:
    answer = await get(app_for(tmp_path, PAGE), "/streams", origin=PAGE)
    assert (answer.text, answer.headers[ALLOWED]) == ("data: 1\n\ndata: 2\n\n", PAGE)


async def test_any_page(tmp_path: Path) -> None:
    app = app_for(tmp_path, "*")
    for origin in (PAGE, OTHER, "null"):
        for path in ("/streams", "/fails", "/nothing"):
            answer = await get(app, path, origin=origin)
            assert answer.headers[ALLOWED] == "*"
            # If browsers sent credentials, '*' would let every page use them.
            assert "access-control-allow-credentials" not in answer.headers


async def test_no_page_by_default(tmp_path: Path) -> None:
    app = app_for(tmp_path)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://stoker") as client:
        request_headers = {"origin": PAGE, "access-control-request-method": "POST"}
        answer = await client.options(CHAT, headers=request_headers)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.startswith("access-control")]


class TestSetting:
    @pytest.mark.parametrize(
        "origin",
        [
            "*",
            PAGE,
            "http://localhost:3000",
            "http://127.0.0.1",
            "http://[::1]:5173",
            "chrome-extension://abcdefgh",
            "https://xn--bcher-kva.example",
        ],
    )
    def test_good(self, origin: str):
        assert Settings(cors_origins=[origin]).cors_origins == [origin]

    @pytest.mark.parametrize(
        ("origin", "says"),
        [
            ("https://chat.example/", "Use 'https://chat.example'"),
            ("https://chat.example/page?x#y", "Use 'https://chat.example'"),
            ("HTTPS://Chat.Example", "Use 'https://chat.example'"),
            ("https://chat.example:443", "Use 'https://chat.example'"),
            ("http://localhost:80", "Use 'http://localhost'"),
            ("https://user@chat.example", "Use 'https://chat.example'"),
            ("https://bücher.example", "Use 'https://xn--bcher-kva.example'"),
            ("chat.example", "is not an origin"),
            ("localhost:3000", "is not an origin"),
            ("http://localhost:99999", "is not an origin"),
            ("https://", "is not an origin"),
            ("null", "is not an origin"),
            ("", "is not an origin"),
            ("https://*.example", "must stand alone"),
            ("https://a b", "is not an origin"),
        ],
    )
    def test_bad(self, origin: str, says: str):
        with pytest.raises(ValidationError, match="cors_origins") as error:
            Settings(cors_origins=[PAGE, origin])
        assert says in str(error.value)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ('["https://chat.example/"]', "[0]: 'https://chat.example/' differs from the form"),
            ("https://chat.example", "STOKER_CORS_ORIGINS: must be a list in JSON"),
        ],
    )
    def test_is_refused_before_the_server_starts(self, given: str, says: str):
        done = Cli("http://unused", settings={"STOKER_CORS_ORIGINS": given}).run("serve")
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
