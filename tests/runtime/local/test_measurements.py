"""Measurements that cannot be written do not affect running work."""

import hashlib
import importlib.metadata
from pathlib import Path

import pytest

from stoker.runtime.local.memory.measurements import Measurements
from stoker.wire.protocol import ChosenPrecision, Sharing

SOURCE, KEY = "upl_1", "cpu"


def in_the_way(folder: Path, source: str = SOURCE) -> Path:
    """Creates a folder at the file's path, so that no process can write the file, not even as
    root.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:32]
    path = folder / f"batch-{digest}.json"
    path.mkdir(parents=True)
    return path


@pytest.mark.fault("c6")
def test_they_are_known_and_written_later(tmp_path: Path) -> None:
    folder = in_the_way(tmp_path)
    findings = Measurements(tmp_path)
    findings.keep_sharing(SOURCE, KEY, Sharing.PADDED)
    findings.keep_budget(SOURCE, f"torch-{KEY}", 64)
    findings.keep_device_bytes(SOURCE, KEY, 1000)
    assert findings.sharing(SOURCE, KEY) is Sharing.PADDED
    assert findings.budgets(SOURCE, KEY) == {"torch": 64}
    findings.write_unwritten()
    assert Measurements(tmp_path).device_bytes(SOURCE, KEY) is None
    folder.rmdir()
    findings.write_unwritten()
    again = Measurements(tmp_path)
    assert again.sharing(SOURCE, KEY) is Sharing.PADDED
    assert again.budgets(SOURCE, KEY) == {"torch": 64}
    assert again.device_bytes(SOURCE, KEY) == 1000


@pytest.mark.fault("c6")
def test_what_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk writes the first bytes of a file or none. The existing measurements stay."""
    Measurements(tmp_path).keep_budget(SOURCE, f"torch-{KEY}", 64)

    def full(path: Path, text: str) -> int:
        path.write_bytes(text.encode()[:5])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        Measurements(tmp_path).keep_budget(SOURCE, f"openvino-{KEY}", 32)
    assert Measurements(tmp_path).budgets(SOURCE, KEY) == {"torch": 64}


class TestSameFiles:
    """Models with the same files, as uploaded twice by one account."""

    def test_one_uses_the_measurements_of_the_other(self, tmp_path: Path) -> None:
        findings = Measurements(tmp_path)
        findings.adopt(SOURCE, "files")
        findings.keep_sharing(SOURCE, KEY, Sharing.PADDED)
        findings.keep_budget(SOURCE, f"torch-{KEY}", 64)
        # A server that was restarted in between knows them, too.
        for known in (findings, Measurements(tmp_path)):
            source = f"upl_{id(known)}"
            known.adopt(source, "files")
            assert known.sharing(source, KEY) is Sharing.PADDED
            assert known.sharing(source, "cuda") is None
            assert known.budgets(source, KEY) == {"torch": 64}
        findings.forget(SOURCE)
        assert Measurements(tmp_path).sharing(source, KEY) is Sharing.PADDED

    def test_a_later_finding_is_used_as_well(self, tmp_path: Path) -> None:
        findings = Measurements(tmp_path)
        findings.adopt(SOURCE, "files")
        findings.adopt("upl_2", "files")
        findings.keep_sharing(SOURCE, KEY, Sharing.PADDED)
        findings.keep_budget(SOURCE, f"torch-{KEY}", 64)
        findings.keep_budget("upl_2", f"torch-{KEY}", 32)
        assert findings.sharing("upl_2", KEY) is None
        findings.adopt("upl_2", "files")
        assert findings.sharing("upl_2", KEY) is Sharing.PADDED
        assert findings.budgets("upl_2", KEY) == {"torch": 32}, "its own stays"

    def test_other_files_share_nothing(self, tmp_path: Path) -> None:
        findings = Measurements(tmp_path)
        findings.adopt(SOURCE, "files")
        findings.keep_sharing(SOURCE, KEY, Sharing.PADDED)
        findings.adopt("upl_2", "others")
        assert findings.sharing("upl_2", KEY) is None
        findings.forget(SOURCE)
        findings.adopt("upl_3", "files")
        assert findings.sharing("upl_3", KEY) is None

    def test_findings_of_other_libraries_are_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        findings = Measurements(tmp_path)
        findings.adopt(SOURCE, "files")
        findings.keep_sharing(SOURCE, KEY, Sharing.PADDED)

        def version(_name: str) -> str:
            return "0.0.0"

        monkeypatch.setattr(importlib.metadata, "version", version)
        later = Measurements(tmp_path)
        later.adopt("upl_2", "files")
        assert later.sharing("upl_2", KEY) is None

    @pytest.mark.parametrize("content", ["", "[]", "{", "null"])
    def test_damaged_files_are_ignored(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "batch-1.json").write_text(content)
        findings = Measurements(tmp_path)
        findings.adopt(SOURCE, "files")
        assert findings.sharing(SOURCE, KEY) is None


def test_lost_recordings_are_kept_by_model_and_device(tmp_path: Path) -> None:
    findings = Measurements(tmp_path)
    assert findings.lost_recordings(SOURCE, KEY) == []
    assert findings.keep_lost_recording(SOURCE, KEY, "a") == 1
    assert findings.keep_lost_recording(SOURCE, KEY, "a") == 1
    assert findings.keep_lost_recording(SOURCE, KEY, "b") == 2
    assert findings.keep_lost_recording(SOURCE, KEY, "c") == 2
    again = Measurements(tmp_path)
    assert again.lost_recordings(SOURCE, KEY) == ["b", "c"]
    assert again.lost_recordings(SOURCE, "cuda") == []
    again.forget(SOURCE)
    assert again.lost_recordings(SOURCE, KEY) == []


def test_of_a_model_that_is_gone_nothing_is_written(tmp_path: Path) -> None:
    folder = in_the_way(tmp_path)
    findings = Measurements(tmp_path)
    findings.keep_budget(SOURCE, f"torch-{KEY}", 64)
    findings.forget(SOURCE)
    folder.rmdir()
    findings.write_unwritten()
    assert not [*tmp_path.iterdir()]


def test_a_chosen_precision(tmp_path: Path) -> None:
    findings = Measurements(tmp_path)
    assert findings.precision(SOURCE, KEY) is None
    chosen = ChosenPrecision("bfloat16", "It agrees.")
    findings.keep_precision(SOURCE, KEY, chosen)
    assert Measurements(tmp_path).precision(SOURCE, KEY) == chosen
    assert Measurements(tmp_path).precision(SOURCE, "other") is None
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace("bfloat16", "float8"))
    assert Measurements(tmp_path).precision(SOURCE, KEY) is None, "it is chosen again"
