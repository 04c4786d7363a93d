"""Background work on a real server has its own price, and a live call ends it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import stoker.demo
from tests.support.deploying import deploy
from tests.support.server import Server
from tests.usage.books import closed
from tests.usage.test_over_http import EVENTS, TRANSFERS, listed, until, usage

TINY_CHAT = Path(stoker.demo.__file__).parent / "models" / "tiny-chat"
MICROCREDITS_PER_MIB_MS = 1_000_000 / 3_686_400_000


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    server.wait_ready()
    with server.account("background") as client:
        yield client


def work(client: httpx.Client, tier: str) -> float:
    """Makes calls of some seconds, and returns their duration in seconds."""
    prompts = [[number % 100 + 5] * 400 for number in range(128)]
    asked = {"model": "bg", "prompt": prompts, "max_tokens": 64, "ignore_eos": True}
    begun = time.monotonic()
    client.post("/v1/completions", json={**asked, "service_tier": tier}).raise_for_status()
    return time.monotonic() - begun


def flex_of(client: httpx.Client) -> list[dict[str, Any]]:
    return listed(client, EVENTS, type="flex")


@pytest.mark.release
def test_a_bill_of_background_work_and_live_calls(client: httpx.Client) -> None:
    deployed = deploy(client, TINY_CHAT, "bg", engine="torch", readiness="cold")
    # The model loads at the full price.
    work(client, "flex")
    seconds = work(client, "flex")
    until(lambda: usage(client)["total"]["flex_mib_ms"] > 0)
    # A live call arrives while background work is running.
    background = threading.Thread(target=work, args=(client, "flex"))
    background.start()
    time.sleep(0.3)
    work(client, "default")
    background.join()
    work(client, "flex")
    report = closed([client], [deployed])
    total = report["total"]
    events = flex_of(client)
    assert sum(event["mib_ms"] for event in events) == total["flex_mib_ms"]
    peak = max(event["peak_mib"] for event in events)
    # Only the calls until the live one have the price of background work.
    assert 0 < total["flex_mib_ms"] <= peak * (2 * seconds + 4) * 1000
    assert total["flex_mib_ms"] < total["memory_mib_ms"]
    exact = total["flex_mib_ms"] * MICROCREDITS_PER_MIB_MS / 2
    assert abs(total["flex_microcredits"] - exact) <= len(events)
    charges = [item for item in listed(client, TRANSFERS) if item["kind"] == "flex"]
    assert -sum(item["microcredits"] for item in charges) == total["flex_microcredits"]
