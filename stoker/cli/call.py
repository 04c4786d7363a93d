"""`stoker models` and `stoker call`: lists and calls models."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import completion, inputs, output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, Client, JsonObject, quoted
from stoker.client.errors import StokerError, WrongUseError

MODELS = "/v1/models"
# Longer than the server's default wait and inference timeouts, so that the server times out first.
TIMEOUT_S = 1800.0

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model ID, as listed by 'stoker models'.",
        autocompletion=completion.models,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--param",
        metavar="NAME=VALUE",
        help="Parameter. The value is JSON if it parses as such, else text. Repeatable.",
    ),
]

COMMANDS = {
    "/v1/images/generations": "image",
    "/v1/images/edits": "image --edit FILE",
    "/v1/audio/speech": "speak",
    "/v1/videos": "video",
}
"""Maps an endpoint with file inputs or outputs to the command to use instead."""

LIST: Columns = {
    "model": lambda m: m["id"],
    "pipeline": lambda m: m["pipeline"],
    "readiness": lambda m: m["readiness"],
    "status": lambda m: m["status"],
}


def models(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the models that the API key can call."""
    rows = list(client(ctx).pages(MODELS))
    none = "No models available to this key. Deploy one with 'stoker deploy MODEL_ID ARTIFACT'."
    output.show_list(rows, LIST, as_json=as_json, none=none)


def call(
    ctx: typer.Context,
    model: Model,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT",
            help="Text, media file, or - for stdin. Several inputs form a list.",
        ),
    ] = None,
    *,
    parameters: Parameters = None,
    max_wait: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Longest time to wait for a cold model to load. Default: the server's.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="File with one input per line."),
    ] = None,
    chosen: Annotated[
        str | None,
        typer.Option(
            "--endpoint",
            metavar="PATH",
            help="Endpoint to call instead of the default, such as /v1/rerank.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Call a model and print the response as JSON."""
    body = {"model": model} | parsed_parameters(parameters or [])
    values = inputs.read(arguments or [], file)
    if values is None and not parameters:
        raise WrongUseError("No input given.", hint="Give a text or file, - for stdin, or --file.")
    server = client(ctx)
    model_object = server.get(f"{MODELS}/{quoted(model)}")
    endpoint = _endpoint(model_object, chosen)
    placed = inputs.placed(values, model_object, endpoint)
    if twice := set(body) & {
        *placed.fields,
        *(name.removesuffix("[]") for name, _ in placed.files),
    }:
        raise WrongUseError(f"'{min(twice)}' is given twice: as an input and with --param.")
    request = ApiRequest(
        method="POST",
        path=endpoint,
        json=body | placed.fields,
        files=placed.files,
        headers={} if max_wait is None else {"prefer": f"wait={max_wait}"},
        timeout_s=TIMEOUT_S,
    )
    result = _called(server, request, model_object)
    if as_json:
        output.print_json(result)
    else:
        output.print_pretty(result)


def parsed_parameters(parameters: list[str]) -> JsonObject:
    """Parses `name=value` pairs. Values that are valid JSON are decoded. Other values stay text."""
    parsed: JsonObject = {}
    for parameter in parameters:
        name, separator, value = parameter.partition("=")
        if not name or not separator:
            raise WrongUseError(f"'{parameter}' is not in the form NAME=VALUE.")
        parsed[name] = _value(value)
    return parsed


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(name: str) -> None:
    """Rejects NaN and infinities, which Python parses but JSON does not allow."""
    raise ValueError(name)


def _endpoint(model: JsonObject, chosen: str | None) -> str:
    """Returns the path to call: the chosen one, else the first one that serves the model."""
    endpoints: list[str] = model["endpoints"]
    if not endpoints:
        raise StokerError(f"{model['id']} ({model['pipeline']}) has no endpoint on this server.")
    endpoint = chosen or endpoints[0]
    if endpoint not in endpoints:
        raise WrongUseError(
            f"{endpoint} does not serve {model['id']} ({model['pipeline']}).",
            hint=f"Available endpoints: {', '.join(endpoints)}.",
        )
    if command := COMMANDS.get(endpoint):
        raise WrongUseError(
            f"{model['id']} ({model['pipeline']}) needs file input or output.",
            hint=f"Use 'stoker {command}'.",
        )
    return endpoint


def _called(server: Client, request: ApiRequest, model: JsonObject) -> Any:
    if model["status"] == "ready":
        return server.json(request)
    with output.spinner(f"{model['id']}: loading …"):
        return server.json(request)
