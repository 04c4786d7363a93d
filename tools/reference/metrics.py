"""docs/metrics.md: the families of metrics, as the code makes them."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.metrics_core import Metric

from stoker.base.config import Settings
from stoker.platform.quotas.service import QuotaService
from stoker.server.edge.connections import Connections
from stoker.server.telemetry import families
from stoker.server.telemetry.jobs import queue_lengths
from stoker.server.telemetry.loop_watch import LoopWatch
from stoker.server.telemetry.nodes import of_nodes, refused_connections
from stoker.server.telemetry.quotas import quotas_used
from stoker.store.db import Database
from stoker.tenancy.usage.metrics import balances_left
from tools.reference.schemas import table

HEAD = """# Metric reference

Look up a metric of `GET /metrics`, its type, labels and unit. [Metrics](guide/metrics.md) describes
how to collect them. `python -m tools.reference` writes this page from the code.

A histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. `account` is the id of
an account, and `model` the model id of a deployment. `device` is `cuda:N`. Without nodes, `node`
and `id` are empty.
"""
UNITS: Mapping[str, str] = {
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_ratio": "0 to 1",
    "_mib_ms": "MiB-milliseconds",
    "_credits_balance": "credits",
}
"""Maps the ends of names to units. All other metrics are counts."""
SUFFIXES = {"counter": "_total", "info": "_info"}


def sections() -> dict[str, list[Metric]]:
    """Returns all families, without values."""
    return {
        "Calls": [*families.of_calls([])],
        "Replicas and memory": [*families.of_replicas([]), families.of_statuses(Counter())],
        **asyncio.run(_collected()),
    }


async def _collected() -> dict[str, list[Metric]]:
    machine = SimpleNamespace(devices=[])
    runtime = cast("Any", SimpleNamespace(nodes=list, machine=lambda: machine))
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite+aiosqlite:///{Path(folder)}/empty.db")
        await database.migrate()
        settings = Settings(data_dir=Path(folder))
        accounts = [
            *await balances_left(database)(),
            *await quotas_used(database, QuotaService(settings))(),
            *await queue_lengths(database, {})(),
        ]
        await database.close()
    server = [
        *families.of_http({}),
        *await Connections(cast("Any", SimpleNamespace())).collect(),
        *await LoopWatch(1).collect(),
        families.build_info(),
    ]
    nodes = [*await of_nodes(runtime)(), *await refused_connections(("", ""), lambda: 0)()]
    return {
        "GPUs": [family for family in nodes if "_device_" in family.name],
        "Nodes": [family for family in nodes if "_device_" not in family.name],
        "Accounts and jobs": accounts,
        "Server": server,
    }


def page() -> str:
    """Returns the required content of docs/metrics.md."""
    head = ("metric", "type", "labels", "unit", "meaning")
    parts = [HEAD]
    for title, group in sections().items():
        parts += [f"## {title}", "", *table(head, [_row(family) for family in group])]
    return "\n".join(parts).rstrip() + "\n"


def name_of(family: Metric) -> str:
    """Returns the name that queries use, of histograms without a suffix."""
    return family.name + SUFFIXES.get(family.type, "")


def labels_of(family: Metric) -> list[str]:
    """Returns the labels of a family."""
    if family.type == "info":
        return [*family.samples[0].labels]
    return [*vars(family).get("_labelnames", ())]


def _row(family: Metric) -> list[str]:
    unit = next((unit for end, unit in UNITS.items() if family.name.endswith(end)), "count")
    unit = "" if family.type == "info" else unit
    return [
        f"`{name_of(family)}`",
        family.type,
        ", ".join(labels_of(family)),
        unit,
        family.documentation.replace("|", "\\|"),
    ]
