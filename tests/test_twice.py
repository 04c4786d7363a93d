"""CI repeats some failed tests and not others."""

from pathlib import Path

import pytest

from tools import twice

UNSTEADY = """
from pathlib import Path
def test_fails_at_first():
    seen = Path(__file__).with_name("seen")
    is_first = not seen.exists()
    seen.touch()
    assert not is_first
"""
BROKEN = "def test_broken():\n    assert False\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate project folder for pytest."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    # Plugins take seconds to import.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(twice, "ROOT", tmp_path)
    cache = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    monkeypatch.setattr(twice, "LAST_FAILED", cache)
    return tmp_path


def ran(folder: Path, *arguments: str, **files: str) -> int:
    for name, content in files.items():
        (folder / f"test_{name}.py").write_text(content)
    return twice.main(["-q", *arguments])


def test_a_failure_that_passes_by_itself_is_named(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ran(folder, one=UNSTEADY, two="def test_good():\n    pass\n") == 0
    assert "Flaky, passed alone: test_one.py::test_fails_at_first" in capfd.readouterr().out


def test_a_failed_fixture_counts_as_one_failure(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fixture = UNSTEADY.replace("def test_fails_at_first():", "def begun():")
    fixture = fixture.replace("def begun", "@pytest.fixture(scope='module')\ndef begun")
    tests = "".join(f"def test_{number}(begun):\n    pass\n" for number in range(twice.MOST + 1))
    assert ran(folder, one=f"import pytest\n{fixture}{tests}") == 0
    assert "Flaky, passed alone: test_one.py::test_0, " in capfd.readouterr().out


def test_what_fails_twice_fails(folder: Path) -> None:
    assert ran(folder, one=UNSTEADY, two=BROKEN) == 1


def test_many_failures_are_no_accident(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {
        f"number{number}": UNSTEADY.replace('"seen"', f'"seen{number}"') for number in range(4)
    }
    assert ran(folder, **files) == 1
    assert "Retried" not in capfd.readouterr().out


def test_tests_that_were_not_run_are_not_forgotten(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """After an interruption, failed tests are not repeated, because the later tests have no
    result.
    """
    later = "import pytest\ndef test_end():\n    pytest.exit('over', returncode=2)\n"
    assert ran(folder, one=UNSTEADY, two=later) == 2
    assert "Retried" not in capfd.readouterr().out
