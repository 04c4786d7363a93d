"""`stoker keys`: manages API keys."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from stoker.cli import completion, confirmation, deployments, output
from stoker.cli.confirmation import Yes
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, JsonObject, quoted
from stoker.client.errors import WrongUseError

app = typer.Typer(no_args_is_help=True, help="Manage API keys: create, list, show, rotate, revoke.")

KEYS = "/v1/api-keys"
UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Scope = Literal["deployment", "account", "operator"]
KeyId = Annotated[
    str,
    typer.Argument(metavar="ID", help="Key ID (key_…).", autocompletion=completion.keys),
]

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
    "requests per minute": lambda k: k["requests_per_minute"],
    "tokens per minute": lambda k: k["tokens_per_minute"],
    "may prioritize": lambda k: k["may_prioritize"],
}


@app.command()
def create(
    ctx: typer.Context,
    *,
    scope: Annotated[
        Scope,
        typer.Option(
            help="deployment: call models. account: manage an account. operator: manage the server."
        ),
    ] = "deployment",
    deployment: Annotated[
        list[str] | None,
        typer.Option(
            help="ID or model ID of a deployment that the key can call. Repeatable.",
            autocompletion=completion.deployments,
        ),
    ] = None,
    account_id: Annotated[
        str | None,
        typer.Option(
            help="Account that the key belongs to (operators only).",
            autocompletion=completion.accounts,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Key name.")] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time until the key expires, such as 12h or 30d. Default: never."
        ),
    ] = None,
    requests_per_minute: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum requests per minute. Default: no limit."),
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum tokens per minute. Default: no limit."),
    ] = None,
    may_prioritize: Annotated[
        bool, typer.Option("--may-prioritize", help="Allow the service tier 'priority'.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a key. The key is printed once, to stdout."""
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
        "may_prioritize": may_prioritize,
    }
    fields = {field: value for field, value in wish.items() if value}
    _show_secret(server.create(KEYS, fields), as_json=as_json)


@app.command("list")
def list_keys(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List keys without their secrets."""
    keys = list(client(ctx).pages(KEYS))
    output.show_list(keys, LIST, as_json=as_json, none="No keys yet.")


@app.command()
def show(ctx: typer.Context, key_id: KeyId, as_json: AsJson = False) -> None:
    """Show a key and its limits, without its secret."""
    output.show_object(client(ctx).get(f"{KEYS}/{quoted(key_id)}"), DETAILS, as_json=as_json)


@app.command()
def change(
    ctx: typer.Context,
    key_id: KeyId,
    *,
    may_prioritize: Annotated[
        bool,
        typer.Option(
            "--may-prioritize/--may-not-prioritize",
            help="Allow or refuse the service tier 'priority'.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Change a key's rights. Its secret stays valid."""
    body = {"may_prioritize": may_prioritize}
    request = ApiRequest(method="PATCH", path=f"{KEYS}/{quoted(key_id)}", json=body)
    output.show_object(client(ctx).json(request), DETAILS, as_json=as_json)


@app.command()
def rotate(
    ctx: typer.Context,
    key_id: KeyId,
    grace_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds that the old secret stays valid. Default: one day."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rotate a key's secret. The new key is printed once, to stdout."""
    body = None if grace_s is None else {"grace_s": grace_s}
    key = client(ctx).post(f"{KEYS}/{quoted(key_id)}/rotate", body)
    _show_secret(key, as_json=as_json)


@app.command()
def revoke(ctx: typer.Context, key_id: KeyId, yes: Yes = False, as_json: AsJson = False) -> None:
    """Revoke a key immediately."""
    answer = confirmation.delete(client(ctx), f"{KEYS}/{quoted(key_id)}", _question, yes=yes)
    output.show_done(answer, f"Revoked {key_id}.", as_json=as_json)


def _question(key: JsonObject) -> str:
    name = f" ('{key['name']}')" if key["name"] else ""
    return f"Revoke key {key['id']}{name}, scope {key['scope']}?"


def duration(text: str) -> timedelta:
    """Parses a duration such as ``90s``, ``15m``, ``12h``, ``30d`` or ``2w``."""
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if not match:
        raise WrongUseError(
            f"'{text}' is not a duration.", hint="Use a duration such as 90s, 15m, 12h, 30d or 2w."
        )
    return timedelta(seconds=int(match[1]) * UNIT_S[match[2]])


def _show_secret(key: JsonObject, *, as_json: bool) -> None:
    if as_json:
        output.print_json(key)
        return
    print(key["key"])
    expires = f", expires {output.moment(key['expires_at'])}" if key["expires_at"] else ""
    output.say(f"{key['id']}, scope {key['scope']}{expires}. The key is not shown again.")
