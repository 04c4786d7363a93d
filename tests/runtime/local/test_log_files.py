from pathlib import Path

import pytest

from stoker.runtime.local.log_files import LIMIT_BYTES, TAIL_BYTES, LogFiles


@pytest.fixture
def logs(tmp_path: Path) -> LogFiles:
    return LogFiles(tmp_path / "logs")


def test_the_last_lines_oldest_first(logs: LogFiles):
    logs.path("dep_1").write_text("one\ntwo\nthree\n")
    assert logs.tail("dep_1", 2) == ["two", "three"]
    assert logs.tail("dep_1", 9) == ["one", "two", "three"]


def test_nothing_written(logs: LogFiles):
    assert logs.tail("dep_1", 9) == []


def test_a_long_one_is_read_from_its_end_in_whole_lines(logs: LogFiles):
    lines = [f"line {number:09}" for number in range(TAIL_BYTES // 10)]
    logs.path("dep_1").write_text("\n".join(lines))
    found = logs.tail("dep_1", len(lines))
    assert TAIL_BYTES - 15 <= len("\n".join(found)) <= TAIL_BYTES
    assert found == lines[-len(found) :]


def test_what_is_no_text_is_shown(logs: LogFiles):
    logs.path("dep_1").write_bytes(b"\xff\xfe broken\n")
    assert logs.tail("dep_1", 1) == ["\ufffd\ufffd broken"]


def test_a_long_one_is_kept_beside_once_and_goes_with_the_deployment(logs: LogFiles):
    path = logs.rotated("dep_1")
    assert not path.exists()
    path.write_bytes(b"x" * (LIMIT_BYTES + 1))
    assert logs.rotated("dep_1") == path
    assert [one.name for one in logs.folder.iterdir()] == ["dep_1.log.1"]
    path.write_text("new\n")
    logs.path("dep_2").write_text("another's\n")
    logs.remove("dep_1")
    assert [one.name for one in logs.folder.iterdir()] == ["dep_2.log"]
