"""The command that adds an extra to this checkout. tests/packaging tests other installations."""

import shlex
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from stoker.base import extras

ROOT = Path(__file__).parents[1]
PIP = f"{shlex.quote(sys.executable)} -m pip install"
IN_CHECKOUT = f"{PIP} {shlex.join(['-c', f'{ROOT}/constraints.txt', '-e', f'{ROOT}[ray]'])}"


def test_extra() -> None:
    assert extras.install_command("ray") == IN_CHECKOUT


def test_extra_of_a_checkout_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.install_command.__wrapped__("ray") == IN_CHECKOUT


def test_package() -> None:
    expected = f"{PIP} 'openvino<2026.5,>=2026.4'"
    assert extras.install_package_command("openvino") == expected
    assert extras.install_package_command("timm") == f"{PIP} timm"
