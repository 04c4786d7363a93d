"""`stoker models` and `stoker call`: what can be called, and calling it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import inputs, output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import Client, JsonObject, Request, quoted
from stoker.client.errors import CliError, WrongUseError

MODELS = "/v1/models"
# Above any wait and inference timeout that a server has by default: the server says when to end.
TIMEOUT_S = 1800.0

Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--param",
        metavar="NAME=VALUE",
        help="A parameter, its value as JSON or else as text; repeatable.",
    ),
]

COMMANDS = {
    "/v1/images/generations": "image",
    "/v1/images/edits": "image --edit FILE",
    "/v1/audio/speech": "speak",
    "/v1/videos": "video",
}
"""Endpoints whose answers, or whose inputs, are files → the command for them."""

LIST: Columns = {
    "model": lambda m: m["id"],
    "pipeline": lambda m: m["pipeline"],
    "readiness": lambda m: m["readiness"],
    "status": lambda m: m["status"],
}


def models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models that the key may call."""
    found = list(client(ctx).pages(MODELS))
    none = "The key covers no model. Deploy one with 'stoker deploy MODEL_ID ARTIFACT'."
    output.show_list(found, LIST, as_json=as_json, none=none)


def call(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model's id, as 'stoker models' lists it.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="A text, a file of a model that takes media, several as a list, or - for stdin.",
        ),
    ] = None,
    *,
    parameters: Parameters = None,
    wait: Annotated[
        int | None, typer.Option(min=0, help="Seconds to wait for a cold model to load.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Read the inputs from it, one a line."),
    ] = None,
    chosen: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="PATH",
            help="Another endpoint that serves the model, such as /v1/rerank.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a model and print what it answers as JSON."""
    body = {"model": model} | parsed_parameters(parameters or [])
    given = inputs.read(arguments or [], file)
    if given is None and not parameters:
        raise WrongUseError(
            "There is no input.", hint="Give a text or a file, - for stdin, or --file."
        )
    server = client(ctx)
    found = server.get(f"{MODELS}/{quoted(model)}")
    endpoint = _endpoint(found, chosen)
    placed = inputs.placed(given, found, endpoint)
    if twice := set(body) & {
        *placed.fields,
        *(name.removesuffix("[]") for name, _ in placed.files),
    }:
        raise WrongUseError(f"'{min(twice)}' is given twice, as an input and with --param.")
    request = Request(
        method="POST",
        path=endpoint,
        json=body | placed.fields,
        files=placed.files,
        headers={} if wait is None else {"prefer": f"wait={wait}"},
        timeout_s=TIMEOUT_S,
    )
    result = _called(server, request, found)
    if as_json:
        output.print_json(result)
    else:
        output.print_pretty(result)


def parsed_parameters(parameters: list[str]) -> JsonObject:
    """`name=value` pairs: a value that is JSON is read as that, any other is a text."""
    parsed: JsonObject = {}
    for parameter in parameters:
        name, separator, value = parameter.partition("=")
        if not name or not separator:
            raise WrongUseError(f"'{parameter}' is not of the form name=value.")
        parsed[name] = _value(value)
    return parsed


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(name: str) -> None:
    """NaN and the infinities are no JSON, though Python reads them."""
    raise ValueError(name)


def _endpoint(model: JsonObject, chosen: str | None) -> str:
    """Returns the path to call: the chosen one, else the first one that serves the model."""
    endpoints: list[str] = model["endpoints"]
    if not endpoints:
        raise CliError(f"{model['id']} ({model['pipeline']}) has no endpoint on this server.")
    endpoint = chosen or endpoints[0]
    if endpoint not in endpoints:
        raise WrongUseError(
            f"{endpoint} does not serve {model['id']} ({model['pipeline']}).",
            hint=f"These do: {', '.join(endpoints)}.",
        )
    if command := COMMANDS.get(endpoint):
        raise WrongUseError(
            f"{model['id']} ({model['pipeline']}) works with files.",
            hint=f"Use 'stoker {command}'.",
        )
    return endpoint


def _called(server: Client, request: Request, model: JsonObject) -> Any:
    if model["status"] == "ready":
        return server.json(request)
    with output.spinner(f"{model['id']}: loading …"):
        return server.json(request)
