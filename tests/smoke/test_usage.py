import time
from collections.abc import Callable
from typing import Any

import httpx


def test_calls_and_memory_are_counted(
    smoke: httpx.Client, deployed: Callable[[str], dict[str, Any]]
) -> None:
    deployed("tiny-ner")
    smoke.post(
        "/v1/classifications/token", json={"model": "tiny-ner", "inputs": "Emma"}
    ).raise_for_status()
    deadline = time.monotonic() + 60
    while not (total := smoke.get("/v1/usage").raise_for_status().json()["total"])["memory_mib_ms"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert total["storage_mib_ms"] > 0
    account_credits = smoke.get("/v1/credits").raise_for_status().json()
    assert account_credits["balance_microcredits"] < 1_000_000_000_000
