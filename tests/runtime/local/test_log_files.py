from pathlib import Path

import pytest

from stoker.runtime.local.processes.log_files import LIMIT_BYTES, TAIL_BYTES, LogFiles


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
    tail = logs.tail("dep_1", len(lines))
    assert TAIL_BYTES - 15 <= len("\n".join(tail)) <= TAIL_BYTES
    assert tail == lines[-len(tail) :]


def test_what_is_no_text_is_shown(logs: LogFiles):
    logs.path("dep_1").write_bytes(b"\xff\xfe broken\n")
    assert logs.tail("dep_1", 1) == ["\ufffd\ufffd broken"]


def test_of_one_longer_than_is_read_there_is_its_end(logs: LogFiles):
    logs.path("dep_1").write_text("x" * 10_000_000 + "end\n")
    [line] = logs.tail("dep_1", 9)
    assert line.startswith("…xx")
    assert line.endswith("xend")
    assert len(line) <= TAIL_BYTES
    logs.cut(logs.path("dep_1"))
    assert logs.tail("dep_1", 9) == [line]
    with logs.path("dep_1").open("a") as writing:
        writing.write("next\n")
    assert logs.tail("dep_1", 9) == ["next"]


class TestL6:
    def test_long_one_is_cut_while_it_is_written(self, logs: LogFiles):
        path = logs.path("dep_1")
        line = b"a model that prints a lot\n"
        with path.open("ab", buffering=0) as writing:
            for number in range(4):
                writing.write(line * (LIMIT_BYTES // len(line) + 1))
                assert logs.is_long(path)
                logs.cut(path)
                writing.write(b"line %d\n" % number)
                assert logs.tail("dep_1", 2) == [line.decode().strip(), f"line {number}"]
        assert [log_file.name for log_file in sorted(logs.folder.iterdir())] == [
            "dep_1.log",
            "dep_1.log.1",
        ]
        assert (
            sum(log_file.stat().st_size for log_file in logs.folder.iterdir()) <= LIMIT_BYTES + 100
        )
        assert path.with_suffix(".log.1").read_bytes().endswith(line)

    def test_both_go_with_the_deployment(self, logs: LogFiles):
        logs.path("dep_1").write_bytes(b"x" * (LIMIT_BYTES + 1))
        logs.cut(logs.path("dep_1"))
        logs.path("dep_2").write_text("another's\n")
        logs.remove("dep_1")
        assert [log_file.name for log_file in logs.folder.iterdir()] == ["dep_2.log"]


def test_whose_files_there_are(logs: LogFiles):
    for path in (logs.host, logs.conversions, logs.path("dep_1"), logs.path("dep_2")):
        path.write_text("line\n" * (LIMIT_BYTES // 5 + 1))
        logs.cut(path)
    assert logs.deployments() == {"dep_1", "dep_2"}
    logs.remove("dep_1")
    assert logs.deployments() == {"dep_2"}
