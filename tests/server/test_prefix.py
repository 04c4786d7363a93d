"""A server works below a path prefix, both when the proxy strips it and when it forwards it."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.app import App, serving

PUBLIC = "https://models.example/team/stoker"


@pytest.fixture(scope="module")
async def public(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    async with serving(tmp_path_factory.mktemp("public") / "data", public_url=PUBLIC) as app:
        yield app


@pytest.fixture(scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    async with serving(tmp_path_factory.mktemp("plain") / "data") as app:
        yield app


def servers(answer: httpx.Response) -> Any:
    return answer.raise_for_status().json().get("servers")


@pytest.mark.parametrize("prefix", ["", "/team/stoker"])
async def test_public_address(public: App, prefix: str) -> None:
    """The server answers requests with and without the path prefix."""
    async with public.client(public.operator_key) as client:
        for path in ("/openapi.json", "/v1/agent/openapi.json"):
            assert servers(await client.get(f"{prefix}{path}")) == [{"url": "/team/stoker"}]
        assert (await client.get(f"{prefix}/health")).status_code == 200
        assert 'src="docs/static/' in (await client.get(f"{prefix}/docs")).text
        assert (await client.get(f"{prefix}/docs/static/start.js")).status_code == 200
        page = await client.get(f"{prefix}/console/")
        assert 'content="/team/stoker/"' in page.text and 'src="/team/stoker/console/' in page.text
        assert (await client.get(f"{prefix}/v1/accounts")).status_code == 200
        link = await client.post(f"{prefix}/v1/console/links")
        assert link.json()["url"].startswith(f"{PUBLIC}/console/#link=")
        # A model call takes a separate route through the app.
        call = await client.post(f"{prefix}/v1/chat/completions", json={"model": "x"})
        assert call.json()["error"]["param"] == "x-stoker-account"


async def test_the_path_opens_nothing(public: App) -> None:
    async with public.client("sk-0-0") as client:
        assert (await client.get("/team/stoker/v1/accounts")).status_code == 401
        assert (await client.get("/team/stokerx/health")).status_code == 404


async def test_header_of_a_proxy(plain: App) -> None:
    headers = {"x-forwarded-prefix": "/stoker"}
    async with plain.client(plain.operator_key) as client:
        answer = await client.get("/openapi.json", headers=headers)
        assert servers(answer) == [{"url": "/stoker"}]
        assert answer.headers["vary"] == "x-forwarded-prefix"
        assert 'src="/stoker/console/' in (await client.get("/console/", headers=headers)).text
        link = await client.post("/v1/console/links", headers=headers)
        assert link.json()["url"].startswith("http://stoker/stoker/console/#link=")
        # The header does not bypass a proxy's rules for paths.
        assert (await client.get("/stoker/health", headers=headers)).status_code == 404


@pytest.mark.parametrize(
    "given", ["//evil.example", "/a/../b", "/a b", "https://evil.example", '/"><script>', "/" * 99]
)
async def test_header_that_is_no_path(plain: App, given: str) -> None:
    async with plain.client(plain.operator_key) as client:
        headers = {"x-forwarded-prefix": given}
        assert servers(await client.get("/openapi.json", headers=headers)) is None
        assert 'content="/"' in (await client.get("/console/", headers=headers)).text


async def test_without_a_prefix(plain: App) -> None:
    async with plain.client(plain.operator_key) as client:
        assert servers(await client.get("/openapi.json")) is None
