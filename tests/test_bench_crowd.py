"""The benchmark of fifty models gives ours a quarter of the peer's peak memory."""

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from bench import crowd
from bench.common import Report
from bench.crowd import EARLIER_MIB, OURS, PeerRounds, Size
from bench.peers.servers import TRANSFORMERS_SERVE, Running
from bench.processes import child, suspend

HELD_MIB = 64
PEER = f"""
import http.server

held = bytearray(b"x" * ({HELD_MIB} << 20))


class Peer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{{}}")

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Peer)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def started(*_: Any) -> Generator[Running]:
    """Starts a peer that answers at once and holds memory, and suspends it."""
    with child([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        port = int(process.stdout.readline())
        suspend(process.pid)
        yield Running(f"http://127.0.0.1:{port}", process.pid, 0.0)


def test_the_peers_rounds_give_budget_and_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "started", started)
    monkeypatch.setattr(crowd, "transformers_serve_any", lambda dtype: dtype)
    report = Report("crowd", "title")
    theirs = crowd._of_peer(report, tmp_path, Size(2, 4), ["one", "two"], "float32", 2)
    series = {entry.label: entry.values for entry in report.series}
    assert theirs.rates == series[f"{TRANSFORMERS_SERVE}, requests a second"]
    assert len(theirs.rates) == 2
    assert theirs.peak_mib == max(series[f"{TRANSFORMERS_SERVE}, peak memory"])
    assert HELD_MIB < theirs.peak_mib < 4 * HELD_MIB
    assert series[f"{TRANSFORMERS_SERVE}, failed requests"] == [0, 0]


def test_ratios_skip_rounds_without_an_answer_of_the_peer() -> None:
    report = Report("crowd", "title")
    for rate in (6.0, 8.0, 9.0):
        report.add(f"{OURS}, requests a second", "1/s", rate)
    crowd._add_ratios(report, [OURS], PeerRounds([5.0, None, 6.0]))
    ratios = report.series[-1]
    assert ratios.label == f"{OURS} / {TRANSFORMERS_SERVE}, requests a second"
    assert ratios.values == [1.2, 1.5]
    assert ratios.verdict == "met"
    crowd._add_ratios(report, [OURS], PeerRounds())
    assert ratios.values == [1.2, 1.5]


def test_the_budget_is_a_quarter_of_the_peers_peak() -> None:
    assert crowd.budget_mib(2743.2) == 685
    assert "685 MiB: a quarter" in crowd.budget_note(685, 2743.2)
    assert "2743 MiB" in crowd.budget_note(685, 2743.2)


def test_the_budget_without_the_peer_is_that_of_an_earlier_measurement() -> None:
    assert crowd.budget_mib(0.0) == EARLIER_MIB == 675
    assert "an earlier measurement" in crowd.budget_note(675, 0.0)
