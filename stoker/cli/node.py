"""`stoker node`: runs replicas for the servers of a fleet."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.settings import read_settings

app = typer.Typer(no_args_is_help=True, help="Run replicas for the servers of a fleet.")

HEAD_PORT = 6379
"""Default port of Ray's head."""


def _address(given: str) -> str:
    if not re.fullmatch(r"([\w.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}", given):
        raise typer.BadParameter("must be host:port, such as head.inner:6379")
    return given


Address = Annotated[str, typer.Option(help="Address of Ray's head: host:port.", callback=_address)]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder for model copies, converted models and logs.")
]
Host = Annotated[str | None, typer.Option("--host", help="Address to listen on for servers.")]
Name = Annotated[str | None, typer.Option(help="Node name shown in lists.")]
Port = Annotated[int | None, typer.Option(help="Port. 0 picks a free port.")]
Start = Annotated[
    str,
    typer.Option(
        metavar="COMMAND",
        help="Command that starts Ray: `ray start … --block`, such as KubeRay's "
        "KUBERAY_GEN_RAY_START_CMD.",
    ),
]


@app.command()
def host(
    address: Host = None, port: Port = None, name: Name = None, data_dir: DataDir = None
) -> None:
    """Run replicas on this machine for servers with STOKER_RUNTIME=nodes.

    Requires the servers' STOKER_DATABASE_URL and STOKER_BLOB_URL.
    """
    from stoker.server import node

    overrides = _given(node_host=address, node_port=port, node_name=name, data_dir=data_dir)
    settings = read_settings(**overrides)
    if settings.runtime != "ray":
        settings = read_settings(runtime="nodes", **overrides)
    node.run(settings)


@app.command()
def join(
    address: Address,
    *,
    listen: Host = None,
    port: Port = None,
    name: Name = None,
    data_dir: DataDir = None,
    start: Start = "",
) -> None:
    """Join a Ray cluster and run the replicas that Ray places on this machine.

    For servers with STOKER_RUNTIME=ray. Starts Ray and a node host. Requires the servers'
    STOKER_DATABASE_URL and STOKER_BLOB_URL.
    """
    from stoker.cluster.machine import RayMachine

    overrides = _given(node_host=listen, node_port=port, node_name=name, data_dir=data_dir)
    machine = RayMachine(settings=read_settings(runtime="ray", **overrides), start=start)
    options = [
        word
        for option, value in (("--host", listen), ("--port", port), ("--name", name))
        if value is not None
        for word in (option, str(value))
    ]
    machine.run_node(address, options, _note)


@app.command()
def head(
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port on which nodes reach Ray's head.")
    ] = HEAD_PORT,
    data_dir: DataDir = None,
    start: Start = "",
) -> None:
    """Start Ray's head on this machine and place leases with it. Runs no replicas.

    Requires the servers' STOKER_DATABASE_URL.
    """
    from stoker.cluster.machine import RayMachine

    settings = read_settings(runtime="ray", **_given(data_dir=data_dir))
    RayMachine(settings=settings, start=start).run_head(port, _note)


@app.command(hidden=True)
def place(address: Address, data_dir: DataDir = None) -> None:
    """Place leases with this machine's Ray. Started by `stoker node head`."""
    from stoker.server import placer

    placer.run(read_settings(runtime="ray", **_given(data_dir=data_dir)), address)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _note(text: str) -> None:
    output.say(output.printable(text), "yellow")
