"""`stoker top`: live view of deployments, memory and waiting models."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson
from stoker.client.client import ApiRequest, Client, JsonObject
from stoker.client.errors import ApiError, BrokenConnectionError, UnreachableError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
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
LEAST_NAME = 16
"""Minimum width of the model name in characters. It gets the room that other columns leave."""
GAP = 2
"""Spaces between two columns."""
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


@dataclass(frozen=True)
class TopColumn:
    head: str
    width: int
    """Width of the longest usual cell or of the head, in characters."""
    cell: Callable[[JsonObject], str]
    justify: Literal["left", "right"] = "right"


COLUMNS = (
    TopColumn("MODEL", LEAST_NAME, lambda row: row["model"], "left"),
    TopColumn("STATUS", 8, lambda row: row["status"], "left"),
    TopColumn("DEVICE", DEVICE, lambda row: output.shortened(row["device"], DEVICE), "left"),
    TopColumn("REQ/S", 6, lambda row: f"{row['requests_per_s']:.1f}"),
    TopColumn("ERR/S", 5, lambda row: f"{row['errors_per_s']:.1f}"),
    TopColumn("P50", 8, lambda row: _ms(row["p50_ms"])),
    TopColumn("P99", 8, lambda row: _ms(row["p99_ms"])),
    TopColumn("QUEUE", 5, lambda row: str(row["queue"])),
    TopColumn("REPLICAS", 8, lambda row: str(row["replicas"])),
    TopColumn("MEMORY", 8, lambda row: output.size(row["memory_bytes"])),
)
FIRST_TO_GO = ("DEVICE", "REPLICAS", "ERR/S", "P50", "QUEUE", "STATUS", "P99")
"""Columns that narrow terminals have no room for, the least important one first."""


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
            out.print(_shown(snapshot, out))
        return
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(console=out, auto_refresh=False) as live:
        while True:
            try:
                for snapshot in snapshots:
                    live.update(_shown(snapshot, out, fits=True), refresh=True)
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
    rows.sort(key=lambda row: (*_rank(row, sort), row["model"]))
    return {**stats, "deployments": rows}


def _rank(row: JsonObject, sort: SortKey) -> tuple[float, ...]:
    """Returns the first part of a row's place. The busiest of equal rows comes first."""
    if sort == "name":
        return ()
    fields = (SORT_FIELDS[sort], "requests_per_s", "queue", "memory_bytes")
    return tuple(-(row[field] or 0) for field in fields)


def _devices_of(deployment: JsonObject) -> str:
    """Returns the devices of a deployment's loaded replicas, separated by commas."""
    workers: list[JsonObject] = deployment.get("workers", [deployment])
    return ",".join(sorted({worker["device"] for worker in workers} - {""}))


def _shown(found: JsonObject, out: "Console", *, fits: bool = False) -> "RenderableType":
    """Returns the state as text and a table.

    Args:
        fits: leave out deployments that exceed the terminal's height.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = _about(found)
    rows: list[JsonObject] = found["deployments"]
    # Two lines are for the header and for the number of rows that do not fit.
    used = sum(len(line.wrap(out, out.width)) for line in lines) + 2
    count = max(1, out.height - used) if fits and used + len(rows) > out.height + 1 else len(rows)
    columns = _columns(out.width)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.head, no_wrap=True, justify=column.justify)
    room = max(LEAST_NAME, out.width - sum(column.width + GAP for column in columns[1:]))
    for row in rows[:count]:
        name = output.shortened(output.printable(row["model"]), room)
        table.add_row(Text(name), *(_cell(column, row) for column in columns[1:]))
    more = [Text(f"and {len(rows) - count} more", "dim")] if len(rows) > count else []
    return Group(*lines, table, *more)


def _cell(column: TopColumn, row: JsonObject) -> "Text":
    from rich.text import Text

    is_error = column.head == "ERR/S" and row["errors_per_s"]
    text = column.cell(row)
    return Text(text, "red" if is_error else STYLES.get(text, ""))


def _columns(width: int) -> "list[TopColumn]":
    """Returns the columns that a terminal of this width has room for."""
    columns = list(COLUMNS)
    for head in FIRST_TO_GO:
        if LEAST_NAME + sum(column.width + GAP for column in columns[1:]) <= width:
            break
        columns = [column for column in columns if column.head != head]
    return columns


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
