"""`stoker batch`: answers files of requests in the background."""

import contextlib
import tempfile
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import batch_input, batch_progress, completion, confirmation, output
from stoker.cli.batch_input import BatchLines, LineFormat
from stoker.cli.batch_progress import BATCHES, path_of
from stoker.cli.call import MODELS, TIMEOUT_S, Parameters, parsed_parameters
from stoker.cli.confirmation import Yes
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.cli.progress import upload_progress
from stoker.client.client import ApiRequest, Client, JsonObject, Retry, quoted
from stoker.client.errors import ApiError, StokerError, WrongUseError
from stoker.client.file_upload import FILES, upload_file

app = typer.Typer(no_args_is_help=True, help="Run batches: files of requests in the background.")

BatchId = Annotated[
    str,
    typer.Argument(
        metavar="BATCH_ID", help="Batch ID (batch_…).", autocompletion=completion.batches
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Path of the answers. Default: FILE or the ID with the ending .output.jsonl.",
    ),
]
_Errors = Annotated[
    Path | None,
    typer.Option(
        "--errors",
        help="Path of the failed lines. Default: FILE or the ID with the ending .errors.jsonl.",
    ),
]


def _moment(seconds: int | None) -> str:
    return output.moment(datetime.fromtimestamp(seconds, UTC).isoformat()) if seconds else ""


def _lines(batch: JsonObject) -> str:
    counts = batch["request_counts"]
    if not counts["total"]:
        return ""
    return f"{counts['completed']} of {counts['total']} completed, {counts['failed']} failed"


def _metadata_text(batch: JsonObject) -> str:
    metadata: dict[str, str] = batch["metadata"] or {}
    return ", ".join(f"{name}={value}" for name, value in metadata.items())


def _ended_at(batch: JsonObject) -> int | None:
    return next((batch[f"{s}_at"] for s in batch_progress.ENDED if batch[f"{s}_at"]), None)


LIST: Columns = {
    "id": lambda b: b["id"],
    "status": lambda b: "paused" if b["paused"] else b["status"],
    "model": lambda b: b["model"],
    "endpoint": lambda b: b["endpoint"],
    "lines": _lines,
    "created": lambda b: _moment(b["created_at"]),
}
FIELDS: Columns = {
    "id": lambda b: b["id"],
    "status": lambda b: b["status"],
    "paused": lambda b: b["paused"] and b["paused"]["message"],
    "model": lambda b: b["model"],
    "endpoint": lambda b: b["endpoint"],
    "lines": _lines,
    "input tokens": lambda b: b["usage"]["input_tokens"] or None,
    "output tokens": lambda b: b["usage"]["output_tokens"] or None,
    "created": lambda b: _moment(b["created_at"]),
    "started": lambda b: _moment(b["in_progress_at"]),
    "ended": lambda b: _moment(_ended_at(b)),
    "expires": lambda b: "" if _ended_at(b) else _moment(b["expires_at"]),
    "input file": lambda b: b["input_file_id"],
    "output file": lambda b: b["output_file_id"],
    "error file": lambda b: b["error_file_id"],
    "metadata": _metadata_text,
}


@app.command()
def run(
    ctx: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="JSONL of requests {custom_id, method, url, body} or of bodies, or texts (.txt).",
        ),
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Model of lines that name none. Default: the model of the lines.",
            autocompletion=completion.models,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="PATH",
            help="Endpoint to call. Default: the lines' URL, or the model's first endpoint.",
        ),
    ] = None,
    parameters: Parameters = None,
    target: _Output = None,
    errors: _Errors = None,
    window: Annotated[
        str, typer.Option(help="Time in which the batch must complete. Only 24h exists.")
    ] = "24h",
    metadata: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Text to store with the batch. Repeatable."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait for the results, or print the batch and exit."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Upload FILE, run it as a batch, and save the answers. Exits with 1 if a line fails.

    The batch continues if you stop this command. 'stoker batch wait' resumes the wait. Exit codes:
    0 if all lines were answered, 1 if a line or the batch failed, 2 for an invalid file or option.
    """
    paths = batch_input.result_paths(source, source.stem, target, errors)
    if window != "24h":
        raise WrongUseError(f"There is no window of '{window}'.", hint="Leave out --window.")
    body: JsonObject = {"completion_window": window, "metadata": _metadata(metadata or [])}
    server = client(ctx)
    lines = _planned(server, source, model, endpoint, parsed_parameters(parameters or []))
    with _uploadable(lines) as upload, upload_progress(upload) as report:
        file = upload_file(
            server,
            upload,
            purpose="batch",
            expires_after_s=None,
            on_progress=report,
            retry=Retry(),
        )
    body |= {"input_file_id": file["id"], "endpoint": lines.endpoint}
    batch = _created(server, body)
    if not wait:
        output.show_object(batch, FIELDS, as_json=as_json)
        return
    _finish(server, batch_progress.ended(server, batch), paths, as_json=as_json)


@app.command("list")
def list_batches(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List batches, newest first."""
    rows = list(client(ctx).pages(BATCHES, limit))
    output.show_list(rows, LIST, as_json=as_json, none="No batches yet.")


