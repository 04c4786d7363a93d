"""`stoker artifacts`: pushing models to the server, and looking after them."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import deployments, output
from stoker.cli.context import client, context
from stoker.cli.imports import Reference, import_new, imported, token_from
from stoker.cli.output import AsJson, Columns
from stoker.cli.progress import push_progress
from stoker.cli.update import update
from stoker.client.client import Client, JsonObject, Request, quoted
from stoker.client.errors import CliError, WrongUseError
from stoker.client.push import Uploader
from stoker.client.selection import Selection, default_name, select
from stoker.client.upload_session import ARTIFACTS, Session, session_path
from stoker.models.adapters.lora import ADAPTER

app = typer.Typer(no_args_is_help=True, help="Push models to the server, and look after them.")

ArtifactId = Annotated[str, typer.Argument(metavar="ID", help="The artifact's id (art_…).")]
Pipeline = Annotated[
    str | None,
    typer.Option(help="The task, as in text-classification; found from the files by default."),
]
Replaced = Annotated[str | None, typer.Option(help="Replace the files of this artifact, by id.")]
Gguf = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Of several GGUF files the one to take, or a part as in Q4_K_M."
    ),
]
TokenVariable = Annotated[
    str | None,
    typer.Option(
        "--token-from",
        metavar="VARIABLE",
        help="The environment variable with a token for the hub, as in HF_TOKEN.",
    ),
]
AdapterOf = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL_ID",
        help="Of an adapter: the deployed model that it was trained on, whose replicas it shares.",
    ),
]
SHOWN_LEFT_OUT = 20


def _inspected(artifact: JsonObject, name: str) -> Any:
    inspection: JsonObject | None = artifact["inspection"]
    return inspection[name] if inspection else None


def _adapter(artifact: JsonObject) -> str:
    about = _inspected(artifact, "adapter")
    if not about:
        return ""
    of = f" of {about['base']}" if about["base"] else ""
    return f"rank {about['rank']} of {', '.join(about['modules'])}{of}"


def _failure(artifact: JsonObject) -> str:
    failure = artifact.get("failure")
    return f"{failure['message']} ({failure['code']})" if failure else ""


def _origin(artifact: JsonObject) -> str:
    origin = artifact.get("origin")
    return f"{origin['repo_id']}@{origin['commit'][:12]} of {origin['hub']}" if origin else ""


def _import(artifact: JsonObject) -> str:
    found = artifact.get("import")
    if not found:
        return ""
    how_far = f"{output.size(found['bytes'])} of {output.size(found['bytes_total'])}"
    error = found["error"]
    why = f": {error['message']}" if error else ""
    return f"{found['repo_id']}@{found['commit'][:12]} {found['status']}, {how_far}{why}"


LIST: Columns = {
    "id": lambda a: a["id"],
    "name": lambda a: a["display_name"],
    "pipeline": lambda a: a["pipeline"],
    "status": lambda a: a["status"],
    "size": lambda a: output.size(a["size_bytes"]),
    "created": lambda a: output.moment(a["created_at"]),
}
DETAILS: Columns = {
    **LIST,
    "failure": _failure,
    "origin": _origin,
    "import": _import,
    "architecture": lambda a: _inspected(a, "architecture"),
    "parameters": lambda a: output.count(_inspected(a, "parameters")),
    "dtype": lambda a: _inspected(a, "dtype"),
    "memory": lambda a: output.size(_inspected(a, "memory_bytes")),
    "engines": lambda a: ", ".join(_inspected(a, "engines") or ()),
    "adapter": _adapter,
    "warnings": lambda a: " ".join(_inspected(a, "warnings") or ()),
    "updated": lambda a: output.moment(a["updated_at"]),
}


@app.command("list")
def list_artifacts(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the account's artifacts, newest first."""
    artifacts = list(client(ctx).pages(ARTIFACTS))
    none = "There are no artifacts. Push one with 'stoker artifacts push DIR'."
    output.show_list(artifacts, LIST, as_json=as_json, none=none)


