"""`stoker deployments`: manages deployments."""

import contextlib
import time
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from stoker.cli import completion, hints, output
from stoker.cli.confirmation import Yes, confirm
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import Client, JsonObject, Retry, quoted
from stoker.client.errors import StokerError

app = typer.Typer(no_args_is_help=True, help="Manage deployments: list, change, start, stop, logs.")

DEPLOYMENTS = "/v1/deployments"
ID_PREFIX = "dep_"
POLL_S = 0.3
FOLLOW_S = 1.0
MOST_LINES = 1000
SETTLED = frozenset({"ready", "failed"})

Readiness = Literal["cold", "warm", "hot"]
Status = Literal["idle", "starting", "ready", "stopping", "stopped", "failed"]
Which = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Deployment ID (dep_…) or model ID.",
        autocompletion=completion.deployments,
    ),
]


def _progress(deployment: JsonObject) -> float | None:
    """Returns the loading progress of the most advanced worker, 0 to 1."""
    known = [worker["progress"] for worker in deployment["workers"] if worker["progress"]]
    return max(known, default=None)


def _replicas(deployment: JsonObject) -> str:
    replicas = deployment["replicas"]
    return f"{len(deployment['workers'])} of {replicas['min']}-{replicas['max']}"


def _workers(deployment: JsonObject) -> str:
    return "; ".join(_worker(worker) for worker in deployment["workers"])


def _traffic(deployment: JsonObject) -> str:
    traffic: JsonObject = deployment["traffic"] or {}
    weights: JsonObject = traffic.get("weights", {})
    return ", ".join(f"{version} {percent} %" for version, percent in weights.items())


def _worker(worker: JsonObject) -> str:
    # Remote replicas and replicas that are not forked yet have no local process.
    pid = f" pid {worker['pid']}," if worker["pid"] is not None else ""
    place = f" on {_device(worker)}," if worker["device"] else ""
    return (
        f"{worker['id']} {worker['status']},{pid}{place} {output.size(worker['memory_bytes'])}, "
        f"{worker['outstanding']} outstanding"
    )


def _device(worker: JsonObject) -> str:
    """Returns a worker's device, for a GPU with its name and memory."""
    if not worker["device_name"]:
        return str(worker["device"])
    used = worker["device_bytes"]
    measured = f"{output.size(used)} in use, " if used is not None else ""
    claimed = output.size(worker["device_held_bytes"])
    return f"{worker['device']} ({worker['device_name']}: {measured}{claimed} claimed)"


def _devices(deployment: JsonObject) -> str:
    return ", ".join(sorted({worker["device"] for worker in deployment["workers"]} - {""}))


def _memory(deployment: JsonObject) -> str:
    memory = deployment["memory"]
    how = "measured" if memory["is_measured"] else "estimated"
    return f"{output.size(memory['bytes'])} per replica, {how}"


def _notices(deployment: JsonObject) -> str:
    return "; ".join(notice["message"] for notice in deployment["notices"])


LIST: Columns = {
    "model": lambda d: d["model"],
    "id": lambda d: d["id"],
    "pipeline": lambda d: d["pipeline"],
    "readiness": lambda d: d["readiness"],
    "status": lambda d: d["status"],
    "replicas": _replicas,
    "runs on": _devices,
    "message": lambda d: d["message"],
}


def _adapter(deployment: JsonObject) -> str | None:
    adapter: JsonObject = deployment["adapter"] or {}
    is_merged = adapter.get("sharing") == "merged"
    return (
        f"{adapter['of']}, merged: {adapter['reason']}" if is_merged else deployment["adapter_of"]
    )


