import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker import sandbox
from tests.support.server import Server, running

# Before torch is loaded anywhere. The models are so small that threads would only wait for one
# another, which takes twice as much of the cores; spinning takes more of them still.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sandbox.tell_nobody()


DEMO, OPENAI = "tests/demo/", "tests/openai/"
AGENTS, INSTALL = "tests/agents/", "tests/install/"
SHARING = (DEMO, OPENAI, AGENTS, INSTALL)
SLOW = (
    INSTALL,
    DEMO,
    OPENAI,
    AGENTS,
    "tests/videos/",
    "tests/test_faults.py",
    "tests/tasks/test_speech_recognition.py",
    "tests/stages/test_whisper.py",
    "tests/runtime/",
    "tests/usage/",
    "tests/llm/",
    "tests/chat/",
    "tests/cli/",
    "tests/client/",
    "tests/deployments/",
    "tests/artifacts/",
    "tests/inference/",
    "tests/telemetry/",
    "tests/engines/",
    "tests/web/",
    "tests/test_",
    "tests/store/",
    "tests/keys/",
    "tests/server/",
)
"""Begun first, so that no process is left with them when the other has finished."""


def pytest_collection() -> None:
    # What is imported stays: looking for garbage among it takes a fifth of the time.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: next(
            (at for at, slow in enumerate(SLOW) if item.nodeid.startswith(slow)), len(SLOW)
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole files to each process, and to one of them all that share a server and its models.

    (pytest-xdist's own groups do not work with this pytest: they go by an attribute that is gone.)
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            folder = f"{Path(path).parent.as_posix()}/"
            return folder if folder in SHARING else path

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One real server, shared by the tests that do not harm it."""
    data_dir: Path = tmp_path_factory.mktemp("server") / "data"
    with running(data_dir) as server:
        yield server
