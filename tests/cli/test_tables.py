"""Tables keep ids and numbers whole on a terminal of any width."""

import io

import pytest
from rich.console import Console

from stoker.cli import output

IDS = ["dep_01ke5h2v9q8w7x6y5z4a3b2c1d", "art_01ke5h2v9q8w7x6y5z4a3b2c1d"]
NAME = "team-4/" + "customer-intent-classifier-" * 3 + "v2"
SENTENCE = "The model needs 3.2 GiB of memory, and 2.1 GiB are free at the moment."


def printed(
    monkeypatch: pytest.MonkeyPatch, width: int, header: list[str], rows: list[list[str]]
) -> list[str]:
    out = io.StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, no_color=True, color_system=None)
    monkeypatch.setattr(output, "console", lambda: terminal)
    output.print_table(header, rows)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 80, ["model", "status"], [["tiny-ner", "ready"]])
    assert lines == ["MODEL     STATUS", "tiny-ner  ready"]


def test_too_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    header, rows = ["id", "artifact", "model", "credits"], [[*IDS, NAME, "0.057598"]] * 2
    lines = printed(monkeypatch, 80, header, rows)
    record = [
        f"ID        {IDS[0]}",
        f"ARTIFACT  {IDS[1]}",
        f"MODEL     {NAME}",
        "CREDITS   0.057598",
    ]
    assert lines == [*record, "", *record]


def test_sentences_wrap_and_ids_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, 80, ["id", "message"], [[IDS[0], SENTENCE]])
    assert lines[0].split() == ["ID", "MESSAGE"]
    assert IDS[0] in lines[1] and len(lines) > 2
    assert " ".join(line[32:].strip() for line in lines[1:]) == SENTENCE


def test_a_pipe_has_no_blanks_at_the_end_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["model", "status"], [["tiny-ner", "ready"], ["x", ""]])
    lines = ["MODEL     STATUS", "tiny-ner  ready", "x         -"]
    assert capsys.readouterr().out.split("\n") == [*lines, ""]


def test_a_long_name_is_cut_in_its_middle() -> None:
    assert output.shortened(NAME, 20) == "team-4/cus…sifier-v2"
    assert output.shortened("tiny-ner", 20) == "tiny-ner"
