"""The reference pages are those that the code writes, and name what the code has."""

import sys
from pathlib import Path

import pytest

from stoker.server.app import create_app
from stoker.workloads.agents import events as run_events
from tests.test_docs import DOCS, anchors
from tools.reference import __main__ as reference
from tools.reference import api, events
from tools.reference.__main__ import PAGES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_are_written(path: Path) -> None:
    assert path.read_text() == PAGES[path](), "run: python -m tools.reference"


def test_an_outdated_page_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(reference, "PAGES", {page: lambda: "new"})
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["reference"])
    reference.main()
    assert page.read_text() == "new"
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    reference.main()
    page.write_text("old")
    with pytest.raises(SystemExit, match=r"page\.md is outdated"):
        reference.main()


def test_every_operation_has_a_section() -> None:
    found = [*api.operations(create_app().openapi())]
    headings = anchors((DOCS / "api.md").read_text())
    assert len(headings) > len(found) > 120
    assert {operation.content["tags"][0] for operation in found} == {*api.GUIDES}


def test_every_type_of_a_run_event_is_listed() -> None:
    types = {
        value
        for name, value in vars(run_events).items()
        if name.isupper() and isinstance(value, str)
    }
    assert types == {*events.RUN_DATA}


def test_objects_of_the_stream() -> None:
    assert {*events.objects()} == {"deployment", "artifact", "video", "batch", "run"}
