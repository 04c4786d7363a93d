"""`stoker accounts`: manages accounts (operators only)."""

from typing import Annotated

import typer

from stoker.cli import completion, confirmation, output
from stoker.cli.confirmation import Yes
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, quoted
from stoker.client.errors import WrongUseError

app = typer.Typer(no_args_is_help=True, help="Manage accounts (requires an operator key).")

ACCOUNTS = "/v1/accounts"

Which = Annotated[
    str,
    typer.Argument(
        metavar="ACCOUNT", help="Account ID (acct_…).", autocompletion=completion.accounts
    ),
]

LIST: Columns = {
    "id": lambda a: a["id"],
    "name": lambda a: a["name"],
    "created": lambda a: output.moment(a["created_at"]),
}
DETAILS: Columns = {
    **LIST,
    "custom limits": lambda a: ", ".join(f"{k}={v}" for k, v in a["quotas"].items()),
}
QUOTA: Columns = {
    "quota": lambda q: q["name"],
    "used": lambda q: q["used"],
    "limit": lambda q: "none" if q["limit"] is None else q["limit"],
}


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Account name.")],
    as_json: AsJson = False,
) -> None:
    """Create an account."""
    account = client(ctx).create(ACCOUNTS, {"name": name})
    output.show_object(account, LIST, as_json=as_json)
    output.say(
        f"Create a key with: stoker keys create --scope account --account-id {account['id']}",
        style="dim",
    )


@app.command("list")
def list_accounts(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List all accounts, newest first."""
    accounts = list(client(ctx).pages(ACCOUNTS))
    none = "No accounts yet. Create one with 'stoker accounts create NAME'."
    output.show_list(accounts, LIST, as_json=as_json, none=none)


@app.command()
def show(
    ctx: typer.Context,
    account: Which,
    as_json: AsJson = False,
) -> None:
    """Show an account and its custom limits."""
    details = client(ctx).get(f"{ACCOUNTS}/{quoted(account)}")
    output.show_object(details, DETAILS, as_json=as_json)


@app.command()
def delete(
    ctx: typer.Context,
    account: Which,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete an account and erase all its data (operators only). This cannot be undone."""
    answer = confirmation.delete(
        client(ctx),
        f"{ACCOUNTS}/{quoted(account)}",
        lambda a: (
            f"Delete account {account} ('{a['name']}'), revoke its keys, and erase its "
            "models, deployments, files and all other data?"
        ),
        yes=yes,
    )
    output.show_done(answer, f"Deleted {account}.", as_json=as_json)


@app.command()
def quotas(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show the account's quotas: usage and limits."""
    response = client(ctx).get("/v1/quotas")
    if as_json:
        output.print_json(response)
        return
    rows = [{"name": name, **quota} for name, quota in response["quotas"].items()]
    output.show_list(rows, QUOTA, as_json=False, none="No quotas are set.")


@app.command()
def limit(
    ctx: typer.Context,
    account: Which,
    limits: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=NUMBER...",
            help="Limits, such as deployments=50. An empty value restores the default.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Set custom limits for an account (operators only)."""
    body = {"quotas": dict(_limit(text) for text in limits)}
    request = ApiRequest(method="PATCH", path=f"{ACCOUNTS}/{quoted(account)}", json=body)
    output.show_object(client(ctx).json(request), DETAILS, as_json=as_json)


def _limit(text: str) -> tuple[str, int | None]:
    name, _, number = text.partition("=")
    if "=" not in text or not (number.isdecimal() or not number):
        raise WrongUseError(
            f"'{text}' is not a limit.", hint="Use NAME=NUMBER, such as deployments=50."
        )
    return name, int(number) if number else None
