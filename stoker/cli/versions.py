"""`stoker versions`: rolls out and rolls back versions of a deployment."""

import time
from typing import Annotated

import typer

from stoker.cli import completion, output
from stoker.cli.artifact_ids import artifact_id
from stoker.cli.confirmation import Yes, confirm
from stoker.cli.context import client
from stoker.cli.deployments import Which as Model
from stoker.cli.deployments import path_of
from stoker.cli.engine_options import Config, Devices, WeightFormat, engine_config, given
from stoker.cli.imports import SCHEME, Reference, import_new, token_from
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, Client, JsonObject, Retry, quoted
from stoker.client.errors import StokerError, WrongUseError

app = typer.Typer(no_args_is_help=True, help="Roll out new versions of a deployment and roll back.")

Which = Annotated[str, typer.Argument(metavar="VERSION", help="Version number or ID (ver_…).")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until the version is live or failed.")
]
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
    "created": lambda v: output.moment(v["created_at"]),
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
    return "" if mean is None else f"{mean:.4g} ms, max {latency['longest_ms']:.4g} ms"


COMPARISON: Columns = {
    "compared": lambda c: c["compared"],
    "failed": lambda c: c["failed"],
    "dropped": lambda c: c["dropped"],
    "different": lambda c: c["differing"],
    "equal top labels": lambda c: _percent(c["equal_top_labels"]),
    "equal texts": lambda c: _percent(c["equal_texts"]),
    "mean cosine": lambda c: c["mean_cosine"],
    "min cosine": lambda c: c["least_cosine"],
    "max difference": lambda c: c["difference"],
    "live": lambda c: _milliseconds(c["live"]),
    "mirror": lambda c: _milliseconds(c["mirror"]),
}


EXAMPLE: Columns = {name: lambda e, name=name: e[name] for name in ("request", "live", "mirror")}


@app.command("list")
def list_versions(ctx: typer.Context, model: Model, as_json: AsJson = False) -> None:
    """List a deployment's versions, newest first."""
    server = client(ctx)
    rows = list(server.pages(f"{path_of(server, model)}/versions"))
    output.show_list(rows, LIST, as_json=as_json, none="No versions yet.")


@app.command()
def show(ctx: typer.Context, model: Model, which: Which, as_json: AsJson = False) -> None:
    """Show a version, with its progress or error."""
    server = client(ctx)
    output.show_object(_found(server, path_of(server, model), which), DETAILS, as_json=as_json)


@app.command()
def add(
    ctx: typer.Context,
    model: Model,
    artifact: Annotated[
        str | None,
        typer.Argument(
            metavar="ARTIFACT",
            help="Artifact ID (art_…), artifact name, or hub model (hf:org/name).",
            autocompletion=completion.artifacts,
        ),
    ] = None,
    *,
    engine: Annotated[str | None, typer.Option(help="Engine, if different.")] = None,
    device: Annotated[str | None, typer.Option(help="Device, if different.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtype, if different.")] = None,
    weight_format: WeightFormat = None,
    devices: Devices = None,
    config: Config = None,
    note: Annotated[str, typer.Option(help="Description of the change.")] = "",
    manual: Annotated[
        bool,
        typer.Option("--manual", help="Wait for 'promote' after the version passes its checks."),
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Unload the live version first, if memory does not fit both."
        ),
    ] = False,
    token_variable: Annotated[
        str | None,
        typer.Option(
            "--token-from",
            metavar="VARIABLE",
            help="Environment variable that holds the hub token, such as HF_TOKEN.",
        ),
    ] = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Create a version with a new model, engine, device, dtype or engine options.

    The version is loaded, tested and checked. It goes live if all of this succeeds.
    """
    server = client(ctx)
    path = f"{path_of(server, model)}/versions"
    if artifact and artifact.startswith(SCHEME):
        reference, token = Reference.parse(artifact), token_from(token_variable)
        artifact = str(import_new(server, reference, token=token)["id"])
    elif token_variable:
        raise WrongUseError("--token-from requires a hub model (hf:…).")
    body = given(
        artifact_id=artifact and artifact_id(server, artifact),
        engine=engine,
        device=device,
        dtype=dtype,
        config=engine_config(config, weight_format=weight_format, devices=devices),
    )
    if not body:
        raise WrongUseError("Nothing to change.", hint="Give an ARTIFACT, or an option.")
    body |= {
        "note": note,
        "promote": "manual" if manual else "when_ready",
        "strategy": "in_place" if in_place else "beside",
    }
    made = server.create(path, body)
    _show_settled(server, path, made, wait=wait, as_json=as_json)


@app.command()
def promote(
    ctx: typer.Context, model: Model, which: Which, wait: Wait = True, as_json: AsJson = False
) -> None:
    """Make a version live."""
    server = client(ctx)
    path = path_of(server, model)
    version = _found(server, path, which)
    promoted = server.post(f"{path}/versions/{quoted(version['id'])}/promote")
    _show_settled(server, f"{path}/versions", promoted, wait=wait, as_json=as_json)


@app.command()
def rollback(
    ctx: typer.Context,
    model: Model,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", help="Version number or ID. Default: the previous live version."
        ),
    ] = None,
    wait: Wait = True,
    as_json: AsJson = False,
) -> None:
    """Roll back to the previous live version or an earlier one."""
    server = client(ctx)
    path = path_of(server, model)
    body = {"version": _found(server, path, to)["id"]} if to else {}
    back = server.post(f"{path}/rollback", body)
    _show_settled(server, f"{path}/versions", back, wait=wait, as_json=as_json)


@app.command()
def traffic(
    ctx: typer.Context,
    model: Model,
    shares: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION=PERCENT",
            help="Traffic shares, such as 1=90 2=10. They must add up to 100.",
        ),
    ],
    *,
    sticky: Annotated[
        str,
        typer.Option(
            help="Route calls with the same value to one version: none, key, user or header:NAME."
        ),
    ] = "none",
    mirror: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VERSION=PERCENT",
            help="Percentage of calls to mirror. Mirrored answers are not returned. Repeatable.",
        ),
    ] = None,
    examples: Annotated[
        bool,
        typer.Option("--examples", help="Keep recent calls whose mirrored answers differ."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Split traffic between versions."""
    server = client(ctx)
    path = path_of(server, model)
    weights = _shares(server, path, shares)
    body = {
        "weights": weights,
        "sticky": sticky,
        "mirror": _shares(server, path, mirror or []),
        "examples": examples,
    }
    deployment = server.json(ApiRequest(method="PUT", path=f"{path}/traffic", json=body))
    parts = ", ".join(f"{version} {percent} %" for version, percent in weights.items())
    output.show_done(deployment, f"{deployment['model']}: {parts}.", as_json=as_json)


