"""The API documentation page loads all of its files from this server."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.path_proxy import proxying
from tests.support.server import Server

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def test_loads_nothing_from_elsewhere(server: Server) -> None:
    with server.client() as client:
        page = client.get("/docs").raise_for_status().text
        loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
        assert len(loaded) == 4
        for path in loaded:
            # The paths are relative to `/docs`, because a proxy may add a prefix.
            assert path.startswith("docs/static/")
            assert client.get(f"/{path}").raise_for_status().content


@pytest.mark.case(25)
def test_l8_runs_its_own_files_alone(server: Server) -> None:
    with server.client() as client:
        page = client.get("/docs").raise_for_status()
    policy = dict(
        part.strip().partition(" ")[::2]
        for part in page.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    # The page has no inline script or style that this policy would block.
    assert re.findall(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|javascript:", page.text) == []


@pytest.mark.skipif(BROWSER is None, reason="needs chromium, from the package of that name")
def test_in_a_browser_behind_a_path(server: Server, tmp_path: Path) -> None:
    """The page works in a browser behind a proxy that strips the path prefix and does not report
    it.
    """
    server.wait_ready()
    with proxying("/team/stoker") as proxy:
        proxy.port = int(server.base_url.rpartition(":")[2])
        page = subprocess.run(
            [
                str(BROWSER),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                f"--user-data-dir={tmp_path}",
                "--virtual-time-budget=10000",
                "--dump-dom",
                f"{proxy.base_url}/docs",
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        assert "/v1/classifications/token" in page
        # The address to which the page sends its calls.
        assert f'value="{proxy.base_url}"' in page
        assert [url for url in proxy.strangers if "favicon" not in url] == []
