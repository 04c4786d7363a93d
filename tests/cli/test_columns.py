"""Lists on narrow terminals: no ID, number or name is broken or cut."""

import time
from pathlib import Path

import pytest

import stoker.demo
from tests.cli.support import Cli, account_cli
from tests.cli.terminal import Terminal, shown
from tests.support.server import Server

MODEL = Path(stoker.demo.__file__).parent / "models" / "tiny-sentiment"
LONG = "team-4/" + "customer-intent-classifier-" * 3 + "v2"
COUNT = 12


@pytest.fixture(scope="module")
def fleet(server: Server) -> Cli:
    """Returns the command of an account with many deployments, one with a long name, and usage."""
    server.wait_ready()
    cli = account_cli(server, "columns")
    artifact = cli.json("artifacts", "push", str(MODEL), "--name", "columns")["id"]
    for model in (LONG, *(f"model-{number:02}" for number in range(COUNT - 1))):
        cli.json("deploy", model, artifact)
    cli.json("call", LONG, "Good.")
    cli.json("keys", "create", "--deployment", LONG)
    return cli


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (("deployments", "list"), ("id", "model", "pipeline")),
        (("models",), ("id", "pipeline")),
        (("artifacts", "list"), ("id", "pipeline")),
        (("keys", "list"), ("id", "account_id")),
        (("versions", "list", LONG), ("id", "artifact_id")),
        (("deployments", "events", LONG), ("status", "reason")),
    ],
    ids=lambda value: "-".join(value[:2]),
)
def test_lists(fleet: Cli, command: tuple[str, ...], fields: tuple[str, ...], columns: int) -> None:
    words = " ".join(shown(fleet, *command, columns=columns, lines=200)).split()
    rows = fleet.json(*command)
    assert rows
    for row in rows:
        assert [row[field] for field in fields if row[field] not in words] == []


@pytest.mark.parametrize("columns", [80, 60])
def test_usage(fleet: Cli, columns: int) -> None:
    deadline = time.monotonic() + 60
    while fleet.json("usage")["total"]["input_tokens"] == 0:
        assert time.monotonic() < deadline
        time.sleep(1)
    lines = shown(fleet, "usage", "--by", "deployment", columns=columns, lines=200)
    record = dict(
        line.rsplit(maxsplit=1) for line in lines[: lines.index("")] if len(line.split()) > 1
    )
    assert record["MODEL"] == LONG
    assert float(record["CREDITS"]) > 0
    assert record["REQUESTS"] == "1" and int(record["INPUT TOKENS"]) > 0


def test_headers_are_whole(fleet: Cli) -> None:
    for columns in (80, 60, 40):
        text = "\n".join(shown(fleet, "prices", columns=columns))
        assert "PER GIB-MONTH OF STORAGE" in text


class TestTop:
    def test_fits_the_height(self, fleet: Cli) -> None:
        with Terminal(fleet, "top", columns=120, lines=10) as terminal:
            memory, credit, head, *rows, _ = terminal.until("and 6 more").splitlines()
            assert memory.startswith("Memory ") and credit.startswith("Credits ")
            assert head.split()[0] == "MODEL" and len(rows) == COUNT - 6
            terminal.send("\x03")
            terminal.rest()
            assert terminal.code() == 0

    def test_a_narrow_terminal_has_whole_columns(self, fleet: Cli) -> None:
        for columns, last in ((80, "QUEUE    MEMORY"), (60, "P99    MEMORY")):
            with Terminal(fleet, "top", columns=columns, lines=40) as terminal:
                text = terminal.until("model-01")
            [head] = [line for line in text.splitlines() if line.startswith("MODEL")]
            assert " ".join(head.split()).endswith(" ".join(last.split()))
            row = next(line for line in text.splitlines() if line.startswith("team-4"))
            assert row.endswith("MB") and "…" not in row[columns // 2 :]

    def test_shows_all_if_they_fit(self, fleet: Cli) -> None:
        with Terminal(fleet, "top", "--sort", "name", columns=120, lines=40) as terminal:
            text = terminal.until("v2")
            assert "more" not in text.replace("more than ten years", "")
            models = [line.split()[0] for line in text.splitlines() if line.startswith("model-")]
            assert models == [f"model-{number:02}" for number in range(COUNT - 1)]

    def test_order(self, fleet: Cli) -> None:
        by_name = [row["model"] for row in fleet.json("top", "--sort", "name")["deployments"]]
        assert by_name == sorted(by_name) and by_name[-1] == LONG
        # Only one deployment has a loaded replica, requests and latencies.
        for sort in ("requests", "latency", "memory"):
            assert fleet.json("top", "--sort", sort)["deployments"][0]["model"] == LONG
        assert fleet.run("top", "--sort", "colour").returncode == 2
