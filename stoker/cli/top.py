"""`stoker top`: live view of deployments, memory and waiting models."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson
from stoker.client.client import ApiRequest, Client, JsonObject
from stoker.client.errors import ApiError, BrokenConnectionError, UnreachableError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

EVENTS, DEPLOYMENTS, MACHINE = "/v1/events", "/v1/deployments", "/v1/machine"
SILENCE_S = 30.0
AGAIN_S = 1.0
SortKey = Literal["requests", "errors", "latency", "queue", "memory", "name"]
SORT_FIELDS: Mapping[str, str] = {
    "requests": "requests_per_s",
    "errors": "errors_per_s",
    "latency": "p99_ms",
    "queue": "queue",
    "memory": "memory_bytes",
}
TEN_YEARS = 3650
"""Ten years in days."""
NUMBERS = 76
"""Width of the other columns in characters. The model name gets the rest."""
LEAST_NAME = 16
"""Minimum width of the model name in characters."""
DEVICE = 8
"""Width of the device in characters."""
BAR = 30
"""Width of the memory bar in characters."""
AT_REST: Mapping[str, Any] = {
    "requests_per_s": 0.0,
    "errors_per_s": 0.0,
    "p50_ms": None,
    "p99_ms": None,
    "queue": 0,
    "replicas": 0,
    "memory_bytes": 0,
}
STYLES = {"ready": "green", "starting": "yellow", "stopping": "yellow", "failed": "bold red"}


def top(
    ctx: typer.Context,
    *,
    sort: Annotated[SortKey, typer.Option(help="Column to sort by, largest first.")] = "requests",
    as_json: AsJson = False,
) -> None:
    """Show live requests, latency, memory and waiting models. Stop with Ctrl-C."""
    server, out = client(ctx), output.console()
    snapshots = _snapshots(server, sort)
    if as_json or not out.is_terminal:
        snapshot = next(snapshots)
        if as_json:
            output.print_json(snapshot)
        else:
            out.print(_shown(snapshot, out.width, None))
        return
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(console=out, auto_refresh=False) as live:
        while True:
            try:
                for snapshot in snapshots:
                    live.update(_shown(snapshot, out.width, out.height), refresh=True)
            except (BrokenConnectionError, UnreachableError) as error:
                live.console.print(output.printable(error.message), style="yellow")
            time.sleep(AGAIN_S)
            snapshots = _snapshots(server, sort)


def _snapshots(server: Client, sort: SortKey) -> Iterator[JsonObject]:
    """Yields the current state each time the server sends an update."""
    known: dict[str, JsonObject] = {}
    request = ApiRequest(method="GET", path=EVENTS, timeout_s=SILENCE_S)
    for name, data in server.named_events(request):
        if name in ("hello", "reset"):
            known = {deployment["id"]: deployment for deployment in _deployments(server)}
        elif name == "deployment":
            known[data["id"]] = data
        elif name == "deployment.deleted":
            known.pop(data["id"], None)
        elif name == "stats":
            yield _snapshot(known, data, sort)


def _deployments(server: Client) -> list[JsonObject]:
    try:
        return list(server.pages(DEPLOYMENTS))
    except ApiError as error:
        if error.problem.status != 400:
            raise
    # An operator who acts for no account sees only deployments with replicas.
    replicas: list[JsonObject] = server.get(MACHINE)["replicas"]
    return [{**replica, "id": replica["deployment_id"], "readiness": ""} for replica in replicas]


def _snapshot(known: Mapping[str, JsonObject], stats: JsonObject, sort: SortKey) -> JsonObject:
    rows: list[JsonObject] = [
        {
            "id": identifier,
            "model": deployment["model"],
            "status": deployment["status"],
            "readiness": deployment["readiness"],
            "device": _devices_of(deployment),
            **AT_REST,
            **stats["deployments"].get(identifier, {}),
        }
        for identifier, deployment in known.items()
    ]
    rows.sort(key=lambda row: (*_rank(row, sort), -row["memory_bytes"], row["model"]))
    return {**stats, "deployments": rows}


def _rank(row: JsonObject, sort: SortKey) -> tuple[float, ...]:
    """Returns the first part of a row's place. The busiest of equal rows comes first."""
    if sort == "name":
        return ()
    return (-(row[SORT_FIELDS[sort]] or 0), -row["requests_per_s"], -row["queue"])


