"""`stoker keys`: who may call what."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from stoker.cli import deployments, output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import JsonObject, quoted
from stoker.client.errors import WrongUseError

app = typer.Typer(no_args_is_help=True, help="API keys: create, list, show, rotate, revoke.")

KEYS = "/v1/api-keys"
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Scope = Literal["deployment", "account", "operator"]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="The key's id (key_…).")]

LIST: Columns = {
    "id": lambda k: k["id"],
    "name": lambda k: k["name"],
    "scope": lambda k: k["scope"],
    "deployments": lambda k: ", ".join(k["deployment_ids"]),
    "account": lambda k: k["account_id"],
    "created": lambda k: output.moment(k["created_at"]),
    "expires": lambda k: output.moment(k["expires_at"]),
    "last used": lambda k: output.moment(k["last_used_at"]),
}
DETAILS: Columns = {
    **LIST,
    "requests a minute": lambda k: k["requests_per_minute"],
    "tokens a minute": lambda k: k["tokens_per_minute"],
}


@app.command()
def create(
    ctx: typer.Context,
    *,
    scope: Annotated[
        Scope, typer.Option(help="deployment: call models; account: manage one; operator: all.")
    ] = "deployment",
    deployment: Annotated[
        list[str] | None,
        typer.Option(help="A deployment, by id or model id, that the key may call; repeatable."),
    ] = None,
    account_id: Annotated[
        str | None, typer.Option(help="Operators: the account that the key belongs to.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name to know it by.")] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="TIME", help="As in 12h or 30d; never by default.")
    ] = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests that it may make; any.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens that its calls may take; any.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. It is printed this once, alone on stdout."""
    expires_at = datetime.now(UTC) + duration(expires_in) if expires_in else None
    server = client(ctx)
    wish = {
        "scope": scope,
        "deployment_ids": [deployments.resolve(server, which) for which in deployment or ()],
        "account_id": account_id,
        "name": name,
        "expires_at": expires_at.isoformat() if expires_at else None,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    given = {field: value for field, value in wish.items() if value}
    _show_secret(server.create(KEYS, given), as_json=as_json)


@app.command("list")
def list_keys(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List the keys, without their secrets."""
    keys = list(client(ctx).pages(KEYS))
    output.show_list(keys, LIST, as_json=as_json, none="There are no keys.")


@app.command()
def show(ctx: typer.Context, key_id: KeyId, as_json: AsJson = False) -> None:
    """Show a key with its limits, without its secret."""
    output.show_object(client(ctx).get(f"{KEYS}/{quoted(key_id)}"), DETAILS, as_json=as_json)


@app.command()
def rotate(
    ctx: typer.Context,
    key_id: KeyId,
    grace_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds that the old secret lives on; a day.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret. It is printed this once, alone on stdout."""
    body = None if grace_s is None else {"grace_s": grace_s}
    key = client(ctx).post(f"{KEYS}/{quoted(key_id)}/rotate", body)
    _show_secret(key, as_json=as_json)


@app.command()
def revoke(ctx: typer.Context, key_id: KeyId, as_json: AsJson = False) -> None:
    """Revoke a key, at once."""
    answer = client(ctx).delete(f"{KEYS}/{quoted(key_id)}")
    output.show_done(answer, f"Revoked {key_id}.", as_json=as_json)


def duration(text: str) -> timedelta:
    """A time as in ``90s``, ``15m``, ``12h``, ``30d`` or ``2w``."""
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if not found:
        raise WrongUseError(f"'{text}' is no time.", hint="Give one like 90s, 15m, 12h, 30d or 2w.")
    return timedelta(seconds=int(found[1]) * UNIT_S[found[2]])


def _show_secret(key: JsonObject, *, as_json: bool) -> None:
    if as_json:
        output.print_json(key)
        return
    print(key["key"])
    expires = f", expires {output.moment(key['expires_at'])}" if key["expires_at"] else ""
    output.say(f"{key['id']}, scope {key['scope']}{expires}. It is not shown again.")
