"""Whether an account's bill, its ledger and its balance say the same, over HTTP."""

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
    """Delete all that an account pays for, through the last of the servers, and have the books
    balance on each; the report of usage.
    """
    first, last = clients[0], clients[-1]
    for one in deployments:
        last.delete(f"/v1/deployments/{one['id']}").raise_for_status()
        first.delete(f"/v1/model-artifacts/{one['artifact_id']}").raise_for_status()
    until(lambda: all(e["is_final"] for e in listed(first, EVENTS) if e["type"] != "calls"))
    report, *others = [usage(client) for client in clients]
    assert all(one["data"] == report["data"] for one in others)
    total = report["total"]
    assert total["storage_mib_ms"] > 0
    exact = total["memory_mib_ms"] * 1_000_000 / 3_686_400_000
    exact += total["storage_mib_ms"] * 1_000_000 / 2_654_208_000_000
    assert total["microcredits"] <= exact < total["microcredits"] + 1
    charges = [one for one in listed(last, TRANSFERS) if one["event_id"]]
    assert -sum(one["microcredits"] for one in charges) == total["microcredits"]
    left = first.get(CREDITS).raise_for_status().json()
    assert left["balance_microcredits"] == STARTING - total["microcredits"]
    assert left["pending_microcredits"] == 0
    return report