@app.command()
def show(ctx: typer.Context, artifact_id: ArtifactId, as_json: AsJson = False) -> None:
    """Show an artifact: what inspection found, or why it failed."""
    artifact = client(ctx).get(f"{ARTIFACTS}/{quoted(artifact_id)}")
    output.show_object(artifact, DETAILS, as_json=as_json)


@app.command()
def card(ctx: typer.Context, artifact_id: ArtifactId, as_json: AsJson = False) -> None:
    """Print the model card of an artifact, as Markdown."""
    path = f"{ARTIFACTS}/{quoted(artifact_id)}/card"
    text = client(ctx).text(Request(method="GET", path=path))
    if as_json:
        output.print_json({"card": text})
    else:
        output.write(text.rstrip("\n") + "\n")


@app.command()
def delete(
    ctx: typer.Context,
    artifact_id: ArtifactId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete an artifact and its files."""
    server = client(ctx)
    output.confirm(f"Delete artifact {artifact_id} and its files?", yes=yes)
    deleted = server.delete(f"{ARTIFACTS}/{quoted(artifact_id)}")
    output.show_done(deleted, f"Deleted {artifact_id}.", as_json=as_json)


@app.command()
def rename(
    ctx: typer.Context,
    artifact_id: ArtifactId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new display name.")],
    as_json: AsJson = False,
) -> None:
    """Give an artifact another display name."""
    path = f"{ARTIFACTS}/{quoted(artifact_id)}"
    request = Request(method="PATCH", path=path, json={"display_name": name})
    output.show_object(client(ctx).json(request), DETAILS, as_json=as_json)


@app.command()
def abandon(
    ctx: typer.Context,
    artifact_id: ArtifactId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Abandon an artifact's upload that was not completed: its files are as they were before."""
    server = client(ctx)
    artifact = server.get(f"{ARTIFACTS}/{quoted(artifact_id)}")
    if not artifact["upload_id"]:
        raise CliError(f"{artifact_id} has no upload that is open.")
    output.confirm(f"Abandon the upload of {artifact_id}?", yes=yes)
    answer = server.delete(session_path(artifact_id, artifact["upload_id"]))
    output.show_done(answer, f"Abandoned {artifact['upload_id']}.", as_json=as_json)


@app.command("import")
def import_model(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="On a hub: org/name, or org/name@revision.")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="The artifact's display name; the model's id by default.")
    ] = None,
    pipeline: Pipeline = None,
    artifact: Replaced = None,
    gguf: Gguf = None,
    token_variable: TokenVariable = None,
    as_json: AsJson = False,
) -> None:
    """Have the server fetch a model from a hub as an artifact, and wait until it is ready."""
    _refuse_both(artifact, name, pipeline)
    server = client(ctx)
    reference, token = Reference.parse(model), token_from(token_variable)
    if artifact:
        found = imported(server, artifact, reference, token=token, gguf=gguf)
    else:
        found = import_new(server, reference, name=name, pipeline=pipeline, token=token, gguf=gguf)
    output.say(f"Artifact {found['id']} is ready.", style="green")
    output.show_object(found, DETAILS, as_json=as_json)


app.command()(update)


@app.command()
def cancel(ctx: typer.Context, artifact_id: ArtifactId, as_json: AsJson = False) -> None:
    """Cancel an artifact's import: its files are as they were before."""
    server = client(ctx)
    path = f"{ARTIFACTS}/{quoted(artifact_id)}"
    found = server.get(path)["import"]
    if not found:
        raise CliError(f"{artifact_id} has no import.")
    answer = server.delete(f"{path}/imports/{quoted(found['id'])}")
    output.show_done(answer, f"Cancelled {found['id']}.", as_json=as_json)


