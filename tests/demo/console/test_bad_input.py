"""Hostile text of other people is shown as text, and failures are reported in words."""

import http.server
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stoker.demo.setup import MODELS
from tests.demo.console.conftest import PATIENCE_MS, Opener, account_key, sign_in
from tests.demo.console.test_models import drop
from tests.support.deploying import deploy
from tests.support.server import WITHOUT_MODELS, Server, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

At = Callable[[str], str]
SCRIPT = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
TURNED = "safe\u202egnp.exe"
SHOWN = "safe\ufffdgnp.exe"
LONG_LINE = 4_000_000
"""Characters of a long log line. Less than the limit of a log file, because a file that is cut may
lose a line that is written at the same time.
"""
STUCK_MS = 2_000
"""Maximum duration of a long task in milliseconds. A page that computes for longer feels broken.
Generous, because a shared machine is slow.
"""
WATCH = """
  window.longest = 0;
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
  }).observe({ type: "longtask", buffered: true });
"""
"""Script that records the longest time in milliseconds for which a page was unresponsive."""


def check_text(page: "Page") -> None:
    """Checks that the page rendered all hostile content as text."""
    assert page.locator("main img, main script").count() == 0
    assert page.title().endswith(" · Stoker")


class TestFrames:
    @pytest.fixture
    def around(self, demo: Server) -> Iterator[int]:
        """Serves another site with a page that frames itself and the console. Yields the site's
        port.
        """
        document = (
            "<title>around</title><iframe src='/own'></iframe>"
            f"<iframe src='{demo.base_url}/console/'></iframe>"
        ).encode()

        class Site(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(b"<p>framed</p>" if self.path == "/own" else document)

            def log_message(self, *_: Any) -> None:
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site) as site:
            thread = threading.Thread(target=site.serve_forever)
            thread.start()
            yield site.server_address[1]
            site.shutdown()
            thread.join()

    # The first host is of the same site as the console, because ports do not distinguish sites.
    # Cookies are sent to it.
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_stay_empty(
        self, browser: "Browser", demo: Server, state: Any, around: int, host: str
    ) -> None:
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        messages: list[str] = []
        page.on("console", lambda message: messages.append(message.text))
        page.goto(f"{demo.base_url}/console/")
        sign_in(page, state["account_key"])
        page.goto(f"http://{host}:{around}/")
        own_frame, console = page.frames[1:]
        assert own_frame.locator("p").inner_text() == "framed"
        assert console.url.startswith("chrome-error://")
        assert "Stoker" not in console.content()
        assert any("frame-ancestors 'none'" in message for message in messages)
        # Such a page cannot act in the name of the signed-in user either.
        with demo.client(state["account_key"]) as client:
            keys = client.get("/v1/api-keys", params={"limit": 100}).json()
            page.evaluate(
                """address => fetch(address, {
                  method: "POST", mode: "no-cors", credentials: "include",
                  body: JSON.stringify({ scope: "account" }),
                }).catch(() => undefined)""",
                f"{demo.base_url}/v1/api-keys",
            )
            assert client.get("/v1/api-keys", params={"limit": 100}).json()["data"] == keys["data"]
        context.close()


class TestText:
    def test_labels_cards_and_lines(
        self, opened: Opener, demo: Server, at: At, tmp_path: Path
    ) -> None:
        folder = tmp_path / "hostile"
        shutil.copytree(MODELS / "tiny-sentiment", folder)
        config = json.loads((folder / "config.json").read_text())
        config["id2label"] = {"0": SCRIPT, "1": TURNED}
        config["label2id"] = {SCRIPT: 0, TURNED: 1}
        (folder / "config.json").write_text(json.dumps(config))
        card = f"# {SCRIPT}\n\n{TURNED} [a](javascript:document.title=3) ![b](http://x.test/y)\n\n"
        # This text takes a careless Markdown parser minutes.
        (folder / "README.md").write_text(card + "[" * 100_000 + "\n\n# " + " " * 50_000 + "x")
        client = demo.account("hostile")
        made = deploy(client, folder, "hostile", readiness="hot")
        page = opened()
        page.context.add_init_script(WATCH)
        sign_in(page, account_key(client))

        page.goto(at(f"deployments/{made['id']}/try"))
        page.get_by_label("Text", exact=True).fill("What a wonderful day!")
        page.get_by_role("button", name="Classify", exact=True).click()
        page.locator(".bars li").nth(1).wait_for()
        labels = page.locator(".bars li").all_inner_texts()
        assert [SCRIPT in label or SHOWN in label for label in labels] == [True, True]
        assert not any("\u202e" in label for label in labels)
        check_text(page)

        page.goto(at(f"artifacts/{made['artifact_id']}"))
        page.locator(".markdown").wait_for()
        shown = page.locator(".markdown").inner_text()
        assert SCRIPT in shown
        assert SHOWN in shown
        assert page.locator(".markdown a").count() == 0
        check_text(page)
        assert page.evaluate("() => window.longest") < STUCK_MS

        log = demo.runs_in / "logs" / f"{made['id']}.log"
        with log.open("a") as writing:
            writing.write("x" * LONG_LINE + "\n")
        page.goto(at(f"deployments/{made['id']}/events"))
        lines = page.get_by_label("Replica logs")
        lines.get_by_text("…xxx").wait_for()
        assert len(lines.inner_text()) < 10_000
        with log.open("a") as writing:
            writing.write(f"{SCRIPT}\n{TURNED}\n\x1b[31mred\x1b[0m\n")
        lines.get_by_text(SCRIPT).wait_for()
        assert SHOWN in lines.inner_text()
        assert "\ufffd[31mred" in lines.inner_text()
        page.get_by_label("Filter logs").fill("onerror")
        page.wait_for_function("one => !one.innerText.includes('red')", arg=lines.element_handle())
        assert lines.inner_text() == SCRIPT
        check_text(page)
        assert page.evaluate("() => window.longest") < STUCK_MS
        client.delete(f"/v1/deployments/{made['id']}").raise_for_status()


