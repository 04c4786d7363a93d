"""Benchmarks measure a user's experience and report all of their settings."""

import ast
import http.server
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import common, launching, machine, settings, wrk
from bench.client import Connection, HttpError
from bench.common import Plan, Report
from bench.peers import environments
from bench.peers.environments import CONSTRAINTS, ENVIRONMENTS, NotMadeError
from bench.server import running
from stoker.base.config import Settings
from tests.support.server import ONE_THREAD

BENCH = Path(common.__file__).parent
WHAT_OTHERS_SET = {
    **ONE_THREAD,
    "STOKER_LOG_LEVEL": "error",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "ACTIVE",
    "MKL_NUM_THREADS": "1",
    "LD_PRELOAD": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell environment that sets every variable that could change a figure."""
    for name, value in WHAT_OTHERS_SET.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def report() -> Report:
    return Report("name", "title")


@pytest.mark.usefixtures("shell")
def test_what_is_measured_gets_only_the_variables_that_the_report_tells(
    report: Report, tmp_path: Path
) -> None:
    environment = {"STOKER_MEMORY_BUDGET_MIB": "500", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    with launching.started(report, "peer", command, environment, tmp_path / "log") as process:
        process.wait(60)
    got = json.loads((tmp_path / "log").read_text())
    assert {name: got[name] for name in got if name.startswith(launching.TELLING)} == environment
    assert report.settings["peer"]["environment"] == environment
    assert got["PATH"] == os.environ["PATH"]
    assert set(WHAT_OTHERS_SET) <= set(machine.facts()["withheld"])


@pytest.mark.usefixtures("shell")
def test_our_server_is_started_as_its_user_would(report: Report, tmp_path: Path) -> None:
    # Starts without engines, because none is needed here and they take ten seconds to import.
    with running(report, tmp_path, preload=False) as server:
        got = psutil.Process(server.pid).environ()
    ours = {name: got[name] for name in got if name.startswith(launching.TELLING)}
    assert ours == {"STOKER_PRELOAD": "false", "PYTHONPATH": str(common.ROOT)}
    assert report.settings["ours"]["settings"] == {
        "port": {"value": 0, "default": 8000},
        "data_dir": {"value": str(tmp_path / "data"), "default": ".data"},
        "preload": {"value": False, "default": True},
    }
    assert report.settings["ours"]["versions"]["torch"]


def test_benchmarks_use_nothing_of_the_tests() -> None:
    """Benchmarks import nothing from the tests, in particular not their way of starting the
    server.
    """
    for path in BENCH.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[object] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            elif isinstance(node, ast.Constant):
                # A string may name a module that is run.
                names = [node.value]
            assert not any(re.match(r"tests(\.\w+)*$", str(name)) for name in names), path


def test_settings_are_told_with_their_defaults_where_they_differ() -> None:
    chosen = {"memory_budget_mib": 500, "log_level": "info", "tool_private_hosts": ["127.0.0.1"]}
    assert settings.of_server(chosen) == {
        "memory_budget_mib": {"value": 500, "default": 0},
        "tool_private_hosts": {"value": ["127.0.0.1"], "default": []},
    }
    wish = {"model": "mine", "readiness": "hot", "engine": "auto", "replicas": {"max": 2}}
    assert settings.of_deployment(wish) == {
        "readiness": {"value": "hot", "default": "cold"},
        "replicas": {"value": {"max": 2}, "default": {"min": 0, "max": 1}},
    }


def test_settings_reach_the_server_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: dict[str, Any] = {
        "memory_budget_mib": 500,
        "tool_private_hosts": ["127.0.0.1"],
        "preload": False,
        "log_level": "error",
        "data_dir": Path("/somewhere"),
    }
    for name, value in settings.variables(chosen).items():
        monkeypatch.setenv(name, value)
    loaded = Settings(_env_file=None)  # type: ignore[call-arg]
    assert {name: getattr(loaded, name) for name in chosen} == chosen


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no memory_budget in Settings"):
        settings.variables({"memory_budget": 1})
    with pytest.raises(ValueError, match="no threads in DeploymentCreate"):
        settings.of_deployment({"threads": 1})


def test_a_result_tells_settings_machine_spread_and_client(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    for value in (9.0, 10.0, 12.0):
        report.add("ours", "req/s", value, aim="≥ 10", meets=common.at_least(10))
    report.settings["ours"] = {"settings": {"port": {"value": 0, "default": 8000}}}
    report.client.add("ours", cpu_seconds=0.5, seconds=2.0)
    document = common.document(report, machine.facts(), Plan())
    path = common.keep(document)
    stored = json.loads(path.read_text())
    assert stored["settings"] == report.settings
    (series,) = stored["series"]
    assert (series["median"], series["min"], series["max"]) == (10, 9, 12)
    assert series["spread"] == pytest.approx(0.3)
    assert series["verdict"] == "unclear"
    assert stored["client"]["loads"]["ours"]["share_of_cores"] == pytest.approx(
        0.25 / len(os.sched_getaffinity(0))
    )
    facts = stored["machine"]
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert set(facts["flags"]) <= machine.cpu_flags()
    assert len(facts["load"]) == 3
    assert re.fullmatch(r"[0-9a-f]{40}", facts["commit"]["id"])


def test_a_quick_result_is_kept_apart(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    for plan in (Plan(), Plan(rounds=1, quick=True)):
        common.keep(common.document(report, machine.facts(), plan))
    assert json.loads((tmp_path / "name.json").read_text())["rounds"] == 3
    assert json.loads((tmp_path / "quick" / "name.json").read_text())["quick"] is True


def test_who_wants_a_peer_that_is_not_there_is_told_what_makes_it(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    with pytest.raises(NotMadeError) as caught:
        environments.python("litserve")
    assert "make bench-peers PEERS=litserve" in str(caught.value)
    report.left_out("LitServe", caught.value)
    assert "make bench-peers PEERS=litserve" in report.notes[0]
    # An environment that was made from another recipe counts as missing.
    litserve = ENVIRONMENTS["litserve"]
    litserve.folder.mkdir()
    litserve.mark()
    assert environments.python("litserve") == tmp_path / "litserve" / "bin" / "python"
    (litserve.folder / "made.json").write_text('{"recipe": "another"}')
    with pytest.raises(NotMadeError):
        environments.python("litserve")


def test_every_version_of_a_peer_is_pinned() -> None:
    assert {path.stem for path in CONSTRAINTS.iterdir()} == set(ENVIRONMENTS)
    for environment in ENVIRONMENTS.values():
        lines = environment.constraints.read_text().split()
        assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), environment.name
        assert (environments.TORCH in lines) is environment.has_torch
        assert not any(line.startswith(environment.without) for line in lines), environment.name


class Asked(http.server.BaseHTTPRequestHandler):
    """Echoes a posted body, rejects the body `{"n": 3}` with 503, and streams events for GET."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[bytes, str]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.seen.append((body, self.headers["authorization"]))
        self.send_response(503 if body == b'{"n": 3}' else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        text = b"".join(b'event: step\ndata: {"n": %d}\n\n' % number for number in range(3))
        # Chunk boundaries are independent of event boundaries.
        for part in (text[:20], text[20:21], text[21:]):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def asked() -> Iterator[tuple[str, list[tuple[bytes, str]]]]:
    """Yields an address and the list of bodies and keys that were posted to it."""
    posted: list[tuple[bytes, str]] = []
    handler = type("Handler", (Asked,), {"seen": posted})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    # Ignores errors of disconnected clients.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    server.server_close()


def test_wrk_posts_all_bodies_in_turn_and_tells_refusals_apart(
    asked: tuple[str, list[tuple[bytes, str]]],
) -> None:
    try:
        wrk.version()
    except wrk.MissingError:
        pytest.skip("wrk is not installed")
    url, posted = asked
    began = time.monotonic()
    result = wrk.run(f"{url}/v1", "secret", [b'{"n": %d}' % number for number in range(5)], 2, 1)
    took_s = time.monotonic() - began
    assert {key for _, key in posted} == {"Bearer secret"}
    turn = [json.loads(body)["n"] for body, _ in posted]
    # Two clients may overtake each other by one, and the last answer may not have been read.
    assert all(abs(turn.count(number) - turn.count(0)) <= 2 for number in range(5))
    assert result.failure == '503: {"n": 3}'
    assert 0 <= len(posted) - result.answered - result.failed <= 2
    assert result.failed == pytest.approx(len(posted) / 5, abs=2)
    assert 0 < result.p50_ms <= result.p99_ms
    assert 0 < result.seconds < took_s
    assert result.cpu_seconds > 0


def test_who_has_no_wrk_is_told_how_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(wrk.MissingError, match="apt-get install wrk"):
        wrk.version()


def test_the_bare_client_reads_answers_refusals_and_events(
    asked: tuple[str, list[tuple[bytes, str]]],
) -> None:
    url, posted = asked
    with Connection(url, "/v1", "secret") as connection:
        assert connection.post_json("/v1", {"n": 1}) == {"n": 1}
        with pytest.raises(HttpError, match="503"):
            connection.post(b'{"n": 3}')
        assert list(connection.events("/v1/events")) == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert json.loads(connection.post(b'{"n": 4}')) == {"n": 4}
    assert [json.loads(body)["n"] for body, _ in posted] == [1, 3, 4]
