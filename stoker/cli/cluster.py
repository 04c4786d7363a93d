"""`stoker cluster`: the machines of a fleet, together."""

from collections.abc import Sequence

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns, size
from stoker.client.client import JsonObject

app = typer.Typer(no_args_is_help=True, help="Machines that run replicas together.")

NODES = "/v1/nodes"

NODE: Columns = {
    "node": lambda n: n["name"],
    "id": lambda n: n["id"],
    "status": lambda n: n["status"],
    "address": lambda n: n["address"],
    "memory held": lambda n: _held(n["memory"]),
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
def status(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the nodes: memory held of what they may hold, leases, and who runs what."""
    nodes = client(ctx).get(NODES)["data"]
    none = "There are no nodes: this server runs replicas itself. See `stoker machine`."
    output.show_list(nodes, NODE, as_json=as_json, none=none)
    if as_json or not nodes:
        return
    output.show_list(_runs(nodes), LEASE, as_json=False, none="No node has a lease now.")
    for node in nodes:
        for one in node["waiting"]:
            said = f"{one['model']} waits on {node['name']}: {one['reason']}"
            output.say(output.printable(said), "yellow")


def _runs(nodes: Sequence[JsonObject]) -> list[JsonObject]:
    """A row for each replica, and for each lease without one, as models are called."""
    rows: list[JsonObject] = [
        {**lease, "node": node["name"], **replica}
        for node in nodes
        for lease in node["leases"]
        for replica in lease["replicas"] or [_NO_REPLICA]
    ]
    return sorted(rows, key=lambda row: (row["model"] or "", row["deployment_id"], row["node"]))


def _held(memory: JsonObject) -> str:
    return f"{size(memory['held_bytes'])} of {size(memory['budget_bytes'])}"
