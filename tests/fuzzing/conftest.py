import json
import os
import resource
from pathlib import Path

import pytest

from tests.fuzzing.support import TALLY, counts

failed: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and os.environ.get(TALLY):
        failed[report.nodeid] = report.longreprtext[-4000:]


def pytest_sessionfinish() -> None:
    if place := os.environ.get(TALLY):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        tally = {"properties": counts, "failed": failed, "peak_mib": peak}
        Path(place).write_text(json.dumps(tally))
