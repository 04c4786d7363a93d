"""`open`, `top`, `logs -f`, bars of usage and completion, as a user sees them on a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

import stoker.demo
from stoker.cli.deployments import added
from tests.cli.support import Cli
from tests.support.deploying import deploy
from tests.support.scraping import scrape, scrape_until
from tests.support.server import Server

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"


def deployed(cli: Cli, name: str) -> str:
    headers = {"authorization": f"Bearer {cli.key}"}
    with httpx.Client(base_url=cli.base_url, headers=headers, timeout=120) as client:
        identifier = deploy(client, MODEL, name)["id"]
        body = {"model": name, "inputs": "Good."}
        client.post("/v1/classifications/text", json=body).raise_for_status()
    return identifier


class TestOpen:
    def test_prints_a_link_that_signs_in_once(self, cli: Cli) -> None:
        ran = cli.run("open", "--no-browser")
        address, _, token = ran.stdout.strip().partition("#link=")
        assert address == f"{cli.base_url}/console/"
        with httpx.Client(base_url=cli.base_url) as browser:
            first = browser.post("/console/session", json={"link": token})
            again = browser.post("/console/session", json={"link": token})
        assert (first.status_code, again.status_code) == (200, 401)
        assert first.json()["scope"] == "account"

    def test_as_json(self, cli: Cli) -> None:
        link = json.loads(cli.run("open", "--json").stdout)
        assert link["object"] == "console.link" and "#link=" in link["url"]


class TestTop:
    def test_one_snapshot_as_json(self, cli: Cli) -> None:
        identifier = deployed(cli, "watched")
        snapshot = json.loads(cli.run("top", "--json").stdout)
        (row,) = snapshot["deployments"]
        assert (row["id"], row["model"], row["status"]) == (identifier, "watched", "ready")
        assert row["replicas"] == 1 and row["p50_ms"] > 0 and row["requests_per_s"] > 0
        assert snapshot["memory"]["budget_bytes"] >= snapshot["memory"]["held_bytes"] > 0

    def test_one_snapshot_as_a_table_where_there_is_no_terminal(self, cli: Cli) -> None:
        deployed(cli, "shown")
        lines = cli.run("top").stdout.splitlines()
        assert re.match(r"Memory [█░]{30} .+ of .+", lines[0])
        row = next(line for line in lines if line.startswith("shown"))
        assert row.split()[1] == "ready"


class TestLogs:
    def test_are_followed(self, cli: Cli, server: Server) -> None:
        deployed(cli, "followed")
        labels = {"route": "/v1/deployments/{deployment_id}/logs"}
        with server.client(server.operator_key) as operator:
            before = scrape(operator).get("stoker_http_requests_total", **labels)
            process = cli.popen("logs", "-f", "followed", "--tail", "5")
            try:
                # The command requests the last lines, all lines, and the new ones.
                scrape_until(operator, "stoker_http_requests_total", before + 3, **labels)
                assert process.poll() is None
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
            finally:
                process.kill()
                process.wait()
        assert process.returncode == 0, err

    def test_what_is_new(self) -> None:
        assert added([], ["a"]) == ["a"]
        assert added(["a", "b"], ["a", "b"]) == []
        assert added(["a", "b"], ["b", "c"]) == ["c"]
        assert added(["b"], ["a", "b", "c", "d"]) == ["c", "d"]
        assert added(["x", "a"], ["x", "a", "a"]) == ["a"]
        assert added(["a", "b"], ["p", "q"]) == ["p", "q"]


class TestUsage:
    def test_has_bars(self, cli: Cli) -> None:
        deployed(cli, "paid")
        deadline = time.monotonic() + 40
        while "█" not in (shown := cli.run("usage").stdout):
            assert time.monotonic() < deadline, shown
            time.sleep(1)
        row = next(line for line in shown.splitlines() if "█" in line)
        assert 1 <= len(re.findall("█", row)) <= 20


def test_completion_is_there() -> None:
    environment = {**os.environ, "_STOKER_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": "stoker to", "COMP_CWORD": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[0] = 'stoker'\n"
         "from stoker.cli.main import app\napp(prog_name='stoker')"],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert "top" in ran.stdout.split(), ran