@app.command()
def compare(ctx: typer.Context, model: Model, which: Which, as_json: AsJson = False) -> None:
    """Compare a mirror version's answers with the live version's."""
    server = client(ctx)
    path = path_of(server, model)
    version = _found(server, path, which)
    comparison = server.get(f"{path}/versions/{quoted(version['id'])}/comparison")
    output.show_object(comparison, COMPARISON, as_json=as_json)
    if comparison["examples"] and not as_json:
        output.show_list(comparison["examples"], EXAMPLE, as_json=False, none="")


@app.command()
def delete(
    ctx: typer.Context,
    model: Model,
    which: Which,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a version that is not live. A rollout in progress is cancelled."""
    server = client(ctx)
    path = path_of(server, model)
    version = _found(server, path, which)
    confirm(f"Delete version {version['number']} of {model}?", yes=yes)
    deleted = server.delete(f"{path}/versions/{quoted(version['id'])}")
    output.show_done(deleted, f"Deleted {version['id']}.", as_json=as_json)


def settled(server: Client, path: str, version: JsonObject) -> JsonObject:
    """Waits until a version is verified, live or failed, and returns it.

    Args:
        path: path of the deployment's versions.
    """
    retry, version_path = Retry(), f"{path}/{quoted(version['id'])}"
    with output.spinner(f"Version {version['number']}: waiting …") as update:
        try:
            while version["status"] in WAITING:
                update(
                    f"Version {version['number']}: {version['status']} {version['progress']:.0%}"
                )
                time.sleep(POLL_S)
                version = retry.run(lambda: server.get(version_path))
        except KeyboardInterrupt:
            output.say(
                "\nThe rollout continues. Use 'stoker versions list MODEL' to see its progress."
            )
            raise
    if version["status"] == "failed":
        raise StokerError(
            f"Version {version['number']} failed: {version['message']}",
            hint="The previous version is still live.",
        )
    return version


def changed(server: Client, path: str, changes: JsonObject) -> JsonObject:
    """Waits for the version of a change, if it needs one. Returns the deployment.

    Args:
        path: path of the deployment.

    Raises `StokerError` if the version fails.
    """
    server.json(ApiRequest(method="PATCH", path=path, json=changes))
    versions = f"{path}/versions"
    settled(server, versions, next(iter(server.pages(versions))))
    return server.get(path)


def _show_settled(
    server: Client, path: str, version: JsonObject, *, wait: bool, as_json: bool
) -> None:
    if wait:
        version = settled(server, path, version)
        output.say(f"Version {version['number']} is {version['status']}.", style="green")
    output.show_object(version, DETAILS, as_json=as_json)


def _found(server: Client, path: str, which: str) -> JsonObject:
    """Returns a version by its number or ID. Raises `StokerError`."""
    if which.isdigit():
        for version in server.pages(f"{path}/versions"):
            if version["number"] == int(which):
                return version
        raise StokerError(f"Version {which} not found.")
    return server.get(f"{path}/versions/{quoted(which)}")


def _shares(server: Client, path: str, shares: list[str]) -> JsonObject:
    return {_found(server, path, which)["id"]: percent for which, percent in map(_share, shares)}


def _share(text: str) -> tuple[str, int]:
    which, _, percent = text.rpartition("=")
    if not which or not percent.isdigit():
        raise WrongUseError(
            f"'{text}' is not a traffic share.", hint="Use VERSION=PERCENT, such as 1=90 2=10."
        )
    return which, int(percent)
