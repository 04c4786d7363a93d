"""`make bench-gpu` at tiny sizes on the CPU: the same code, and every answer is compared."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.__main__ import GROUPS
from bench.gpu.results import JSON_NAME, TABLE_NAME, Verdict
from bench.gpu.sizes import TINY

ROOT = Path(__file__).parents[1]
NEEDS_GPU = ("with a prepared worker", "from main memory")
"""Rows that this machine cannot measure."""


@pytest.mark.release
def test_every_row_is_measured_and_every_answer_is_right(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--without-gpu", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / JSON_NAME).read_text())
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == [row.name for group in GROUPS.values() for row in group.rows(TINY)]
    for name, row in rows.items():
        if any(part in name for part in NEEDS_GPU):
            assert (row["verdict"], row["stoker"]) == (Verdict.NOT_MEASURED, None), row
            assert row["reason"]
            continue
        assert row["verdict"] == Verdict.NOT_JUDGED, row
        assert row["stoker"] > 0
        assert row["wrong"] == ""
        assert row["answers"]
        # The bare loop has no time to the first token.
        assert row["bare"] or "first token" in name
    checks = {check["name"] for check in result["facts"]["doctor"]["checks"]}
    assert {"Python", "memory"} <= checks
    table = (tmp_path / TABLE_NAME).read_text()
    assert done.stdout.strip() == table.strip()
    assert all(f"| {name} |" in table for name in rows)
