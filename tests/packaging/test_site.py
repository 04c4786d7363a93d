"""The documentation as a site: built by Zensical, compared with CommonMark, read in Chromium."""

import functools
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

from tests.demo.console.conftest import Opener, browser, opened_at  # noqa: F401
from tools.docs_site.__main__ import loaded_from_elsewhere
from tools.docs_site.pages import ROOT, sources, title

if TYPE_CHECKING:
    from playwright.sync_api import Page

PYTHON = ROOT / ".data" / "docs-env" / "bin" / "python"
TAGS = {"h1", "h2", "h3", "h4", "li", "tr", "pre", "img"}
"""Elements that every renderer of Markdown makes alike."""


@pytest.fixture(scope="module")
def site() -> Path:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} was not found: make install-docs")
    done = subprocess.run(
        [PYTHON, "-m", "tools.docs_site"],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "warning" not in done.stdout.lower()
    return ROOT / ".data" / "site"


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Serves the site below a path, as a web server may."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return super().translate_path(path.removeprefix("/stoker"))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(site))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/stoker"
        server.shutdown()


class Elements(HTMLParser):
    """Counts elements inside a page's article, and collects its anchors."""

    def __init__(self, html: str, outer: str | None = "article") -> None:
        super().__init__()
        self.counts = Counter[str]()
        self.anchors: set[str] = set()
        self._outer = outer
        self._depth = 0 if outer else 1
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == self._outer:
            self._depth += 1
        if self._depth:
            self.counts[tag] += tag in TAGS
            self.anchors |= {value for name, value in attrs if name == "id" and value}

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == self._outer


def test_pages_look_as_on_a_git_host(site: Path) -> None:
    """Both renderers make the same number of headings, list items, rows, blocks and pictures."""
    commonmark = MarkdownIt("commonmark").enable("table")
    different: list[str] = []
    for page in sources():
        built = Elements((site / page).with_suffix(".html").read_text()).counts
        plain = Elements(commonmark.render((site / page).read_text()), outer=None).counts
        if built != plain:
            different.append(f"{page}: {built - plain} more, {plain - built} less")
    assert different == []


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[a](nowhere.md)", "page does not exist"),
        ("[a](other.md#nowhere)", "anchor does not exist"),
        ("[a](other.md#code)", "No issues found"),
    ],
)
def test_broken_links_fail(text: str, warning: str, site: Path, tmp_path: Path) -> None:
    assert site.exists()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n{text}\n")
    (tmp_path / "docs" / "other.md").write_text('# Other\n\n<a id="code"></a>`code`\n')
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "Site"\n')
    done = subprocess.run(
        [PYTHON, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert warning in done.stdout + done.stderr
    assert (done.returncode == 0) == (warning == "No issues found")


def test_every_error_has_an_anchor(site: Path) -> None:
    anchors = Elements((site / "errors.html").read_text()).anchors
    assert {"model_not_found", "queue_full", "conflict", "invalid-requests"} <= anchors


def test_nothing_is_loaded_from_elsewhere(site: Path, tmp_path: Path) -> None:
    assert loaded_from_elsewhere(site) == []
    (tmp_path / "page.html").write_text(
        '<link href="https://fonts.example/a.css"><a href="https://b">'
    )
    (tmp_path / "style.css").write_text("@font-face { src: url(//fonts.example/b.woff2) }")
    assert loaded_from_elsewhere(tmp_path) == [
        "page.html: https://fonts.example/a.css",
        "style.css: url(//fonts.example/b.woff2",
    ]


def test_site_in_a_browser(address: str, opened_at: Opener, tmp_path: Path) -> None:  # noqa: F811
    page = opened_at(f"{address}/index.html")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{address}/guide/keys.html")
    assert page.locator("article h1").inner_text().startswith("API keys")
    find(page, "shadow traffic")
    page.wait_for_url("**/guide/traffic.html*")
    page.screenshot(path=tmp_path / "site.png")
    assert page.locator("article h1").inner_text().startswith(title(sources()["guide/traffic.md"]))
    assert len(requested) > 5
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []


def find(page: "Page", words: str) -> None:
    """Types words into the search and opens the first result."""
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.locator(f"text={words}").first.wait_for()
    page.keyboard.press("Enter")


def test_dark_and_light(address: str, opened_at: Opener) -> None:  # noqa: F811
    colours = {
        scheme: opened_at(f"{address}/settings.html", color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    }
    assert colours["light"] != colours["dark"]
