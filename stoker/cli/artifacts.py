"""`stoker artifacts`: pushes, imports and manages models."""

from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import completion, confirmation, deployments, output
from stoker.cli.artifact_ids import Which, artifact_id, path_of
from stoker.cli.confirmation import Yes, confirm
from stoker.cli.context import client, context
from stoker.cli.imports import Reference, import_new, imported, token_from
from stoker.cli.output import AsJson, Columns
from stoker.cli.progress import push_progress
from stoker.cli.upgrade import upgrade
from stoker.client.client import ApiRequest, Client, JsonObject, quoted
from stoker.client.errors import StokerError, WrongUseError
from stoker.client.push import Uploader
from stoker.client.selection import Selection, default_name, select
from stoker.client.upload_session import ARTIFACTS, session_path
from stoker.models.adapters.lora import ADAPTER

app = typer.Typer(no_args_is_help=True, help="Push, import and manage models.")

Pipeline = Annotated[
    str | None,
    typer.Option(help="Task, such as text-classification. Detected from the files by default."),
]
Replaced = Annotated[
    str | None,
    typer.Option(
        help="ID or name of the artifact whose files are replaced.",
        autocompletion=completion.artifacts,
    ),
]
Gguf = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="GGUF file to use if there are several, or part of its name, such as Q4_K_M.",
    ),
]
TokenVariable = Annotated[
    str | None,
    typer.Option(
        "--token-from",
        metavar="VARIABLE",
        help="Environment variable that holds the hub token, such as HF_TOKEN.",
    ),
]
AdapterOf = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL_ID",
        help="For an adapter: its deployed base model, whose replicas it shares.",
        autocompletion=completion.deployments,
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
    return f"{origin['repo_id']}@{origin['commit'][:12]} from {origin['hub']}" if origin else ""


def _import(artifact: JsonObject) -> str:
    job = artifact.get("import")
    if not job:
        return ""
    how_far = f"{output.size(job['bytes'])} of {output.size(job['bytes_total'])}"
    error = job["error"]
    why = f": {error['message']}" if error else ""
    return f"{job['repo_id']}@{job['commit'][:12]} {job['status']}, {how_far}{why}"


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
    none = "No artifacts yet. Push one with 'stoker artifacts push DIR'."
    output.show_list(artifacts, LIST, as_json=as_json, none=none)


@app.command()
def show(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Show an artifact, with its inspection result or error."""
    server = client(ctx)
    artifact = server.get(path_of(server, which))
    output.show_object(artifact, DETAILS, as_json=as_json)


@app.command()
def card(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Print the model card of an artifact as Markdown."""
    server = client(ctx)
    path = f"{path_of(server, which)}/card"
    text = server.text(ApiRequest(method="GET", path=path))
    if as_json:
        output.print_json({"card": text})
    else:
        output.write(text.rstrip("\n") + "\n")


@app.command()
def delete(
    ctx: typer.Context,
    which: Which,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete an artifact and its files."""
    server = client(ctx)
    deleted = confirmation.delete(
        server,
        path_of(server, which),
        lambda a: f"Delete artifact {a['id']} ('{a['display_name']}') and its files?",
        yes=yes,
    )
    output.show_done(deleted, f"Deleted {deleted['id']}.", as_json=as_json)


@app.command()
def rename(
    ctx: typer.Context,
    which: Which,
    name: Annotated[str, typer.Argument(metavar="NAME", help="New display name.")],
    as_json: AsJson = False,
) -> None:
    """Rename an artifact."""
    server = client(ctx)
    path = path_of(server, which)
    request = ApiRequest(method="PATCH", path=path, json={"display_name": name})
    output.show_object(server.json(request), DETAILS, as_json=as_json)


@app.command()
def abandon(
    ctx: typer.Context,
    which: Which,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Abandon an artifact's incomplete upload. Its previous files are kept."""
    server = client(ctx)
    artifact = server.get(path_of(server, which))
    if not artifact["upload_id"]:
        raise StokerError(f"{which} has no open upload.")
    name = artifact["display_name"]
    confirm(f"Abandon the upload of {artifact['id']} ('{name}')?", yes=yes)
    answer = server.delete(session_path(artifact["id"], artifact["upload_id"]))
    output.show_done(answer, f"Abandoned {artifact['upload_id']}.", as_json=as_json)


@app.command("import")
def import_model(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Hub repository: org/name or org/name@revision.")
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="Display name. Default: the repository name.")
    ] = None,
    pipeline: Pipeline = None,
    artifact: Replaced = None,
    gguf: Gguf = None,
    token_variable: TokenVariable = None,
    as_json: AsJson = False,
) -> None:
    """Import a model from a hub into an artifact, and wait until it is ready."""
    _refuse_both(artifact, name, pipeline)
    server = client(ctx)
    reference, token = Reference.parse(model), token_from(token_variable)
    if artifact:
        replaced = artifact_id(server, artifact)
        imported_model = imported(server, replaced, reference, token=token, gguf=gguf)
    else:
        imported_model = import_new(
            server, reference, name=name, pipeline=pipeline, token=token, gguf=gguf
        )
    output.say(f"Artifact {imported_model['id']} is ready.", style="green")
    output.show_object(imported_model, DETAILS, as_json=as_json)


