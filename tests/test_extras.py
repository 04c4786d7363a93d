"""The command that adds an extra fits the way in which Stoker was installed."""

import json
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from stoker.base import extras


class Installed:
    """An installed package as `importlib.metadata` describes it."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files
        self.metadata = Message()

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)


def command(prefix: str = "/env", installer: str = "pip", origin: Any = None) -> str:
    files = {"INSTALLER": f"{installer}\n"}
    if origin is not None:
        files["direct_url.json"] = json.dumps(origin)
    return extras._command(Installed(files), "postgres", prefix)  # type: ignore[arg-type]


def test_checkout(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").touch()
    origin = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    expected = "pip install -c constraints.txt -e '.[postgres]' (in the checkout of Stoker)"
    assert command(f"{tmp_path}/.venv", origin=origin) == f".venv/bin/{expected}"
    assert command(origin=origin) == expected
    assert command(installer="uv", origin=origin) == f"uv {expected}"


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "'stoker[postgres]'"),
        (
            {"url": "https://files.example/stoker.whl", "archive_info": {}},
            "'stoker[postgres] @ https://files.example/stoker.whl'",
        ),
        (
            {"url": "https://git.example/stoker", "vcs_info": {"vcs": "git"}},
            "'stoker[postgres] @ git+https://git.example/stoker'",
        ),
    ],
)
def test_from_elsewhere(origin: Any, expected: str) -> None:
    assert command(origin=origin) == f"pip install {expected}"


def test_here() -> None:
    """The tests run in a checkout."""
    assert extras.install_command("ray").endswith("-e '.[ray]' (in the checkout of Stoker)")
