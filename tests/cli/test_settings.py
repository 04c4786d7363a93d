"""Variables with names similar to a setting."""

import pytest

from stoker.base.config import Settings
from stoker.cli.settings import misspelt


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("STOKER_MEMORY_BUDGET_MB", "STOKER_MEMORY_BUDGET_MIB"),
        ("STOKER_DATADIR", "STOKER_DATA_DIR"),
        ("STOKER_PROT", "STOKER_PORT"),
        ("STOKER_HUB_PRIVATE_HOST", "STOKER_HUB_PRIVATE_HOSTS"),
        ("stoker_apikey", "STOKER_API_KEY"),
    ],
)
def test_is_told_what_was_meant(variable: str, meant: str) -> None:
    (line,) = misspelt([variable, "PATH"], Settings.model_fields)
    assert line == f"{variable} is not a setting and is ignored. Did you mean {meant}?"


def test_others_are_left_alone() -> None:
    ours = [f"STOKER_{name.upper()}" for name in Settings.model_fields]
    foreign = ["STOKER_SERVICE_HOST", "STOKER_SERVICE_PORT", "STOKER_PORT_8000_TCP_ADDR"]
    tests = ["STOKER_TEST_RUNTIME", "STOKER_TEST_EXAMPLES", "STOKER_API_KEY", "STOKER_ACCOUNT"]
    assert misspelt([*ours, *foreign, *tests, "stoker_port"], Settings.model_fields) == []