@app.command()
def show(ctx: typer.Context, batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show the state of a batch, and the errors of its file."""
    batch = client(ctx).get(path_of(batch_id))
    output.show_object(batch, FIELDS, as_json=as_json)
    if not as_json:
        _say_faults(batch)


app.command("get", hidden=True)(show)


@app.command()
def wait(
    ctx: typer.Context,
    batch_id: BatchId,
    *,
    target: _Output = None,
    errors: _Errors = None,
    as_json: AsJson = False,
) -> None:
    """Wait for a batch and save its results. Exits with 1 if a line or the batch failed."""
    paths = batch_input.result_paths(None, batch_id, target, errors)
    server = client(ctx)
    batch = batch_progress.ended(server, server.get(path_of(batch_id)))
    _finish(server, batch, paths, as_json=as_json)


@app.command()
def download(
    ctx: typer.Context,
    batch_id: BatchId,
    *,
    target: _Output = None,
    errors: _Errors = None,
    as_json: AsJson = False,
) -> None:
    """Save the answers and the failed lines of a batch that has ended."""
    paths = batch_input.result_paths(None, batch_id, target, errors)
    server = client(ctx)
    batch = server.get(path_of(batch_id))
    if batch["status"] not in batch_progress.ENDED:
        raise StokerError(
            f"The batch has no results yet: it is {batch['status'].replace('_', ' ')}.",
            hint=f"Wait for it with 'stoker batch wait {batch_id}'.",
        )
    saved = _saved(server, batch, paths)
    if as_json:
        output.print_json({**batch, **saved})
    elif not any(saved.values()):
        output.say("The batch has no results.")


@app.command()
def cancel(
    ctx: typer.Context, batch_id: BatchId, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Cancel a batch. Answers that are computed already are kept."""
    server = client(ctx)
    if not yes:
        batch = server.get(path_of(batch_id))
        lines = _lines(batch) or batch["status"]
        confirmation.confirm(f"Cancel batch {batch_id} ({lines})?", yes=False)
    batch = server.post(f"{path_of(batch_id)}/cancel")
    output.show_done(batch, f"{batch_id}: {batch['status']}.", as_json=as_json)


def _planned(
    server: Client, source: Path, model: str | None, endpoint: str | None, fields: JsonObject
) -> BatchLines:
    """Returns the checked lines of a file. Raises `WrongUseError` if a line is not valid."""
    if "model" in fields:
        raise WrongUseError("Name the model with --model, not with --param.")
    first = batch_input.first_line(source)
    known: JsonObject | None = None
    if named := model or first.model:
        known = server.get(f"{MODELS}/{quoted(named)}")
    path = endpoint or first.endpoint
    if path is None and known:
        path = next(iter(known["endpoints"]), None)
    if path is None:
        raise WrongUseError(
            "The lines name no endpoint.", hint="Give --model, or --endpoint and --model."
        )
    if known and path not in known["endpoints"]:
        raise WrongUseError(
            f"{path} does not serve {known['id']} ({known['pipeline']}).",
            hint=f"Available endpoints: {', '.join(known['endpoints']) or 'none'}.",
        )
    if first.format is LineFormat.TEXTS and not model:
        raise WrongUseError("A file of texts names no model.", hint="Give --model.")
    return BatchLines(source, first.format, path, model, fields)


@contextlib.contextmanager
def _uploadable(lines: BatchLines) -> Generator[Path]:
    """Yields a file of full requests: the given one, or a temporary one.

    Raises `WrongUseError` if a line is not valid.
    """
    with output.spinner(f"Checking {lines.source.name} …"):
        checked = lines.check()
    if checked.faults:
        for fault in checked.faults:
            output.say(output.printable(fault))
        count = len(checked.faults)
        many = f"at least {count}" if count >= batch_input.MOST_FAULTS else str(count)
        raise WrongUseError(
            f"'{lines.source}' has {many} invalid line{'s' if count > 1 else ''}."
            " Nothing was uploaded."
        )
    if checked.is_complete:
        yield lines.source
        return
    with tempfile.TemporaryDirectory(prefix="stoker-batch-") as folder:
        target = Path(folder) / f"{lines.source.stem}.jsonl"
        with output.spinner(f"Writing {checked.total} requests …"):
            lines.write(target)
        yield target


def _metadata(given: list[str]) -> dict[str, str] | None:
    pairs: dict[str, str] = {}
    for item in given:
        name, separator, value = item.partition("=")
        if not name or not separator:
            raise WrongUseError(f"'{item}' is not in the form NAME=VALUE.")
        pairs[name] = value
    return pairs or None


def _created(server: Client, body: JsonObject) -> JsonObject:
    """Creates a batch. Deletes its input file if the server refuses it."""
    try:
        return server.create(BATCHES, body, Retry())
    except ApiError:
        with contextlib.suppress(StokerError):
            server.delete(f"{FILES}/{quoted(body['input_file_id'])}")
        raise


def _finish(server: Client, batch: JsonObject, paths: tuple[Path, Path], *, as_json: bool) -> None:
    """Saves and shows the results of a batch. Exits with 1 if it has a failed line."""
    saved = _saved(server, batch, paths)
    output.show_object({**batch, **saved} if as_json else batch, FIELDS, as_json=as_json)
    _say_faults(batch)
    if batch["status"] != "completed" or batch["request_counts"]["failed"]:
        raise typer.Exit(1)


def _saved(server: Client, batch: JsonObject, paths: tuple[Path, Path]) -> dict[str, Any]:
    """Downloads the result files. Returns their paths, with None for a file that does not exist."""
    saved: dict[str, Any] = {}
    for name, what, target in (
        ("output", "answers", paths[0]),
        ("error", "failed lines", paths[1]),
    ):
        file_id = batch[f"{name}_file_id"]
        saved[f"{name}_path"] = str(target) if file_id else None
        if file_id:
            path = f"{FILES}/{quoted(file_id)}/content"
            request = ApiRequest(method="GET", path=path, timeout_s=TIMEOUT_S)
            server.download(request, target)
            output.say(f"Saved the {what} to {target}.")
    return saved


def _say_faults(batch: JsonObject) -> None:
    faults: list[JsonObject] = batch["errors"]["data"] if batch["errors"] else []
    for fault in faults:
        line = f"line {fault['line']}: " if fault["line"] else ""
        output.say(output.printable(f"{line}{fault['message']} ({fault['code']})"))
