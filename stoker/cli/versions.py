"""`stoker versions`: new models behind the same id, and the way back."""

import time
from typing import Annotated

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.deployments import path_of
from stoker.cli.imports import SCHEME, Reference, import_new, token_from
from stoker.cli.output import AsJson, Columns
from stoker.client.client import Client, JsonObject, Request, Retry, quoted
from stoker.client.errors import CliError, WrongUseError

app = typer.Typer(
    no_args_is_help=True, help="Put new models behind a model id, and go back to earlier ones."
)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A deployment's id (dep_…) or model id.")
]
Which = Annotated[str, typer.Argument(metavar="VERSION", help="Its number, or its id (ver_…).")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is live or failed.")]
POLL_S = 0.5
WAITING = ("preparing", "checking")
STYLES = {"live": "green", "failed": "bold red"}

LIST: Columns = {
    "number": lambda v: v["number"],
    "status": lambda v: v["status"],
    "id": lambda v: v["id"],
    "from": lambda v: v["artifact_id"] or v["source"],
    "engine": lambda v: f"{v['engine']}, {v['dtype']}",
    "loaded": lambda v: "yes" if v["is_loaded"] else "",
    "made": lambda v: output.moment(v["created_at"]),
    "note": lambda v: v["note"],
    "message": lambda v: v["message"],
}
DETAILS: Columns = {
    **LIST,
    "reason": lambda v: v["reason"],
    "device": lambda v: v["device"],
    "config": lambda v: ", ".join(f"{k}={w}" for k, w in v["config"].items() if w is not None),
    "memory": lambda v: output.size(v["memory"]["bytes"]),
    "promote": lambda v: v["promote"],
    "strategy": lambda v: v["strategy"],
    "live since": lambda v: output.moment(v["promoted_at"]),
    "live until": lambda v: output.moment(v["retired_at"]),
}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.2%}"


def _milliseconds(latency: JsonObject) -> str:
    mean = latency["mean_ms"]
    return "" if mean is None else f"{mean:.4g} ms, at most {latency['longest_ms']:.4g} ms"


COMPARISON: Columns = {
    "compared": lambda c: c["compared"],
    "failed": lambda c: c["failed"],
    "dropped": lambda c: c["dropped"],
    "differing": lambda c: c["differing"],
    "equal top labels": lambda c: _percent(c["equal_top_labels"]),
    "equal texts": lambda c: _percent(c["equal_texts"]),
    "mean cosine": lambda c: c["mean_cosine"],
    "least cosine": lambda c: c["least_cosine"],
    "largest difference": lambda c: c["difference"],
    "live": lambda c: _milliseconds(c["live"]),
    "mirror": lambda c: _milliseconds(c["mirror"]),
}


EXAMPLE: Columns = {name: lambda e, name=name: e[name] for name in ("request", "live", "mirror")}


@app.command("list")
def list_versions(ctx: typer.Context, model: Model, as_json: AsJson = False) -> None:
    """List a deployment's versions, newest first."""
    server = client(ctx)
    found = list(server.pages(f"{path_of(server, model)}/versions"))
    output.show_list(found, LIST, as_json=as_json, none="There are none.")


@app.command()
def show(ctx: typer.Context, model: Model, which: Which, as_json: AsJson = False) -> None:
    """Show a version: how far it has come, or why it has failed."""
    server = client(ctx)
    output.show_object(_found(server, path_of(server, model), which), DETAILS, as_json=as_json)


