"""Every call that the console offers to copy works as copied, for each model of the demo."""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from PIL import Image

from tests.cli.support import Cli
from tests.demo.console.conftest import MEDIA
from tests.support.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Page

FILES = {
    "picture.png": "scene.png",
    "recording.wav": "siren.wav",
    "video.mp4": "moving.mp4",
}

SOME = {"tiny-chat", "tiny-sentiment", "tiny-transcriber", "tiny-vqa", "random-speech"}
"""Models with each kind of input and output, except videos."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a working folder with the files that the calls name."""
    for name, source in FILES.items():
        shutil.copy(MEDIA / source, tmp_path / name)
    # White pixels are redrawn: the left half.
    with Image.open(tmp_path / "picture.png") as picture:
        mask = Image.new("L", picture.size)
    mask.paste(255, (0, 0, mask.width // 2, mask.height))
    mask.save(tmp_path / "mask.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snippets(page: "Page") -> list[tuple[str, str]]:
    """Returns the label and text of each tab of each call on a page."""
    result: list[tuple[str, str]] = []
    blocks = page.locator("main section.card", has=page.locator("pre.code-block"))
    blocks.first.wait_for()
    for card in blocks.all():
        for tab in card.locator(".segmented button").all():
            tab.click()
            result.append((tab.inner_text(), card.locator("pre.code-block").inner_text()))
    return result


def run_python(text: str, key: str) -> str:
    out = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"STOKER_API_KEY": key}),
        contextlib.redirect_stdout(out),
    ):
        exec(compile(text, "snippet", "exec"), {})
    return out.getvalue()


def run_curl(text: str, key: str) -> str:
    program = text.replace("curl ", "curl --fail-with-body -sS ", 1)
    done = subprocess.run(
        ["bash", "-c", program],
        env=os.environ | {"STOKER_API_KEY": key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_command(text: str, key: str) -> str:
    export, command = text.splitlines()
    base_url = export.removeprefix("export STOKER_BASE_URL=")
    done = Cli(base_url, key).run(*shlex.split(command)[1:])
    assert done.returncode == 0, f"{text}\n{done.stderr}"
    return done.stdout


RUNNERS: dict[str, Callable[[str, str], str]] = {
    "curl": run_curl,
    "Python": run_python,
    "openai SDK": run_python,
    "Command line": run_command,
}


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(SOME, id="some"), pytest.param(None, id="all", marks=pytest.mark.release)],
)
def test_every_call_to_copy_works(
    chosen: set[str] | None,
    console: "Page",
    at: Callable[[str], str],
    state: Any,
    demo: Server,
    folder: Path,
) -> None:
    failed: list[str] = []
    ways = 0
    models = chosen or state["deployments"].keys()
    for model in models:
        deployment = state["deployments"][model]
        console.goto(at(f"deployments/{deployment['id']}/calls"))
        for way, text in snippets(console):
            ways += 1
            try:
                output = RUNNERS[way](text, deployment["key"])
            except (Exception, SystemExit) as error:
                failed.append(f"{model}, {way}: {error}")
                continue
            if "speech" in text or "videos.create" in text or re.search(r"stoker video", text):
                # These calls write a file and print nothing.
                continue
            if not output.strip():
                failed.append(f"{model}, {way}: nothing is printed by\n{text}")
    assert not failed, "\n".join(failed)
    assert ways >= 4 * len(models)
    assert (folder / "speech.mp3").stat().st_size > 0
    if not chosen:
        assert (folder / "video.mp4").stat().st_size > 0
