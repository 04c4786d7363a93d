"""The benchmark of idle servers judges gateways and nodes, and times commands that succeed."""

from pathlib import Path

import pytest

from bench import idle, launching
from bench.common import Report
from bench.server import IMPORTED


def test_only_gateways_and_nodes_have_an_aim() -> None:
    report = Report("name", "title")
    before = {"one, gateway": 1.0, "one, replicas": 2.0, "fleet, node": 3.0}
    after = {"one, gateway": 1.08, "one, replicas": 2.4, "fleet, node": 3.2}
    idle.add(report, before, after, 20.0)
    figures = {entry.label: (round(entry.median, 6), entry.verdict) for entry in report.series}
    assert figures == {
        "one, gateway": (4.0, "met"),
        "one, replicas": (20.0, ""),
        "fleet, node": (10.0, "MISSED"),
    }


def test_a_command_is_timed_to_its_first_byte(tmp_path: Path) -> None:
    environment = launching.environment(IMPORTED)
    assert idle.first_byte_s(["--help"], tmp_path, environment) > 0
    with pytest.raises(RuntimeError, match="no-such-command"):
        idle.first_byte_s(["no-such-command"], tmp_path, environment)