@app.command()
def push(
    ctx: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            exists=True,
            help="A model's folder, as save_pretrained() wrote it, or one GGUF file.",
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="The artifact's display name; that of PATH by default.")
    ] = None,
    pipeline: Pipeline = None,
    artifact: Replaced = None,
    parallel: Annotated[int, typer.Option(min=1, max=32, help="Parts sent at once.")] = 4,
    deploy: Annotated[
        str | None, typer.Option(metavar="MODEL_ID", help="Deploy it afterwards as this model id.")
    ] = None,
    adapter_of: AdapterOf = None,
    readiness: Annotated[
        deployments.Readiness | None,
        typer.Option(help="With --deploy: how ready the model is kept. The default is cold."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Push a model's files as an artifact.

    Interrupted, the same command goes on where it was.
    """
    _refuse_both(artifact, name, pipeline)
    if adapter_of and not deploy:
        raise WrongUseError("--adapter-of is for --deploy MODEL_ID.")
    server = context(ctx).client(connections=parallel)
    selection = select(source)
    _tell_selection(selection)
    pushed = _push(
        server, selection, name or default_name(source), pipeline, artifact, parallel=parallel
    )
    if pushed["status"] == "failed":
        output.show_object(pushed, DETAILS, as_json=as_json)
        raise CliError(
            f"The server refused the files: {_failure(pushed)}",
            hint="The upload is kept. Correct the folder and push again: only changed files are "
            "sent.",
        )
    output.say(f"Artifact {pushed['id']} is ready.", style="green")
    if deploy:
        given = {"readiness": readiness, "adapter_of": adapter_of}
        wish = {name: value for name, value in given.items() if value is not None}
        wish |= {"model": deploy, "artifact_id": pushed["id"]}
        wait = readiness in ("warm", "hot")
        pushed["deployment"] = deployments.create(server, wish, wait=wait)
    else:
        more = " --adapter-of BASE" if pushed["pipeline"] == ADAPTER else ""
        output.say(f"Deploy it with: stoker deploy MODEL_ID {pushed['id']}{more}", style="dim")
    output.show_object(pushed, DETAILS, as_json=as_json)


def _refuse_both(artifact: str | None, name: str | None, pipeline: str | None) -> None:
    if artifact and (name or pipeline):
        raise WrongUseError("--name and --pipeline are for a new artifact, not for --artifact.")


def _push(
    server: Client,
    selection: Selection,
    name: str,
    pipeline: str | None,
    artifact_id: str | None,
    *,
    parallel: int,
) -> JsonObject:
    """Upload and complete; the artifact, with what was sent under `push`."""
    with push_progress(selection) as progress:
        try:
            uploader = Uploader(server, selection.files, progress, parallel=parallel)
            session = _session(uploader, name, pipeline, artifact_id)
            resumed = uploader.held_bytes(session)
            if resumed:
                progress.note(f"Resuming: {output.size(resumed)} are on the server already.")
                progress.already_there(resumed)
            uploader.send(session)
            artifact = uploader.complete(session)
        except KeyboardInterrupt:
            progress.note("Interrupted. Give the same command again to go on from here.")
            raise
    artifact["push"] = {
        "files": len(selection.files),
        "bytes": selection.size,
        "sent_bytes": progress.sent,
        "resumed_bytes": resumed,
        "left_out": [{"path": item.path, "reason": item.reason} for item in selection.left_out],
    }
    return artifact


def _session(
    uploader: Uploader, name: str, pipeline: str | None, artifact_id: str | None
) -> Session:
    """The session of an interrupted push of these files, or a new one."""
    if artifact_id:
        return uploader.resume(uploader.artifact(artifact_id)) or uploader.open(artifact_id)
    for candidate in uploader.unfinished(name, pipeline):
        if session := uploader.resume(candidate):
            return session
    return uploader.open(uploader.create_artifact(name, pipeline)["id"])


def _tell_selection(selection: Selection) -> None:
    for item in selection.left_out[:SHOWN_LEFT_OUT]:
        output.say(f"Left out {item.path}: {item.reason}", style="dim")
    if (more := len(selection.left_out) - SHOWN_LEFT_OUT) > 0:
        output.say(f"Left out {more} more files; --json lists them.", style="dim")
    output.say(f"Pushing {len(selection.files)} files, {output.size(selection.size)}.")
