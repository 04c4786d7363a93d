"""`stoker accounts`: for operators."""

from typing import Annotated

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns

app = typer.Typer(no_args_is_help=True, help="Accounts (needs an operator key).")

ACCOUNTS = "/v1/accounts"

LIST: Columns = {
    "id": lambda a: a["id"],
    "name": lambda a: a["name"],
    "created": lambda a: output.moment(a["created_at"]),
}


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The account's name.")],
    as_json: AsJson = False,
) -> None:
    """Create an account."""
    account = client(ctx).create(ACCOUNTS, {"name": name})
    output.show_object(account, LIST, as_json=as_json)
    output.say(
        f"Its first key: stoker keys create --scope account --account-id {account['id']}",
        style="dim",
    )


@app.command("list")
def list_accounts(ctx: typer.Context, as_json: AsJson = False) -> None:
    """List all accounts, newest first."""
    accounts = list(client(ctx).pages(ACCOUNTS))
    none = "There are no accounts. Make one with 'stoker accounts create NAME'."
    output.show_list(accounts, LIST, as_json=as_json, none=none)
