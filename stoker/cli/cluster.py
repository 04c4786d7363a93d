"""`stoker cluster`: shows and starts the machines of a fleet."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns, size
from stoker.cli.settings import read_settings
from stoker.client.client import JsonObject

if TYPE_CHECKING:
    from stoker.demo.setup import Demo

app = typer.Typer(
    no_args_is_help=True, help="Manage fleets of machines that run replicas together."
)

MOST = 64
"""Maximum number of nodes or gateways on one machine."""

NODES = "/v1/nodes"

NODE: Columns = {
    "node": lambda n: n["name"],
    "id": lambda n: n["id"],
    "status": lambda n: n["status"],
    "address": lambda n: n["address"],
    "memory in use": lambda n: _used(n["memory"]),
    "leases": lambda n: len(n["leases"]),
    "replicas": lambda n: sum(len(one["replicas"]) for one in n["leases"]),
    "last seen": lambda n: output.moment(n["seen_at"]),
}
LEASE: Columns = {
    "model": lambda r: r["model"] or r["deployment_id"],
    "account": lambda r: r["account_id"],
    "node": lambda r: r["node"],
    "lease": lambda r: r["generation"],
    "replica": lambda r: r["status"],
    "engine": lambda r: r["engine"],
    "calls": lambda r: r["outstanding"],
    "memory": lambda r: size(r["memory_bytes"]),
    "process": lambda r: r["pid"],
}
_NO_REPLICA = {"status": "", "engine": "", "outstanding": "", "memory_bytes": None, "pid": None}


@app.command()
def up(
    *,
    nodes: Annotated[
        int, typer.Option(min=1, max=MOST, help="Number of node hosts, which run the replicas.")
    ] = 2,
    gateways: Annotated[
        int,
        typer.Option(min=1, max=MOST, help="Number of servers. Any server answers any request."),
    ] = 2,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the first server. The others use the next ports. 0 picks free ports.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for all data of the fleet. Default: `cluster` in the data folder."
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Deploy the demo models and print example calls.")
    ] = False,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Place replicas with Ray. Same as STOKER_RUNTIME=ray."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a trial fleet on this machine: PostgreSQL, nodes and servers. Stop it with Ctrl-C.

    STOKER_DATABASE_URL and STOKER_BLOB_URL are used if set. The fleet's addresses are written to
    DATA_DIR/cluster.json, the operator key to DATA_DIR/operator-key.
    """
    from stoker.cluster import command
    from stoker.cluster.plan import FleetPlan

    # Nodes run the replicas, regardless of the runtime in the environment.
    overrides: dict[str, Any] = {"runtime": "local"}
    if port is not None:
        overrides["port"] = port
    settings = read_settings(**overrides)
    folder = data_dir or settings.data_dir / "cluster"
    plan = FleetPlan(
        settings=settings.model_copy(update={"data_dir": folder}),
        nodes=nodes,
        gateways=gateways,
        has_demo=demo,
        has_ray=ray or os.environ.get("STOKER_RUNTIME") == "ray",
    )
    with contextlib.ExitStack() as stack:
        command.run(plan, _Screen(stack, plan.folder, as_json=as_json))


class _Screen:
    """Prints progress while a fleet starts, runs and stops."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, *, as_json: bool) -> None:
        self._stack = stack
        self._folder = folder
        self._as_json = as_json
        self._update: Callable[[str], None] | None = None

    def progress(self, text: str) -> None:
        if self._update is None:
            self._update = self._stack.enter_context(output.spinner(text))
        self._update(text)

    def note(self, text: str) -> None:
        output.say(output.printable(text), "yellow")

    def ready(self, state: JsonObject, demo: "Demo | None") -> None:
        self._stack.close()
        self._update = None
        if self._as_json:
            output.print_json(state)
            return
        lines = [
            "The fleet is running. Servers:",
            *(f"  {gateway}" for gateway in state["gateways"]),
            "",
        ]
        if key := state["operator_key_file"]:
            lines.append(f"Operator key: {key}")
        lines += [f"Logs: {self._folder / 'logs'}", ""]
        if demo:
            from stoker.demo.setup import calls

            lines += ["In a second terminal:", "", calls(demo, self._folder), ""]
        print("\n".join([*lines, "Press Ctrl-C to stop."]), flush=True)


@app.command()
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the nodes, with their memory, leases and replicas."""
    nodes = client(ctx).get(NODES)["data"]
    none = "No nodes. This server runs replicas itself; see 'stoker machine'."
    output.show_list(nodes, NODE, as_json=as_json, none=none)
    if as_json or not nodes:
        return
    output.show_list(_runs(nodes), LEASE, as_json=False, none="No leases.")
    for node in nodes:
        if node.get("problem"):
            output.say(output.printable(f"{node['name']}: {node['problem']}"), "yellow")
        for waiting in node["waiting"]:
            message = f"{waiting['model']} is waiting on {node['name']}: {waiting['reason']}"
            output.say(output.printable(message), "yellow")


def _runs(nodes: Sequence[JsonObject]) -> list[JsonObject]:
    """Returns a row for each replica and for each lease without one, sorted by model name."""
    rows: list[JsonObject] = [
        {**lease, "node": node["name"], **replica}
        for node in nodes
        for lease in node["leases"]
        for replica in lease["replicas"] or [_NO_REPLICA]
    ]
    return sorted(rows, key=lambda row: (row["model"] or "", row["deployment_id"], row["node"]))


def _used(memory: JsonObject) -> str:
    return f"{size(memory['used_bytes'])} of {size(memory['budget_bytes'])}"
