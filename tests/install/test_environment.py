"""Preconditions of the other tests in this folder, and a machine's check in that environment."""

import json
import subprocess

from tests.inspection.test_requirements import distribution, installed
from tests.install.conftest import RUNS
from tests.support.server import INSTALLED

pytestmark = RUNS
LISTING = """
import importlib.metadata, json
print(json.dumps([one.name for one in importlib.metadata.distributions()]))
"""


def test_nothing_else_is_installed() -> None:
    """Only the project's dependencies are installed, and the tools that installed them."""
    completed = subprocess.run(
        [str(INSTALLED), "-c", LISTING], check=True, capture_output=True, timeout=60
    )
    names = {distribution(name) for name in json.loads(completed.stdout)}
    assert names - {"pip", "setuptools", "stoker"} == installed() - {"setuptools"}
