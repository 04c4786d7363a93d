"""`HEAD` works on every `GET` route with the same status, headers and required key, and without a
body.
"""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from stoker.registry.files import service as files
from stoker.server.events.broadcast import MOST_OF_KEY
from stoker.store.tables.files import Purpose
from tests.deployments.routes import STREAMS, Place, keyed, places
from tests.support.app import App, serving
from tests.support.server import Server

VARYING = {"x-request-id", "date"}
OWN = {"/v1/model-artifacts/{artifact_id}/uploads/{upload_id}/files/{path:path}"}
"""Routes that answer `HEAD` but not `GET`."""


def heads(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in VARYING}


def gets() -> list[Place]:
    return [place for place in places() if place.method == "GET" and place.path not in STREAMS]


@pytest.fixture(scope="module")
def operator(server: Server) -> Iterator[httpx.Client]:
    with server.client(server.operator_key) as client:
        yield client


class TestEveryRoute:
    @pytest.mark.parametrize("place", gets(), ids=str)
    def test_as_get(self, operator: httpx.Client, place: Place) -> None:
        """`HEAD` equals `GET` for lists, single objects and errors."""
        got, head = operator.get(place.url()), operator.head(place.url())
        assert (head.status_code, head.content) == (got.status_code, b"")
        if place.path == "/metrics":
            # The metrics have changed between the two requests.
            assert head.headers["content-type"] == got.headers["content-type"]
            return
        assert heads(head) == heads(got)
        if "content-encoding" not in got.headers:
            assert int(head.headers.get("content-length", 0)) == len(got.content)

    @pytest.mark.parametrize("place", [one for one in keyed() if one.method == "GET"], ids=str)
    def test_needs_a_key(self, server: Server, place: Place) -> None:
        with server.client() as anonymous:
            head = anonymous.head(place.url())
        assert (head.status_code, head.content) == (401, b"")
        assert head.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize("path", ["/docs/static/start.js", "/console/", "/console"])
    def test_pages(self, operator: httpx.Client, path: str) -> None:
        got, head = operator.get(path), operator.head(path)
        assert (head.status_code, heads(head)) == (got.status_code, heads(got))

    def test_post_alone(self, operator: httpx.Client) -> None:
        head = operator.head("/v1/chat/completions")
        assert (head.status_code, head.headers["allow"]) == (405, "POST")


@pytest.fixture(scope="module")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    async with serving(tmp_path_factory.mktemp("head") / "data") as app:
        yield app


async def test_event_stream_ends_at_once(app: App) -> None:
    """A `HEAD` request occupies none of the key's event streams."""
    async with await app.account() as client:
        for _ in range(MOST_OF_KEY + 1):
            head = await client.head("/v1/events")
            assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")


async def test_large_file(app: App) -> None:
    """`HEAD` reports a file's length, also for ranges, and does not read the whole file."""
    async with await app.account() as client:
        (file,) = await files.store(
            app.platform,
            account_id=client.account_id,  # type: ignore[attr-defined]
            deployment_id="dep_1",
            purpose=Purpose.IMAGE,
            contents=[b"x" * 1_000_000],
            content_type="image/png",
        )
        path = f"/v1/files/{file.id}/content"
        for headers in ({}, {"range": "bytes=0-9"}, {"range": "bytes=9999999-"}):
            got = await client.get(path, headers=headers)
            head = await client.head(path, headers=headers)
            assert (head.status_code, head.content) == (got.status_code, b"")
            assert heads(head) == heads(got)
