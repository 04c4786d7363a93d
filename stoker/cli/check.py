"""`stoker check`: runs a deployment's checks."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.deployments import Which, path_of
from stoker.cli.output import AsJson
from stoker.client.client import ApiRequest, JsonObject
from stoker.client.errors import WrongUseError

STYLES = {"passed": "green", "failed": "bold red"}


def check(
    ctx: typer.Context,
    model: Which,
    *,
    put: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Replace the checks with those in this file, a JSON list of "
            "{name, request, expect}, before running them.",
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show the checks without running them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a deployment's checks and report failures. Exits with 1 if a check fails."""
    server = client(ctx)
    path = f"{path_of(server, model)}/checks"
    if put:
        server.json(ApiRequest(method="PUT", path=path, json={"checks": _read(put)}))
    if show:
        stored = server.get(path)
        if as_json:
            output.print_json(stored)
        else:
            output.print_table(["check", "expects"], [_shown(item) for item in stored["checks"]])
        return
    with output.spinner("Running checks …"):
        report = server.post(f"{path}/run")
    if as_json:
        output.print_json(report)
    else:
        rows = [_row(item) for item in report["results"]]
        output.print_table(["", "check", "duration", "message"], rows, STYLES)
    if not report["is_passed"]:
        raise typer.Exit(1)


def _row(result: JsonObject) -> list[Any]:
    word = "passed" if result["is_passed"] else "failed"
    return [word, result["name"], f"{result['ms']:.4g} ms", result["message"]]


def _shown(one: JsonObject) -> list[Any]:
    return [one["name"], json.dumps(one["expect"], ensure_ascii=False)]


def _read(file: Path) -> list[Any]:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WrongUseError(f"'{file}' is not valid JSON: {error}.") from error
    checks: Any = content
    if isinstance(content, dict):
        checks = cast("JsonObject", content).get("checks")
    if not isinstance(checks, list):
        raise WrongUseError(f"'{file}' does not contain a list of checks.")
    return cast("list[Any]", checks)
