"""`stoker machine`: shows memory, engines and replicas."""

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns, size

MACHINE = "/v1/machine"

ABOUT: Columns = {
    "processor": lambda m: f"{m['processor']}, {m['cores']} cores",
    "memory": lambda m: size(m["memory"]["total_bytes"]),
    "for replicas": lambda m: size(m["memory"]["budget_bytes"]),
    "in use": lambda m: size(m["memory"]["used_bytes"]),
    "claimed": lambda m: size(m["memory"]["held_bytes"]),
    "reserved for hot models": lambda m: size(m["memory"]["reserved_bytes"]),
    "engines": lambda m: ", ".join(
        engine["engine"] for engine in m["engines"] if engine["available"]
    ),
}
REPLICA: Columns = {
    "model": lambda r: r["model"],
    "status": lambda r: r["status"],
    "engine": lambda r: r["engine"],
    "memory": lambda r: size(r["memory_bytes"]),
    "device": lambda r: r["device"],
    "GPU memory": lambda r: size(r["device_bytes"]),
    "claimed": lambda r: size(r["device_held_bytes"] or None),
    "since": lambda r: output.moment(r["started_at"]),
}
DEVICE: Columns = {
    "GPU": lambda d: f"{d['index']}: {d['name']}",
    "memory": lambda d: size(d["total_bytes"]),
    "for replicas": lambda d: size(d["budget_bytes"]) if d["budget_bytes"] else "gone",
    "claimed": lambda d: size(d["held_bytes"]),
    "in use": lambda d: size(d["used_bytes"]),
    "other processes": lambda d: size(d["other_bytes"] or None),
    "prepared workers": lambda d: str(d["prepared_workers"]),
    "UUID": lambda d: d["uuid"],
}
WAITING: Columns = {
    "waiting for memory": lambda w: w["model"],
    "needs": lambda w: size(w["bytes"]),
    "why": lambda w: w["reason"],
}


def machine(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show memory, engines and replicas. Operators see the replicas of all accounts."""
    state = client(ctx).get(MACHINE)
    output.show_object(state, ABOUT, as_json=as_json)
    if not as_json:
        if state["devices"]:
            output.show_list(state["devices"], DEVICE, as_json=False, none="")
        for opening in state["sandbox_openings"]:
            output.say(f"Exception from the sandbox of replicas on a GPU: {opening}.", "yellow")
        if why := state["device_problem"]:
            output.console().print(output.printable(f"GPUs are unknown: {why}"))
        output.show_list(state["replicas"], REPLICA, as_json=False, none="No models are loaded.")
        if state["waiting"]:
            output.show_list(state["waiting"], WAITING, as_json=False, none="")