def _devices_of(deployment: JsonObject) -> str:
    """Returns the devices of a deployment's loaded replicas, separated by commas."""
    workers: list[JsonObject] = deployment.get("workers", [deployment])
    return ",".join(sorted({worker["device"] for worker in workers} - {""}))


def _shown(found: JsonObject, width: int, height: int | None) -> "RenderableType":
    """Returns the state as text and a table of at most `height` lines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = _about(found)
    rows: list[JsonObject] = found["deployments"]
    # Two lines are for the header and for the number of rows that do not fit.
    fitting = len(rows) if height is None else max(1, height - len(lines) - 2)
    if len(rows) == fitting + 1:
        fitting += 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("MODEL", "STATUS", "DEVICE"):
        table.add_column(header, no_wrap=True)
    for header in ("REQ/S", "ERR/S", "P50", "P99", "QUEUE", "REPLICAS", "MEMORY"):
        table.add_column(header, justify="right", no_wrap=True)
    room = max(LEAST_NAME, width - NUMBERS)
    for row in rows[:fitting]:
        table.add_row(
            Text(output.shortened(output.printable(row["model"]), room)),
            Text(row["status"], STYLES.get(row["status"], "")),
            output.shortened(row["device"], DEVICE),
            f"{row['requests_per_s']:.1f}",
            Text(f"{row['errors_per_s']:.1f}", "red" if row["errors_per_s"] else ""),
            _ms(row["p50_ms"]),
            _ms(row["p99_ms"]),
            str(row["queue"]),
            str(row["replicas"]),
            output.size(row["memory_bytes"]),
        )
    more = [Text(f"and {len(rows) - fitting} more", "dim")] if len(rows) > fitting else []
    return Group(*lines, table, *more)


def _about(found: JsonObject) -> "list[Text]":
    """Returns a line for each memory, the credits and each waiting model."""
    from rich.text import Text

    lines = [Text(_memory(found["memory"]))]
    lines += [Text(output.printable(_device(entry))) for entry in found["memory"]["devices"]]
    if credit := found["credits"]:
        days = credit["days_left"]
        lasting = ""
        if days is not None:
            duration = "more than ten years" if days > TEN_YEARS else f"{days:.0f} days"
            lasting = f", enough for {duration} at the rate of the last 24 hours"
        lines.append(Text(f"Credits {credit['balance']}{lasting}"))
    lines += [
        Text(output.printable(f"{entry['model']} is waiting: {entry['reason']}"), "yellow")
        for entry in found["memory"]["waiting"]
    ]
    if not found["deployments"]:
        lines.append(Text("No deployments yet."))
    return lines


def _memory(memory: JsonObject) -> str:
    budget, used = memory["budget_bytes"], memory["used_bytes"]
    if not budget:
        return "Memory: this server's runtime has no memory budget."
    return f"Memory {_bar(used, budget)} in use"


def _device(device: JsonObject) -> str:
    budget, claimed = device["budget_bytes"], device["held_bytes"]
    shown = _bar(claimed, budget) if budget else "not found"
    more = ""
    if device["used_bytes"] is not None:
        more = f", {output.size(device['used_bytes'])} in use"
    if device["other_bytes"]:
        more += f", {output.size(device['other_bytes'])} of other processes"
    if device["prepared_workers"]:
        more += f", {device['prepared_workers']} prepared"
    return f"GPU {device['index']:<2} {shown} ({device['name']}){more}"


def _bar(held: int, budget: int) -> str:
    filled = min(BAR, round(BAR * held / budget))
    bar = "█" * filled + "░" * (BAR - filled)
    return f"{bar} {output.size(held)} of {output.size(budget)}"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.1f} s"
