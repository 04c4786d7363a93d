"""`stoker tune`: finds the best engine and precision for a model, on your own inputs."""

import base64
import json
import time
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli import inputs, output
from stoker.cli.call import MODELS
from stoker.cli.context import client
from stoker.cli.deployments import DEPLOYMENTS, Which, find, settled
from stoker.cli.output import AsJson, Columns
from stoker.cli.versions import changed
from stoker.client.client import Client, JsonObject, quoted
from stoker.client.errors import StokerError, WrongUseError
from stoker.client.media import Media

POLL_S = 0.5
RUN = ("measured", "differs")
STYLES = {"differs": "yellow", "failed": "red", "unavailable": "dim"}


def tune(
    ctx: typer.Context,
    model: Which,
    *,
    examples: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="File with one input per line: a text, a file path or a JSON request body.",
        ),
    ] = None,
    engines: Annotated[
        list[str] | None, typer.Option("--engine", help="Engine to test. Repeatable. Default: all.")
    ] = None,
    dtypes: Annotated[
        list[str] | None, typer.Option("--dtype", help="Dtype to test. Repeatable. Default: all.")
    ] = None,
    last: Annotated[
        bool, typer.Option("--last", help="Show the last completed trial instead of running one.")
    ] = False,
    apply: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="Apply the fastest row with this dtype, weight format or engine, such as "
            "bfloat16, int8 or openvino/float32.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Apply a row even if its answers differ.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a model on each engine and precision, and compare its answers."""
    if last and (examples or engines or dtypes):
        raise WrongUseError("--last cannot be combined with --examples, --engine or --dtype.")
    server = client(ctx)
    deployment = find(server, model)
    path = f"{DEPLOYMENTS}/{deployment['id']}/trials"
    if last:
        trial = _last(server, path)
    else:
        body: JsonObject = {"engines": engines or None, "dtypes": dtypes or None}
        if examples:
            body["examples"] = _examples(server, deployment, examples)
        trial = _ended(server, path, server.create(path, body))
    row = _chosen(trial, apply, force=force) if apply else None
    if as_json:
        output.print_json(trial)
    else:
        rows = [[cell(entry) for cell in ROWS.values()] for entry in trial["rows"]]
        output.print_table(list(ROWS), rows, STYLES)
    if row:
        _apply(server, deployment, row)


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.4g} {unit}"


def _agreement(row: JsonObject) -> str:
    if row["agreement"] is None:
        return ""
    return f"{row['agreement']:.4f} {row['measure'].replace('_', ' ')}"


ROWS: Columns = {
    "engine": lambda row: row["engine"],
    "dtype": lambda row: row["dtype"],
    "weights": lambda row: row["weight_format"],
    "status": lambda row: row["status"],
    "alone": lambda row: _number(row["alone_ms"], "ms"),
    "together": lambda row: _number(row["items_per_s"], "/s"),
    "memory": lambda row: output.size(row["memory_bytes"]),
    "difference": lambda row: "" if row["difference"] is None else f"{row['difference']:.2g}",
    "agreement": _agreement,
    "reason": lambda row: row["reason"],
}


def _examples(server: Client, deployment: JsonObject, file: Path) -> list[JsonObject]:
    """Reads request bodies for the deployment's first endpoint. Raises `WrongUseError`."""
    model = server.get(f"{MODELS}/{quoted(deployment['model'])}")
    endpoint = next(iter(model["endpoints"]), "")
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise WrongUseError(f"'{file}' is empty.", hint="Add one input per line.")
    return [_example(line, model, endpoint) for line in lines]


def _example(line: str, model: JsonObject, endpoint: str) -> JsonObject:
    if line.lstrip().startswith("{"):
        try:
            return json.loads(line)
        except ValueError as error:
            raise WrongUseError(
                f"A line that starts with a brace is not valid JSON: {error}."
            ) from error
    placed = inputs.placed(line, model, endpoint)
    files = {name.removesuffix("[]"): _data(media) for name, media in placed.files}
    return placed.fields | files


def _data(media: Media) -> str:
    content = media if isinstance(media, bytes) else Path(media).read_bytes()
    return "data:;base64," + base64.b64encode(content).decode()


def _last(server: Client, path: str) -> JsonObject:
    trial = next(
        (candidate for candidate in server.pages(path) if candidate["status"] == "completed"), None
    )
    if trial is None:
        raise StokerError("This deployment has no completed trial yet.")
    return trial


def _ended(server: Client, path: str, trial: JsonObject) -> JsonObject:
    """Waits for a trial and returns it. Raises `StokerError` if it failed."""
    with output.spinner(f"{trial['id']}: waiting …") as update:
        try:
            while trial["status"] in ("queued", "in_progress"):
                tried = ", ".join(f"{row['engine']} {row['dtype']}" for row in trial["rows"])
                update(f"{trial['id']}: {trial['progress']:.0%}  {tried}")
                time.sleep(POLL_S)
                trial = server.get(f"{path}/{trial['id']}")
        except KeyboardInterrupt:
            output.say("\nThe trial continues. Use 'stoker tune MODEL --last' to see its result.")
            raise
    if trial["status"] == "failed":
        raise StokerError(f"The trial failed: {trial['error']['message']}")
    return trial


def _chosen(trial: JsonObject, word: str, *, force: bool) -> JsonObject:
    """Returns the row that matches a word. Raises `WrongUseError` if none can be applied."""
    matches = [
        row
        for row in trial["rows"]
        if word
        in (row["dtype"], row["weight_format"], row["engine"], f"{row['engine']}/{row['dtype']}")
    ]
    if not matches:
        words = sorted({row["weight_format"] or row["dtype"] for row in trial["rows"]})
        raise WrongUseError(f"No row matches '{word}'.", hint=f"Available: {', '.join(words)}.")
    able = [row for row in matches if row["status"] in RUN]
    if not able:
        raise StokerError(f"'{word}' does not run: {matches[0]['reason']}")
    good = able if force else [row for row in able if row["status"] == "measured"]
    if not good:
        raise StokerError(
            f"'{word}' gives different answers: {able[0]['reason']} Nothing was changed.",
            hint="Use --force to apply it anyway.",
        )
    return max(good, key=lambda row: row["items_per_s"])


def _apply(server: Client, deployment: JsonObject, row: JsonObject) -> None:
    changes: JsonObject = {"engine": row["engine"], "dtype": row["dtype"]}
    if row["weight_format"] or deployment["config"].get("weight_format"):
        changes["config"] = {"weight_format": row["weight_format"]}
    path = f"{DEPLOYMENTS}/{deployment['id']}"
    updated = changed(server, path, changes)
    if updated["readiness"] != "cold":
        settled(server, updated)
    weights = f", weights in {row['weight_format']}" if row["weight_format"] else ""
    output.say(f"{deployment['model']} now runs on {row['engine']} in {row['dtype']}{weights}.")