app.command()(upgrade)
app.command("update", hidden=True)(upgrade)


@app.command()
def cancel(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Cancel an artifact's import. Its previous files are kept."""
    server = client(ctx)
    path = path_of(server, which)
    job = server.get(path)["import"]
    if not job:
        raise StokerError(f"{which} has no import.")
    answer = server.delete(f"{path}/imports/{quoted(job['id'])}")
    output.show_done(answer, f"Cancelled {job['id']}.", as_json=as_json)


@app.command()
def push(
    ctx: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            exists=True,
            help="Model folder written by save_pretrained(), or one GGUF file.",
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(help="Display name. Default: the name of PATH.")
    ] = None,
    pipeline: Pipeline = None,
    artifact: Replaced = None,
    parallel: Annotated[int, typer.Option(min=1, max=32, help="Parts to send in parallel.")] = 4,
    deploy: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL_ID", help="Deploy the artifact with this model ID when it is ready."
        ),
    ] = None,
    adapter_of: AdapterOf = None,
    readiness: Annotated[
        deployments.Readiness | None,
        typer.Option(help="With --deploy: cold, warm or hot. Default: cold."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Push model files to the server as an artifact.

    If a push is interrupted, run the same command again to resume it.
    """
    _refuse_both(artifact, name, pipeline)
    if adapter_of and not deploy:
        raise WrongUseError("--adapter-of requires --deploy MODEL_ID.")
    server = context(ctx).client(connections=parallel)
    replaced = artifact_id(server, artifact) if artifact else None
    selection = select(source)
    _tell_selection(selection)
    pushed = _push(
        server, selection, name or default_name(source), pipeline, replaced, parallel=parallel
    )
    if pushed["status"] == "failed":
        output.show_object(pushed, DETAILS, as_json=as_json)
        raise StokerError(
            f"The server rejected the files: {_failure(pushed)}",
            hint="The upload is kept. Correct the folder and push again: only changed files are "
            "sent.",
        )
    output.say(f"Artifact {pushed['id']} is ready.", style="green")
    if deploy:
        options = {"readiness": readiness, "adapter_of": adapter_of}
        wish = {name: value for name, value in options.items() if value is not None}
        wish |= {"model": deploy, "artifact_id": pushed["id"]}
        wait = readiness in ("warm", "hot")
        pushed["deployment"] = deployments.create(server, wish, wait=wait)
    else:
        more = " --adapter-of BASE" if pushed["pipeline"] == ADAPTER else ""
        output.say(f"Deploy it with: stoker deploy MODEL_ID {pushed['id']}{more}", style="dim")
    output.show_object(pushed, DETAILS, as_json=as_json)


def _refuse_both(artifact: str | None, name: str | None, pipeline: str | None) -> None:
    if artifact and (name or pipeline):
        raise WrongUseError("--name and --pipeline cannot be used with --artifact.")


def _push(
    server: Client,
    selection: Selection,
    name: str,
    pipeline: str | None,
    artifact_id: str | None,
    *,
    parallel: int,
) -> JsonObject:
    """Uploads the files and completes the session. Returns the artifact, with `push` totals."""
    with push_progress(selection) as progress:
        try:
            uploader = Uploader(server, selection.files, progress, parallel=parallel)
            session = uploader.session(name, pipeline, artifact_id)
            resumed = uploader.held_bytes(session)
            if resumed:
                progress.note(f"Resuming: {output.size(resumed)} already uploaded.")
                progress.already_there(resumed)
            uploader.send(session)
            artifact = uploader.complete(session)
        except KeyboardInterrupt:
            progress.note("Interrupted. Run the same command again to resume.")
            raise
    artifact["push"] = {
        "files": len(selection.files),
        "bytes": selection.size,
        "sent_bytes": progress.sent,
        "resumed_bytes": resumed,
        "left_out": [{"path": item.path, "reason": item.reason} for item in selection.left_out],
    }
    return artifact


def _tell_selection(selection: Selection) -> None:
    for item in selection.left_out[:SHOWN_LEFT_OUT]:
        output.say(f"Skipped {item.path}: {item.reason}", style="dim")
    if (more := len(selection.left_out) - SHOWN_LEFT_OUT) > 0:
        output.say(f"Skipped {more} more files. Use --json to list them.", style="dim")
    output.say(f"Pushing {len(selection.files)} files, {output.size(selection.size)}.")
