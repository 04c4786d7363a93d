"""The benchmark page and the README's table agree with the result files."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import report

RESULTS = report.read()


def test_page_is_current() -> None:
    assert report.PAGE.read_text() == report.page(RESULTS)
    pages = {path.stem: path.read_text() for path in report.KEPT.glob("*.md")}
    assert pages == {name: report.result_page(name, result) for name, result in RESULTS.items()}


def test_the_readmes_table_is_current() -> None:
    text = report.README.read_text()
    assert report.with_table(text, RESULTS) == text
    assert " x |" in text.partition(report.BEGIN)[2].partition(report.END)[0]


def test_headlines_name_series_that_there_are() -> None:
    for headline in report.HEADLINES:
        if result := RESULTS.get(headline.result):
            assert headline.label in [series["label"] for series in result["series"]]


def test_no_path_of_a_machine_is_kept() -> None:
    for path in report.KEPT.iterdir():
        assert not re.search(r"/(?:work|home|root|tmp|check)/", path.read_text()), path.name


def test_plots_are_there() -> None:
    for page in report.KEPT.glob("*.md"):
        for name in re.findall(r"\(([a-z_]+\.svg)\)", page.read_text()):
            assert (report.KEPT / name).read_text().startswith("<?xml")


def result(**changes: Any) -> dict[str, Any]:
    base = copy.deepcopy(dict(next(iter(RESULTS.values()))))
    return {**base, "name": "made", "quick": False, "rounds": 3, **changes}


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        ({"finished_at": "2026-02-01T00:00:00+00:00"}, True),
        ({"finished_at": "2025-12-01T00:00:00+00:00"}, False),
        ({"finished_at": "2026-02-01T00:00:00+00:00", "rounds": 2}, False),
        ({"finished_at": "2026-02-01T00:00:00+00:00", "quick": True}, False),
    ],
)
def test_what_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], is_taken: bool
) -> None:
    new, kept_folder = tmp_path / "new", tmp_path / "kept"
    monkeypatch.setattr(report, "RESULTS", new)
    monkeypatch.setattr(report, "KEPT", kept_folder)
    for folder, changes in (
        (new, given),
        (kept_folder, {"finished_at": "2026-01-01T00:00:00+00:00"}),
    ):
        folder.mkdir()
        (folder / "made.json").write_text(json.dumps(result(**changes)))
    report.take_over()
    (stored,) = report.read().values()
    assert (stored["finished_at"] == given["finished_at"]) is is_taken
    assert report.read()["made"]["name"] == "made"


def test_a_missed_aim_is_told() -> None:
    series = {
        "label": "ours / theirs",
        "unit": "x",
        "median": 0.5,
        "min": 0.4,
        "max": 0.6,
        "aim": "≥ 1",
        "verdict": "MISSED",
    }
    made = result(series=[series])
    page = report.result_page("made", made)
    assert "| ours / theirs | 0.5 | 0.4 | 0.6 | x | ≥ 1: MISSED |" in page
    assert "![" not in page
    assert "(performance/made.md) | 0 | 1 | 0 |" in report.page({"made": made})
