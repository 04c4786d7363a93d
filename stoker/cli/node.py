"""`stoker node`: machines that run replicas for the servers of a fleet."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli.settings import read_settings

app = typer.Typer(no_args_is_help=True, help="Machines that run replicas for servers.")


@app.command()
def host(
    address: Annotated[
        str | None, typer.Option("--host", help="Address to listen on for servers.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one.")] = None,
    name: Annotated[str | None, typer.Option(help="What it is called in lists.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Copies of models, converted forms, logs.")
    ] = None,
) -> None:
    """Run replicas on this machine, for servers whose STOKER_RUNTIME is `nodes`.

    It needs their STOKER_DATABASE_URL, and their STOKER_BLOB_URL.
    """
    from stoker.server import node

    given: dict[str, Any] = {
        "runtime": "nodes",
        "node_host": address,
        "node_port": port,
        "node_name": name,
        "data_dir": data_dir,
    }
    node.run(read_settings(**{key: value for key, value in given.items() if value is not None}))
