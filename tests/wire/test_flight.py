import os
import signal
from pathlib import Path

from stoker.wire.flight import CAPACITY, FlightRecord, read, read_recording


def test_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "flight"
    pid = os.fork()
    if pid == 0:
        record = FlightRecord(path)
        record.set(0, [7])
        record.set(1, [8, 9, 9])
        record.note_recording("input_ids 4x32")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert read(path) == {7, 8, 9}
    assert read_recording(path) == "input_ids 4x32"


def test_done_is_empty(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "flight")
    record.set(1, [8])
    record.set(1, [])
    assert read(tmp_path / "flight") == set()


def test_is_bounded(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "flight")
    record.set(0, range(1, 10_000))
    assert read(tmp_path / "flight") == set(range(1, CAPACITY + 1))


def test_missing_or_damaged(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == set()
    (tmp_path / "damaged").write_bytes(b"\xff" * 100)
    assert read(tmp_path / "damaged") == set()
    assert read_recording(tmp_path / "none") == read_recording(tmp_path / "damaged") == ""


def test_a_recording_ends(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "flight")
    assert read_recording(tmp_path / "flight") == ""
    record.note_recording("é" * 300)
    assert read_recording(tmp_path / "flight") == "é" * 127
    record.note_recording("")
    assert read_recording(tmp_path / "flight") == ""
