"""Finds artifacts by their names."""

from typing import Annotated

import typer

from stoker.cli import completion, hints
from stoker.client.client import Client, quoted
from stoker.client.errors import StokerError
from stoker.client.upload_session import ARTIFACTS

ID_PREFIX = "art_"

Which = Annotated[
    str,
    typer.Argument(
        metavar="ARTIFACT", help="Artifact ID (art_…) or name.", autocompletion=completion.artifacts
    ),
]


def artifact_id(server: Client, which: str) -> str:
    """Returns an artifact's ID from its ID or its name.

    Raises `StokerError` if no artifact or several have the name.
    """
    if which.startswith(ID_PREFIX):
        return which
    known = list(server.pages(ARTIFACTS))
    matches = [artifact["id"] for artifact in known if artifact["display_name"] == which]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise StokerError(
            f"Several artifacts are named '{which}': {', '.join(matches)}.", hint="Use the ID."
        )
    raise StokerError(
        f"Artifact '{which}' not found.",
        hint=hints.similar(
            which,
            [artifact["display_name"] for artifact in known],
            "List artifacts with 'stoker artifacts list'.",
        ),
    )


def path_of(server: Client, which: str) -> str:
    return f"{ARTIFACTS}/{quoted(artifact_id(server, which))}"