DETAILS: Columns = {
    "model": lambda d: d["model"],
    "id": lambda d: d["id"],
    "pipeline": lambda d: d["pipeline"],
    "status": lambda d: d["status"],
    "desired": lambda d: d["desired"],
    "reason": lambda d: d["reason"],
    "message": lambda d: d["message"],
    "artifact": lambda d: d["artifact_id"],
    "source": lambda d: d["source"],
    "adapter of": _adapter,
    "readiness": lambda d: d["readiness"],
    "version": lambda d: d["version_id"],
    "traffic": _traffic,
    "engine": lambda d: f"{d['engine']} on {d['device']}, {d['dtype']}",
    "replicas": _replicas,
    "idle timeout": lambda d: f"{d['idle_timeout_s']:g} s",
    "max queue": lambda d: d["max_queue"],
    "config": lambda d: ", ".join(f"{k}={v}" for k, v in d["config"].items() if v is not None),
    "memory": _memory,
    "no GPU": lambda d: d["device_problem"],
    "notices": _notices,
    "workers": _workers,
    "created": lambda d: output.moment(d["created_at"]),
    "updated": lambda d: output.moment(d["updated_at"]),
}
EVENTS: Columns = {
    "time": lambda e: output.moment(e["created_at"]),
    "status": lambda e: e["status"],
    "reason": lambda e: e["reason"],
    "message": lambda e: e["message"],
}


