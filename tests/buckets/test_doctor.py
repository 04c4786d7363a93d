"""`stoker doctor` and a bucket."""

from pathlib import Path

import pytest

from stoker.cli import bucket_health, doctor
from stoker.cli.verdicts import DoctorVerdict
from tests.support.bucket import Proxy


@pytest.fixture
def settings(url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_BLOB_URL", url)
    monkeypatch.setenv("STOKER_DATA_DIR", str(tmp_path))


@pytest.mark.usefixtures("settings")
class TestBucket:
    def test_works(self) -> None:
        checks = {check.name: check for check in doctor._bucket()}
        assert {name: check.status for name, check in checks.items()} == {
            "bucket: write": DoctorVerdict.OK,
            "bucket: read": DoctorVerdict.OK,
            "bucket: list": DoctorVerdict.OK,
            "bucket: delete": DoctorVerdict.OK,
            "bucket: clock": DoctorVerdict.OK,
        }

    def test_says_what_does_not(self, proxy: Proxy) -> None:
        proxy.fail(403, method="GET")
        *works, last = doctor._bucket()
        assert [check.name for check in works] == ["bucket: write"]
        assert (last.name, last.status) == ("bucket", DoctorVerdict.FAIL)
        assert "read" in last.found
        assert "AWS_ENDPOINT_URL" in last.hint

    def test_another_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert bucket_health.check_clock(-300.0).status is DoctorVerdict.WARN
        assert bucket_health.check_clock(1.0).status is DoctorVerdict.OK


def test_nothing_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_BLOB_URL", raising=False)
    assert doctor._bucket() == []
