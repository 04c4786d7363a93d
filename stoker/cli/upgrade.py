"""`stoker artifacts upgrade`: imports a newer commit and rolls it out to deployments."""

from typing import Annotated

import typer

from stoker.cli import output
from stoker.cli.artifact_ids import Which, path_of
from stoker.cli.context import client
from stoker.cli.deployments import DEPLOYMENTS
from stoker.cli.imports import Reference, import_newer, token_from
from stoker.cli.output import AsJson
from stoker.cli.versions import settled
from stoker.client.client import JsonObject, quoted
from stoker.client.errors import StokerError


def upgrade(
    ctx: typer.Context,
    which: Which,
    *,
    revision: Annotated[
        str | None, typer.Option(help="Revision to import instead of the original one.")
    ] = None,
    gguf: Annotated[
        str | None, typer.Option(metavar="NAME", help="GGUF file to use if there are several.")
    ] = None,
    token_variable: Annotated[
        str | None,
        typer.Option(
            "--token-from",
            metavar="VARIABLE",
            help="Environment variable that holds the hub token, such as HF_TOKEN.",
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="Note for the new versions.")] = "",
    as_json: AsJson = False,
) -> None:
    """Import the hub's current commit as a new version of each deployment of this artifact.

    The files become a new artifact. A new version goes live once it passes its checks.
    """
    server = client(ctx)
    artifact = server.get(path_of(server, which))
    origin = artifact["origin"]
    if origin is None:
        raise StokerError(
            f"{which} was not imported from a hub.", hint="Push the new files instead."
        )
    reference = Reference(origin["repo_id"], revision or origin["revision"])
    users = [
        deployment
        for deployment in server.pages(DEPLOYMENTS)
        if deployment["artifact_id"] == artifact["id"]
    ]
    newer = import_newer(server, reference, artifact, token=token_from(token_variable), gguf=gguf)
    made: list[JsonObject] = []
    if newer is None:
        output.say(f"{reference.repo_id} has no commit newer than {origin['commit'][:12]}.")
    else:
        wish = {"artifact_id": newer["id"], "note": note or f"commit {newer['origin']['commit']}"}
        for deployment in users:
            path = f"{DEPLOYMENTS}/{quoted(deployment['id'])}/versions"
            version = settled(server, path, server.create(path, wish))
            output.say(
                f"{deployment['model']}: version {version['number']} is {version['status']}."
            )
            made.append(version)
    latest = newer or artifact
    answer = {"artifact": latest, "is_newer": newer is not None, "versions": made}
    output.show_done(answer, f"{latest['id']} is up to date.", as_json=as_json)
