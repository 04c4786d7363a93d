"""The console's pages: the file of each address, its rights in a browser, and its caching."""

import gzip
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from stoker.server.console.built import Pages
from stoker.server.console.context import ConsoleContext
from tests.support.app import App, serving

INDEX = """<!doctype html><html><head><meta charset="utf-8">
<meta name="stoker-base" content="/"><title>Stoker</title>
<script type="module" crossorigin src="./assets/index-1a2b.js"></script>
<link rel="stylesheet" crossorigin href="./assets/index-3c4d.css"><link rel="icon" href="./i.svg">
</head><body><div id="app"></div></body></html>
"""
SCRIPT = "console.log('stoker');\n" * 100
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    (folder / "assets").mkdir()
    (folder / "index.html").write_text(INDEX)
    (folder / "i.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "assets" / "index-1a2b.js").write_text(SCRIPT)
    (folder / "assets" / "index-1a2b.js.gz").write_bytes(gzip.compress(SCRIPT.encode(), mtime=1))
    (folder / "assets" / "index-3c4d.css").write_text("body { margin: 0 }\n" * 100)
    (folder.parent / "secret.txt").write_text("zebra")
    return folder


@pytest.fixture(scope="module")
async def app(built: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[App]:
    async with serving(tmp_path_factory.mktemp("pages") / "data") as app:
        show(app, built)
        yield app


def show(app: App, folder: Path) -> None:
    context = replace(app.parts.get(ConsoleContext), pages=Pages(folder))
    app.parts.add(ConsoleContext, context)


def anyone(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app.app),
        base_url="http://stoker",
        headers={"accept-encoding": "identity"},
    )


class TestDocument:
    @pytest.mark.parametrize(
        "path", ["", "index.html", "deployments/dep_1", "sign-in", "session/x"]
    )
    async def test_is_that_of_every_address(self, app: App, path: str) -> None:
        answer = await anyone(app).get(f"/console/{path}")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert 'name="stoker-base" content="/"' in answer.text
        assert 'src="/console/assets/index-1a2b.js"' in answer.text
        assert 'href="/console/assets/index-3c4d.css"' in answer.text
        assert "./" not in answer.text

    @pytest.mark.case(25)
    async def test_may_do_nothing_but_its_own(self, app: App) -> None:
        answer = await anyone(app).get("/console/")
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data: blob:",
            "media-src": "'self' blob:",
            "connect-src": "'self'",
            "font-src": "'self'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"

    async def test_is_not_sent_again(self, app: App) -> None:
        first = await anyone(app).get("/console/")
        known = {"if-none-match": f'"other", {first.headers["etag"]}'}
        again = await anyone(app).get("/console/deployments", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        head = await anyone(app).head("/console/")
        assert head.status_code == 200 and head.headers["etag"] == first.headers["etag"]

    async def test_behind_a_path(self, built: Path, tmp_path: Path) -> None:
        public = 'https://models.example/of"us/stoker/'
        async with serving(tmp_path / "data", public_url=public) as app:
            show(app, built)
            text = (await anyone(app).get("/console/deployments/x")).text
        assert 'name="stoker-base" content="/of&quot;us/stoker/"' in text
        assert 'src="/of&quot;us/stoker/console/assets/index-1a2b.js"' in text

    async def test_is_read_anew_once_built_anew(self, app: App, tmp_path: Path) -> None:
        folder = tmp_path / "built"
        folder.mkdir()
        (folder / "index.html").write_text("<title>first</title>")
        pages = Pages(folder)
        assert (await pages.document("")).content == b"<title>first</title>"
        (folder / "index.html").write_text("<title>second</title>")
        assert (await pages.document("")).content == b"<title>second</title>"

    async def test_was_not_built(self, app: App, tmp_path: Path) -> None:
        pages = app.parts.get(ConsoleContext).pages
        show(app, tmp_path / "nothing")
        try:
            for path in ("/console/", "/console/assets/x.js"):
                answer = await anyone(app).get(path)
                assert answer.status_code == 404
                assert answer.json()["error"]["code"] == "console_not_built"
                assert "make console" in answer.json()["error"]["message"]
        finally:
            app.parts.add(ConsoleContext, replace(app.parts.get(ConsoleContext), pages=pages))


class TestFiles:
    async def test_assets_are_kept_for_ever(self, app: App) -> None:
        answer = await anyone(app).get("/console/assets/index-1a2b.js")
        assert answer.text == SCRIPT
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        style = await anyone(app).get("/console/assets/index-3c4d.css")
        assert style.headers["content-type"] == "text/css; charset=utf-8"
        icon = await anyone(app).get("/console/i.svg")
        assert icon.headers["content-type"] == "image/svg+xml; charset=utf-8"
        assert icon.headers["cache-control"] == "no-cache"

    @pytest.mark.parametrize("name", ["index-1a2b.js", "index-3c4d.css"])
    async def test_assets_are_packed_where_that_is_taken(self, app: App, name: str) -> None:
        url = f"/console/assets/{name}"
        plain = await anyone(app).get(url)
        packed = await anyone(app).get(url, headers={"accept-encoding": "br, gzip;q=0.5"})
        assert packed.headers["content-encoding"] == "gzip" and packed.text == plain.text
        assert int(packed.headers["content-length"]) < len(plain.content) / 5
        assert packed.headers["etag"] != plain.headers["etag"]
        assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
        refused = await anyone(app).get(url, headers={"accept-encoding": "gzip;q=0, br"})
        assert "content-encoding" not in refused.headers

    @pytest.mark.parametrize(
        "path",
        [
            "assets/none.js",
            "assets/",
            "assets/../index.html",
            "assets/..%2f..%2fsecret.txt",
            "assets/%2e%2e/%2e%2e/secret.txt",
            "assets//etc/passwd",
            "assets/index-1a2b.js%00",
            "assets/index-1a2b.js.gz",
        ],
    )
    async def test_there_is_nothing_else(self, app: App, path: str) -> None:
        answer = await anyone(app).get(f"/console/{path}")
        assert "zebra" not in answer.text and "root:" not in answer.text
        # A path that the client resolves itself returns the document.
        assert answer.status_code == 404 or answer.url.path == "/console/index.html", answer.text


class TestWay:
    async def test_a_person_is_sent_there(self, app: App) -> None:
        for path in ("/", "/console"):
            answer = await anyone(app).get(path, headers=HTML)
            assert (answer.status_code, answer.headers["location"]) == (307, "console/")

    async def test_a_program_is_told_that_there_is_nothing(self, app: App) -> None:
        answer = await anyone(app).get("/", headers={"accept": "*/*"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"

    async def test_nothing_there_is_changed(self, app: App) -> None:
        answer = await anyone(app).put("/console/x")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