@app.command("list")
def list_deployments(
    ctx: typer.Context,
    *,
    status: Annotated[
        Status | None, typer.Option(help="List only deployments with this status.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="List only deployments whose model ID or task contains this text."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the account's deployments, newest first."""
    given = {"status": status, "search": search}
    query = {name: value for name, value in given.items() if value is not None}
    rows = list(client(ctx).pages(DEPLOYMENTS, params=query))
    none = (
        "No deployments match."
        if query
        else "No deployments yet. Create one with 'stoker deploy MODEL_ID ARTIFACT'."
    )
    output.show_list(rows, LIST, as_json=as_json, none=none)


@app.command()
def show(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Show a deployment with its state and workers."""
    output.show_object(find(client(ctx), which), DETAILS, as_json=as_json)


@app.command()
def start(
    ctx: typer.Context,
    which: Which,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until a warm or hot model is loaded.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Start a stopped deployment. A warm or hot model is loaded immediately."""
    server = client(ctx)
    deployment = server.post(f"{path_of(server, which)}/start")
    if wait:
        deployment = settled(server, deployment)
    output.show_object(deployment, DETAILS, as_json=as_json)


@app.command()
def stop(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Stop a deployment. Its model is unloaded and calls are rejected."""
    server = client(ctx)
    output.show_object(server.post(f"{path_of(server, which)}/stop"), DETAILS, as_json=as_json)


@app.command()
def delete(
    ctx: typer.Context,
    which: Which,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a deployment. Its artifact is kept."""
    server = client(ctx)
    path = path_of(server, which)
    confirm(f"Delete deployment {which}?", yes=yes)
    output.show_done(server.delete(path), f"Deleted {which}.", as_json=as_json)


@app.command()
def metrics(
    ctx: typer.Context,
    which: Which,
    *,
    window: Annotated[
        int, typer.Option(min=60, max=86_400, metavar="SECONDS", help="Time range, back from now.")
    ] = 900,
    as_json: AsJson = False,
) -> None:
    """Show request metrics of a deployment over time."""
    server = client(ctx)
    series = server.get(f"{path_of(server, which)}/metrics", window_s=window)
    if as_json:
        output.print_json(series)
        return
    rows = [row for row in _steps(series) if any(row[name] for name in ("ok", "errors"))]
    output.show_list(rows, STEP, as_json=False, none="No calls in this period.")


def _steps(found: JsonObject) -> list[JsonObject]:
    """Converts the API's columns to one row per time step."""
    counts, latencies = found["requests"], found["latency_ms"]
    columns = {
        "ok": counts["ok"],
        "client_error": counts["client_error"],
        "server_error": counts["server_error"],
        "p50": latencies["p50"],
        "p99": latencies["p99"],
        **{name: found[name] for name in ("batch_size", "tokens", "replicas", "memory_bytes")},
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for at, row in enumerate(rows):
        row["at"] = found["start"] + at * found["step_s"]
        row["errors"] = (row["client_error"] or 0) + (row["server_error"] or 0)
    return rows


STEP: Columns = {
    "from": lambda r: time.strftime("%H:%M:%S", time.localtime(r["at"])),
    "ok": lambda r: r["ok"],
    "errors": lambda r: r["errors"] or "",
    "p50 ms": lambda r: r["p50"],
    "p99 ms": lambda r: r["p99"],
    "batch": lambda r: r["batch_size"],
    "tokens": lambda r: r["tokens"] or "",
    "replicas": lambda r: r["replicas"],
    "memory": lambda r: output.size(r["memory_bytes"]),
}


@app.command()
def logs(
    ctx: typer.Context,
    which: Which,
    *,
    tail: Annotated[int, typer.Option(min=1, max=1000, help="Number of most recent lines.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Stream new lines until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the logs of a deployment's workers."""
    server = client(ctx)
    path = f"{path_of(server, which)}/logs"
    lines: list[str] = server.get(path, tail=tail)["data"]
    if as_json and not follow:
        output.print_json(lines)
        return
    _print_lines(lines, as_json=as_json)
    if not follow:
        return
    known: list[str] = server.get(path, tail=MOST_LINES)["data"]
    _print_lines(added(lines, known), as_json=as_json)
    retry = Retry()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(FOLLOW_S)
            latest: list[str] = retry.run(lambda: server.get(path, tail=MOST_LINES))["data"]
            _print_lines(added(known, latest), as_json=as_json)
            known = latest


def added(known: Sequence[str], lines: Sequence[str]) -> Sequence[str]:
    """Returns the lines of a log tail that follow the known lines.

    Both lists are tails of the same log, read at different times. Either may start earlier than the
    other.
    """
    if not known:
        return lines
    for end in range(len(lines), 0, -1):
        overlap = min(end, len(known))
        if lines[end - overlap : end] == known[-overlap:]:
            return lines[end:]
    return lines


def _print_lines(lines: Sequence[str], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            output.print_json(line)
        else:
            print(output.printable(line), flush=True)


@app.command()
def events(
    ctx: typer.Context,
    which: Which,
    limit: Annotated[int, typer.Option(min=1, help="Number of most recent events.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List the events of a deployment, newest first."""
    server = client(ctx)
    rows = list(server.pages(f"{path_of(server, which)}/events", limit))
    output.show_list(rows, EVENTS, as_json=as_json, none="No events yet.")


def find(server: Client, which: str) -> JsonObject:
    """Returns a deployment by its ID or model ID."""
    if which.startswith(ID_PREFIX):
        return server.get(f"{DEPLOYMENTS}/{quoted(which)}")
    known: list[str] = []
    for deployment in server.pages(DEPLOYMENTS):
        if deployment["model"] == which:
            return deployment
        known.append(deployment["model"])
    raise StokerError(
        f"Deployment '{which}' not found.",
        hint=hints.similar(which, known, "List deployments with 'stoker deployments list'."),
    )


def resolve(server: Client, which: str) -> str:
    """Returns the ID of a deployment from its ID or model ID."""
    return which if which.startswith(ID_PREFIX) else find(server, which)["id"]


def path_of(server: Client, which: str) -> str:
    return f"{DEPLOYMENTS}/{quoted(resolve(server, which))}"


def create(server: Client, wish: JsonObject, *, wait: bool) -> JsonObject:
    """Creates a deployment. With `wait`, returns once it is loaded."""
    deployment = server.create(DEPLOYMENTS, wish)
    return settled(server, deployment) if wait else deployment


def settled(server: Client, deployment: JsonObject) -> JsonObject:
    """Waits until a deployment is loaded, or idle if it is cold.

    Raises `StokerError` if loading fails.
    """
    path = f"{DEPLOYMENTS}/{quoted(deployment['id'])}"
    retry = Retry()
    with output.spinner(_loading(deployment)) as update:
        while not _is_settled(deployment):
            time.sleep(POLL_S)
            deployment = retry.run(lambda: server.get(path))
            update(_loading(deployment))
    if deployment["status"] == "failed":
        raise StokerError(
            f"{deployment['model']} failed to load: {deployment['message']}",
            hint=f"Deployment created. See 'stoker deployments logs {deployment['model']}'.",
        )
    return deployment


def _is_settled(deployment: JsonObject) -> bool:
    status = deployment["status"]
    if deployment["readiness"] == "cold" and status == "idle":
        return True
    # A deployment that was just started is still observed as stopped.
    return status in SETTLED or status == deployment["desired"] == "stopped"


def _loading(deployment: JsonObject) -> str:
    share = _progress(deployment)
    percent = "" if share is None else f" {share:.0%}"
    return f"{deployment['model']}: {deployment['status']}{percent}"
