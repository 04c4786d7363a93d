"""The benchmark page and the README's table agree with the result files."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench import machine, report, report_results

RESULTS = report.read()


def test_page_is_current() -> None:
    assert report.PAGE.read_text() == report.page(RESULTS)
    pages = {path.stem: path.read_text() for path in report.KEPT.glob("*.md")}
    assert pages == report.pages(RESULTS)


def test_the_readmes_table_is_current() -> None:
    text = report.README.read_text()
    assert report.with_table(text, RESULTS) == text
    assert " x |" in text.partition(report.BEGIN)[2].partition(report.END)[0]


def test_headlines_name_series_that_there_are() -> None:
    for headline in report.HEADLINES:
        for result in RESULTS.get(headline.result, ())[:1]:
            assert headline.label in [series["label"] for series in result["series"]]


def test_no_path_of_a_machine_is_kept() -> None:
    for path in [*report.KEPT.glob("*.*"), *report.BEFORE.glob("*.*")]:
        assert not re.search(r"/(?:work|home|root|tmp|check)/", path.read_text()), path.name


def test_plots_are_there() -> None:
    for page in report.KEPT.glob("*.md"):
        for name in re.findall(r"\(([a-z_0-9.]+\.svg)\)", page.read_text()):
            assert (report.KEPT / name).read_text().startswith("<?xml")


def result(**changes: Any) -> dict[str, Any]:
    base = copy.deepcopy(dict(next(iter(RESULTS.values()))[0]))
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
    ((stored,),) = report.read().values()
    assert (stored["finished_at"] == given["finished_at"]) is is_taken
    assert report.read()["made"][0]["name"] == "made"


def test_each_class_of_processors_has_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, kept_folder = tmp_path / "new", tmp_path / "kept"
    monkeypatch.setattr(report, "RESULTS", new)
    monkeypatch.setattr(report, "KEPT", kept_folder)
    new.mkdir()
    for flags in (["avx2"], ["avx2", "avx512f"], ["avx2", "avx512f", "amx_tile"]):
        processor = {**result()["machine"], "flags": flags}
        processor.pop("class", None)
        (new / "made.json").write_text(json.dumps(result(machine=processor)))
        report.take_over()
    assert {path.name for path in kept_folder.iterdir()} == {
        "made.amx.json",
        "made.avx2.json",
        "made.avx512.json",
    }
    results = report.read()
    assert [machine.class_of(entry["machine"]["flags"]) for entry in results["made"]] == [
        *("amx", "avx512", "avx2"),
    ]
    page = report.result_page("made", results["made"])
    assert "|  | AMX | AVX-512 | AVX2 |  | aim |" in page
    assert report.page(results).count("(performance/made.md)") == 3


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
    page = report.result_page("made", [made])
    assert "| ours / theirs | 0.5 | 0.4 | 0.6 | x | ≥ 1: MISSED |" in page
    assert "![" not in page
    processor = report_results.title_of_class(made)
    assert f"(performance/made.md) | {processor} | 0 | 1 | 0 |" in report.page({"made": [made]})