class TestFiles:
    @pytest.fixture
    def mine(self, opened: Opener, demo: Server) -> "Page":
        return sign_in(opened(), account_key(demo.account("files")))

    @pytest.mark.parametrize("name", [SCRIPT, TURNED])
    def test_names_are_text(self, mine: "Page", at: At, tmp_path: Path, name: str) -> None:
        folder = tmp_path / name.replace("/", "")
        folder.mkdir()
        (folder / f"{folder.name}.json").write_text("{}")
        mine.goto(at("artifacts"))
        mine.locator("input[type=file][multiple]").first.set_input_files(folder)
        mine.locator("main h1", has_text="img" if name == SCRIPT else SHOWN).wait_for()
        mine.get_by_role("alert").first.wait_for()
        assert "\u202e" not in mine.locator("main").inner_text()
        check_text(mine)

    def test_one_that_vanishes_is_named(self, mine: "Page", at: At, tmp_path: Path) -> None:
        folder = tmp_path / "vanishing"
        shutil.copytree(MODELS / "tiny-ner", folder)
        for number in range(6):
            (folder / f"more-{number}.txt").write_text(str(number))
        sent: list[str] = []
        routes: list[Route] = []
        is_gone = threading.Event()
        mine.route(
            "**/files/*/parts/*",
            lambda item: item.continue_() if is_gone.is_set() else routes.append(item),
        )
        mine.goto(at("artifacts"))
        mine.locator(".drop").wait_for()
        drop(mine, ".drop", folder)
        mine.get_by_role("heading", name="vanishing").wait_for()
        while len(routes) < 4:
            mine.wait_for_timeout(50)
        begun = {item.request.url.rsplit("/", 3)[1] for item in routes}
        victim = next(item for item in sorted(folder.iterdir()) if item.name not in begun)
        content = victim.read_bytes()
        victim.unlink()
        is_gone.set()
        for item in routes:
            item.continue_()
        note = mine.get_by_role("alert")
        note.wait_for()
        assert f"'{victim.name}' can no longer be read" in note.inner_text()
        assert "Choose it again to resume" in note.inner_text()
        # The file is found again, and is the only one that is uploaded.
        victim.write_bytes(content)
        mine.on("request", lambda item: item.method == "PUT" and sent.append(item.url))
        mine.locator("main input[type=file]").set_input_files(folder)
        mine.get_by_role("heading", name="Deploy", exact=True).wait_for()
        assert [item.rsplit("/", 3)[1] for item in sent] == [victim.name]


class TestRestarts:
    @pytest.fixture
    def own(self, tmp_path: Path) -> Iterator[Server]:
        """Runs a separate server, which may be stopped while other tests use the demo."""
        with running(tmp_path / "own", **WITHOUT_MODELS) as server:
            yield server

    def test_are_told_of_and_gone_on_after(self, opened_at: Opener, own: Server) -> None:
        client = own.account("restarted")
        page = opened_at(f"{own.base_url}/console/")
        sign_in(page, account_key(client))
        page.goto(f"{own.base_url}/console/artifacts")
        page.get_by_text("No artifacts yet.").wait_for()
        page.get_by_role("status").get_by_text("Live").wait_for()
        page.evaluate("() => { window.isTheSame = true; }")
        own.stop()
        page.get_by_text("The server is not responding.").wait_for()
        page.get_by_role("status").get_by_text("No connection").wait_for()
        page.get_by_label("Repository").fill("some/model")
        page.get_by_role("button", name="Import", exact=True).click()
        page.get_by_text("Check that it is running, then try again.").wait_for()
        own.restart()
        page.get_by_text("This page reconnects automatically").wait_for(state="detached")
        page.get_by_role("status").get_by_text("Live").wait_for()
        # New objects appear without another sign-in or a reload.
        body = {"display_name": "after the restart"}
        client.post("/v1/model-artifacts", json=body).raise_for_status()
        page.get_by_role("link", name="after the restart").wait_for()
        assert page.evaluate("() => window.isTheSame")
        assert page.get_by_label("Repository").input_value() == "some/model"
