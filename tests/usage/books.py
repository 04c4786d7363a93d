"""Checks over HTTP that an account's bill, ledger and balance agree."""

from collections.abc import Iterable, Sequence
from typing import Any

import httpx

from tests.usage.test_over_http import (
    CREDITS,
    EVENTS,
    STARTING,
    TRANSFERS,
    listed,
    until,
    usage,
)


def closed(clients: Sequence[httpx.Client], deployments: Iterable[dict[str, Any]]) -> Any:
    """Deletes everything that an account pays for, through the last server, and asserts that the
    books balance on each server. Returns the usage report.
    """
    first, last = clients[0], clients[-1]
    # Storage is measured in ticks. Artifacts that no tick has seen would cost nothing.
    until(lambda: any(event["type"] == "storage" for event in listed(first, EVENTS)))
    for item in deployments:
        last.delete(f"/v1/deployments/{item['id']}").raise_for_status()
        first.delete(f"/v1/model-artifacts/{item['artifact_id']}").raise_for_status()
    until(lambda: all(e["is_final"] for e in listed(first, EVENTS) if e["type"] != "calls"))
    report, *other_reports = [usage(client) for client in clients]
    assert all(item["data"] == report["data"] for item in other_reports)
    total = report["total"]
    assert total["storage_mib_ms"] > 0
    exact = (total["memory_mib_ms"] - total["flex_mib_ms"] / 2) * 1_000_000 / 3_686_400_000
    exact += total["storage_mib_ms"] * 1_000_000 / 2_654_208_000_000
    assert total["microcredits"] <= exact < total["microcredits"] + 1
    charges = [item for item in listed(last, TRANSFERS) if item["event_id"]]
    assert -sum(item["microcredits"] for item in charges) == total["microcredits"]
    account_credits = first.get(CREDITS).raise_for_status().json()
    assert account_credits["balance_microcredits"] == STARTING - total["microcredits"]
    assert account_credits["pending_microcredits"] == 0
    return report
