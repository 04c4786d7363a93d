import contextlib
import gc
import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from stoker import sandbox
from stoker.sandbox.priority import share_cores
from tests.deployments.support import bert
from tests.support import tiers
from tests.support.examples import ALWAYS_THE_SAME
from tests.support.server import NAMES, ON_NODES, PAGES, WITHOUT_MODELS, Server, running
from tests.support.tracing import Collector, collecting

# Must be set before torch is loaded. With such small models, threads would only wait for each
# other, which costs twice as much processor time. Spinning costs even more.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sandbox.tell_nobody()
# The process that starts the tests may have a real-time policy.
share_cores()
# Generated inputs are the same in each run, and a shared machine may be slow at generating them.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=ALWAYS_THE_SAME,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


DEMO, OPENAI = "tests/demo/", "tests/openai/"
AGENTS, INSTALL = "tests/agents/", "tests/install/"
SHARING: Mapping[str, Sequence[str]] = {
    "demo": ("tests/demo/test_",),
    "install": (
        INSTALL,
        "tests/accounts/",
        "tests/artifacts/",
        "tests/client/test_push.py",
        "tests/files/",
        "tests/keys/",
        "tests/server/",
        "tests/web/",
    ),
    "buckets": ("tests/buckets/",),
    "nodes": ("tests/nodes/",),
    "cluster": ("tests/cluster/",),
    "servers": ("tests/servers/",),
    "openai": (
        OPENAI,
        "tests/other_servers/",
        "tests/cli/",
        "tests/client/test_library.py",
        "tests/client/test_retries.py",
        "tests/client/test_wheel.py",
        "tests/engines/test_environments.py",
        "tests/engines/test_sharing.py",
        "tests/tasks/test_embeddings",
        "tests/tasks/test_openai_embeddings.py",
        # These need no server, but the same library as the previous three, which is slow to import.
        "tests/tasks/test_rerank.py",
        "tests/tasks/test_sentence_transformers.py",
        "tests/tasks/test_similarity.py",
        "tests/tasks/test_text_over_http.py",
        "tests/telemetry/test_dashboard.py",
        "tests/telemetry/test_metrics.py",
        "tests/usage/test_over_http.py",
    ),
    "agents": (
        AGENTS,
        "tests/deployments/",
        "tests/smoke/",
        "tests/telemetry/test_traces.py",
        "tests/trials/",
        "tests/videos/test_videos.py",
    ),
}
"""Maps each group to the prefixes of its files. A group runs in one process, file by file, because
its files share servers and loaded models. Starting a server with models takes ten seconds of a
core.
"""
SLOW = (
    INSTALL,
    DEMO,
    OPENAI,
    AGENTS,
    "tests/videos/",
    "tests/buckets/",
    "tests/cluster/",
    "tests/nodes/",
    "tests/servers/",
    "tests/packaging/",
    "tests/ray/",
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
    "tests/trials/",
    "tests/adapters/",
    "tests/batches/",
    "tests/launch/",
    "tests/rollouts/",
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
"""Files that start first, so that none of them still runs in one process after the other has
finished.
"""


def pytest_collection() -> None:
    # Imported objects stay alive. Collecting garbage among them takes a fifth of the time.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        tiers.mark(item)
    if ON_NODES:
        for item in items:
            if item.get_closest_marker("one_machine"):
                item.add_marker(pytest.mark.skip("it is about a server that runs replicas itself"))
    items.sort(
        key=lambda item: next(
            (at for at, slow in enumerate(SLOW) if item.nodeid.startswith(slow)), len(SLOW)
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assigns whole files to each process, and each group of `SHARING` to one of them.

    (pytest-xdist's own groups do not work with this pytest, because they depend on a removed
    attribute.)
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next(
                (group for group, begin in SHARING.items() if path.startswith(tuple(begin))), path
            )

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    tiers.begin(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the server's answer and the servers' log lines to the report of a failed test."""
    report = yield
    if report.failed and call.excinfo:
        error = call.excinfo.value
        if isinstance(error, httpx.HTTPStatusError):
            with contextlib.suppress(httpx.StreamError):
                report.sections.append(("answer", error.response.text[:4_000]))
        for server in reversed(Server.started):
            if lines := server.last_lines():
                report.sections.append((f"log of {server.log.name}", lines))
    return report


@pytest.fixture(autouse=True)
def takes_turns() -> Iterator[None]:
    """Restores the ordinary scheduling policy after each test. SVT-AV1 sets its calling thread to
    real time if it may, and does not reset it. Later tests and their servers would keep all other
    processes from the cores.
    """
    yield
    share_cores()


@pytest.fixture(autouse=True)
def loop_was_not_held() -> Iterator[None]:
    """Fails a test during which a server's event loop step computed for too long."""
    yield
    lines = [line for server in Server.started for line in server.held_loop()]
    assert not lines, "\n".join(lines)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server, shared by tests that do not damage it."""
    # Some of them do not read their answers.
    env = {"STOKER_ANSWER_TIMEOUT_S": "5"}
    with running(tmp_path_factory.mktemp("server") / "data", **env) as server:
        yield server


@pytest.fixture(scope="session")
def restartable(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Iterator[Server]:
    """A server that tests kill and restart on the same port, with settings that users can see."""
    env = {
        "STOKER_TOOL_PRIVATE_HOSTS": '["127.0.0.1"]',
        "STOKER_TOOL_TIMEOUT_S": "3",
        "STOKER_JOB_LEASE_S": "5",
        "STOKER_JOBS_QUEUED": "6",
        "STOKER_SOURCE_DIRS": f'["{sources}"]',
    }
    with running(tmp_path_factory.mktemp("restartable") / "data", **env) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source folder as an operator configures it, with a model inside and a link that leads
    outside.
    """
    named = tmp_path_factory.mktemp("sources")
    outside = tmp_path_factory.mktemp("outside") / "model"
    outside.symlink_to(bert())
    (named / "tagger").mkdir()
    for file in bert().iterdir():
        (named / "tagger" / file.name).write_bytes(file.read_bytes())
    (named / "link").symlink_to(bert())
    (named / "empty").mkdir()
    return named


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def traced_server(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with files and traces that tests search. Only such tests may write to it."""
    with running(tmp_path_factory.mktemp("traced") / "data", **collector.env) as server:
        server.wait_ready()
        yield server


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without models, with low limits, that accepts only some hosts and pages."""
    with running(
        tmp_path_factory.mktemp("gateway") / "data",
        STOKER_LOG_LEVEL="debug",
        STOKER_UPLOAD_PART_MIB="1",
        STOKER_ARTIFACT_LIMIT_GIB=str(8 / 1024),
        STOKER_ARTIFACT_FILES_LIMIT="8",
        STOKER_ALLOWED_HOSTS=json.dumps(NAMES),
        STOKER_CORS_ORIGINS=json.dumps(PAGES),
        **WITHOUT_MODELS,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def mortal_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without models that tests may damage and restart. Its upload parts are small, so
    that files have many of them.
    """
    data_dir = tmp_path_factory.mktemp("mortal") / "data"
    with running(data_dir, STOKER_UPLOAD_PART_MIB="1", **WITHOUT_MODELS) as server:
        yield server
