"""Every family that docs/tasks.md claims, in the environment that `make install` makes.

Each model is pushed to a server in the users' environment. Its answer must equal the answer in the
tests' environment, which tests/tasks compare with the libraries.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.models.tasks.registry import TASKS
from tests.install.conftest import RUNS
from tests.install.families import body, builder, claimed
from tests.support.deploying import push

pytestmark = RUNS
REFUSED = {("table-question-answering", "tapas"): ("pandas", "tables")}
"""Families that require an extra, with the package that it installs and the extra's name."""


@pytest.mark.release
@pytest.mark.parametrize(
    ("task", "path", "family"),
    [pytest.param(*claim, id=f"{claim[0]} {claim[2]}") for claim in claimed()],
)
def test_answers_as_elsewhere(
    task: str, path: str, family: str, users: httpx.Client, compared: Any, tmp_path: Path
) -> None:
    build = builder(task, family)
    if (needed := REFUSED.get((task, family))) is None:
        pipeline = TASKS[task].pipeline if task in TASKS else ""
        assert compared(build, pipeline, path, body(task, family))
        return
    package, extra = needed
    build(tmp_path)
    advice = rf"needs {package}, of the extra '{extra}'\. Install it on the server"
    with pytest.raises(AssertionError, match=advice):
        push(users, tmp_path)