@app.command()
def add(
    ctx: typer.Context,
    model: Model,
    artifact: Annotated[
        str | None,
        typer.Argument(
            metavar="ARTIFACT", help="An artifact's id (art_…), or a model on a hub: hf:org/name."
        ),
    ] = None,
    *,
    engine: Annotated[str | None, typer.Option(help="Another engine.")] = None,
    device: Annotated[str | None, typer.Option(help="Another device.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Another dtype.")] = None,
    note: Annotated[str, typer.Option(help="What is new, for people.")] = "",
    manual: Annotated[
        bool, typer.Option("--manual", help="Let it wait, once it is found right, for 'promote'.")
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Unload the live one first, where there is no room for both."
        ),
    ] = False,
    token_variable: Annotated[
        str | None,
        typer.Option(
            "--token-from",
            metavar="VARIABLE",
            help="The environment variable with a token for the hub, as in HF_TOKEN.",
        ),
    ] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Put a new model, or another way of running it, behind a model id.

    It is loaded beside the live one, tried and checked, and takes over between two requests.
    """
    server = client(ctx)
    path = f"{path_of(server, model)}/versions"
    if artifact and artifact.startswith(SCHEME):
        artifact = import_new(server, Reference.parse(artifact), token=token_from(token_variable))[
            "id"
        ]
    elif token_variable:
        raise WrongUseError("--token-from is for a model on a hub.")
    given = {"artifact_id": artifact, "engine": engine, "device": device, "dtype": dtype}
    body: JsonObject = {name: value for name, value in given.items() if value is not None}
    if not body:
        raise WrongUseError("Say what is new: an ARTIFACT, --engine, --device or --dtype.")
    body |= {
        "note": note,
        "promote": "manual" if manual else "when_ready",
        "strategy": "in_place" if in_place else "beside",
    }
    made = server.create(path, body)
    _show_settled(server, path, made, no_wait=no_wait, as_json=as_json)


@app.command()
def promote(
    ctx: typer.Context, model: Model, which: Which, no_wait: NoWait = False, as_json: AsJson = False
) -> None:
    """Have a version take over."""
    server = client(ctx)
    path = path_of(server, model)
    version = _found(server, path, which)
    promoted = server.post(f"{path}/versions/{quoted(version['id'])}/promote")
    _show_settled(server, f"{path}/versions", promoted, no_wait=no_wait, as_json=as_json)


@app.command()
def rollback(
    ctx: typer.Context,
    model: Model,
    to: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Its number or id; the one before by default."),
    ] = None,
    no_wait: NoWait = False,
    as_json: AsJson = False,
) -> None:
    """Go back to the version that was live before, or to an earlier one."""
    server = client(ctx)
    path = path_of(server, model)
    body = {"version": _found(server, path, to)["id"]} if to else {}
    back = server.post(f"{path}/rollback", body)
    _show_settled(server, f"{path}/versions", back, no_wait=no_wait, as_json=as_json)


@app.command()
def traffic(
    ctx: typer.Context,
    model: Model,
    shares: Annotated[
        list[str],
        typer.Argument(metavar="VERSION=PERCENT", help="As in 1=90 2=10; they add up to 100."),
    ],
    *,
    sticky: Annotated[
        str,
        typer.Option(
            help="Whose calls all go to the same version: none, key, user, or header:NAME."
        ),
    ] = "none",
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION=PERCENT",
            help="Copies of so many calls, whose answers nobody waits for; repeatable.",
        ),
    ] = None,
    examples: Annotated[
        bool,
        typer.Option("--examples", help="Keep the last calls that a mirror answers otherwise."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Share the calls out between versions."""
    server = client(ctx)
    path = path_of(server, model)
    weights = _shares(server, path, shares)
    body = {
        "weights": weights,
        "sticky": sticky,
        "mirror": _shares(server, path, mirror or []),
        "examples": examples,
    }
    found = server.json(Request(method="PUT", path=f"{path}/traffic", json=body))
    parts = ", ".join(f"{one} {percent} %" for one, percent in weights.items())
    output.show_done(found, f"{found['model']}: {parts}.", as_json=as_json)


@app.command()
def compare(ctx: typer.Context, model: Model, which: Which, as_json: AsJson = False) -> None:
    """How a version has answered the copies that it got as a mirror, beside the live one."""
    server = client(ctx)
    path = path_of(server, model)
    version = _found(server, path, which)
    found = server.get(f"{path}/versions/{quoted(version['id'])}/comparison")
    output.show_object(found, COMPARISON, as_json=as_json)
    if found["examples"] and not as_json:
        output.show_list(found["examples"], EXAMPLE, as_json=False, none="")


@app.command()
def delete(
    ctx: typer.Context,
    model: Model,
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a version that is not live. One that is on its way is given up."""
    server = client(ctx)
    path = path_of(server, model)
    version = _found(server, path, which)
    output.confirm(f"Delete version {version['number']} of {model}?", yes=yes)
    deleted = server.delete(f"{path}/versions/{quoted(version['id'])}")
    output.show_done(deleted, f"Deleted {version['id']}.", as_json=as_json)


def settled(server: Client, path: str, version: JsonObject) -> JsonObject:
    """A version once it is found right, live or failed.

    Args:
        path: of the deployment's versions.
    """
    retry, own = Retry(), f"{path}/{quoted(version['id'])}"
    with output.spinner(f"Version {version['number']}: waiting …") as update:
        try:
            while version["status"] in WAITING:
                update(
                    f"Version {version['number']}: {version['status']} {version['progress']:.0%}"
                )
                time.sleep(POLL_S)
                version = retry.run(lambda: server.get(own))
        except KeyboardInterrupt:
            output.say("\nIt goes on; 'stoker versions list MODEL' shows what becomes of it.")
            raise
    if version["status"] == "failed":
        raise CliError(
            f"Version {version['number']} has failed: {version['message']}",
            hint="What was live before is live still.",
        )
    return version


def changed(server: Client, path: str, changes: JsonObject) -> JsonObject:
    """A deployment once it was changed, by a version that has taken over where it needs one.

    Args:
        path: of the deployment.

    Raises `CliError` where that one fails.
    """
    server.json(Request(method="PATCH", path=path, json=changes))
    versions = f"{path}/versions"
    settled(server, versions, next(iter(server.pages(versions))))
    return server.get(path)


def _show_settled(
    server: Client, path: str, version: JsonObject, *, no_wait: bool, as_json: bool
) -> None:
    if not no_wait:
        version = settled(server, path, version)
        output.say(f"Version {version['number']} is {version['status']}.", style="green")
    output.show_object(version, DETAILS, as_json=as_json)


def _found(server: Client, path: str, which: str) -> JsonObject:
    """A version by its number or id. Raises `CliError`."""
    if which.isdigit():
        for version in server.pages(f"{path}/versions"):
            if version["number"] == int(which):
                return version
        raise CliError(f"There is no version {which}.")
    return server.get(f"{path}/versions/{quoted(which)}")


def _shares(server: Client, path: str, shares: list[str]) -> JsonObject:
    return {_found(server, path, which)["id"]: percent for which, percent in map(_share, shares)}


def _share(text: str) -> tuple[str, int]:
    which, _, percent = text.rpartition("=")
    if not which or not percent.isdigit():
        raise WrongUseError(f"'{text}' is no share.", hint="Write them as in 1=90 2=10.")
    return which, int(percent)
