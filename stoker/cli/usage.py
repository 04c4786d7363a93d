"""`stoker usage`, `stoker credits` and `stoker prices`: show usage and costs."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, Client, JsonObject, quoted
from stoker.client.errors import WrongUseError

credits_app = typer.Typer(
    invoke_without_command=True, help="Show the account's balance. Operators grant credits."
)
prices_app = typer.Typer(invoke_without_command=True, help="Show prices. Operators set them.")

USAGE, CREDITS, PRICES = "/v1/usage", "/v1/credits", "/v1/prices"
MICRO = 1_000_000
BAR = 20
"""Width of the longest bar in characters."""
EIGHTHS = " ▏▎▍▌▋▊▉"

Account = Annotated[
    str | None, typer.Option(metavar="ID", help="Account (acct_…) to act for (operators only).")
]
Moment = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="UTC time, such as 2026-11-21 or 2026-11-21T10:00:00Z."),
]
Amount = Annotated[str, typer.Argument(metavar="AMOUNT", help="Credits, such as 100 or 12.5.")]


def _amount(microcredits: int) -> str:
    return f"{Decimal(microcredits) / MICRO:f}"


NUMBERS: Columns = {
    "credits": lambda r: _amount(r["microcredits"]),
    "memory GiB-h": lambda r: f"{r['memory_gib_hours']:.6f}",
    "storage GiB-h": lambda r: f"{r['storage_gib_hours']:.6f}",
    "requests": lambda r: r["requests"],
    "errors": lambda r: r["errors"],
    "input tokens": lambda r: r["input_tokens"],
    "output tokens": lambda r: r["output_tokens"],
    "images": lambda r: r["images"],
    "audio s": lambda r: r["audio_ms"] / 1000,
    "video s": lambda r: r["video_ms"] / 1000,
}
FLEX: Columns = {"flex GiB-h": lambda r: f"{r['flex_gib_hours']:.6f}"}
"""Part of the memory at the price of background work."""
FROM: Columns = {"from": lambda r: output.moment(r["start"])}
GROUPS: dict[str, Columns] = {
    "deployment": {"model": lambda r: r["model"] or "(storage)"},
    "version": {
        "model": lambda r: r["model"] or "(no version)",
        "version": lambda r: r["version_id"] or "",
    },
    "day": FROM,
    "hour": FROM,
    "key": {
        "key": lambda r: r["key_id"] or "(no key)",
        "key name": lambda r: r["key_name"] or "",
    },
    "tier": {"tier": lambda r: r["tier"] or "(none)"},
}
"""Maps a group to the columns that identify its rows."""

EVENT: Columns = {
    "hour": lambda e: output.moment(e["hour"]),
    "type": lambda e: e["type"],
    "name": lambda e: e["name"],
    "tier": lambda e: e.get("tier"),
    "credits": lambda e: _amount(e["microcredits"]) if "microcredits" in e else "",
    "peak MiB": lambda e: e.get("peak_mib"),
    "requests": lambda e: e.get("requests"),
    "mirrored": lambda e: e.get("mirrored"),
    "input tokens": lambda e: e.get("input_tokens"),
    "output tokens": lambda e: e.get("output_tokens"),
}
BALANCE: Columns = {
    "account": lambda c: c["account_id"],
    "balance": lambda c: c["balance"],
    "pending": lambda c: _amount(c["pending_microcredits"]),
    "per GiB-hour of memory": lambda c: _amount(c["price"]["memory_microcredits_per_gib_hour"]),
    "per GiB-hour of flex": lambda c: _amount(c["price"]["flex_microcredits_per_gib_hour"]),
    "per GiB-month of storage": lambda c: _amount(c["price"]["storage_microcredits_per_gib_month"]),
}
TRANSFER: Columns = {
    "id": lambda t: t["id"],
    "account": lambda t: t["account_id"],
    "kind": lambda t: t["kind"],
    "credits": lambda t: _amount(t["microcredits"]),
    "note": lambda t: t["note"],
}
PRICE: Columns = {
    "version": lambda p: p["version"],
    "from": lambda p: output.moment(p["effective_from"]),
    "per GiB-hour of memory": lambda p: _amount(p["memory_microcredits_per_gib_hour"]),
    "per GiB-hour of flex": lambda p: _amount(p["flex_microcredits_per_gib_hour"]),
    "per GiB-month of storage": lambda p: _amount(p["storage_microcredits_per_gib_month"]),
}


def usage(
    ctx: typer.Context,
    *,
    by: Annotated[
        str,
        typer.Option(
            metavar="GROUPS",
            help=f"Grouping: {', '.join(GROUPS)}, or several, such as day,deployment.",
        ),
    ] = "deployment",
    start: Moment = None,
    end: Moment = None,
    account: Account = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    events: Annotated[
        bool, typer.Option("--events", help="List individual usage records by hour.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show usage and costs of the last 30 days, or of 24 hours if grouped by hour."""
    if events:
        _show_events(client(ctx), {"start": start, "end": end}, account, as_json=as_json)
        return
    query = {"group_by": by, "start": start, "end": end, "format": "csv" if csv else "json"}
    request = ApiRequest(
        method="GET",
        path=USAGE,
        params={name: value for name, value in query.items() if value},
        headers=_for(account),
    )
    if csv:
        for number, text in enumerate(client(ctx).text_pages(request)):
            # Each page has a header line.
            sys.stdout.write(text if number == 0 else text.partition("\n")[2])
        return
    report = _whole(client(ctx), request)
    if as_json:
        output.print_json(report)
        return
    groups = report["group_by"].split(",")
    group_columns = {name: value for group in groups for name, value in GROUPS[group].items()}
    mirrored: Columns = {"mirrored": lambda r: r["mirrored"]} if "version" in groups else {}
    flex: Columns = FLEX if report["total"]["flex_mib_ms"] else {}
    columns: Columns = {**group_columns, **_bar(report["data"]), **NUMBERS, **flex, **mirrored}
    output.show_list(report["data"], columns, as_json=False, none="No usage in this period.")
    if report["data"]:
        output.say(f"Total: {_amount(report['total']['microcredits'])} credits.", style="dim")


def _whole(server: Client, request: ApiRequest) -> JsonObject:
    """Returns a report with the rows of all pages."""
    report: JsonObject = server.json(request)
    while page := report["next_page"]:
        following = server.json(replace(request, params={**request.params, "page": page}))
        report |= {name: following[name] for name in ("has_more", "next_page")}
        report["data"] += following["data"]
    return report


def _bar(rows: Sequence[JsonObject]) -> Columns:
    """Returns a column of bars, relative to the most expensive row."""
    most = max((row["microcredits"] for row in rows), default=0)

    def bar(row: JsonObject) -> str:
        eighths = round(BAR * 8 * row["microcredits"] / most) if most > 0 else 0
        whole, rest = divmod(max(0, eighths), 8)
        return ("█" * whole + (EIGHTHS[rest] if rest else "")).ljust(BAR) if most > 0 else ""

    return {"": bar}


def _show_events(
    server: Client, span: dict[str, str | None], account: str | None, *, as_json: bool
) -> None:
    query = {name: value for name, value in span.items() if value}
    rows = list(server.pages(f"{USAGE}/events", params=query, headers=_for(account)))
    output.show_list(rows, EVENT, as_json=as_json, none="No usage in this period.")


@credits_app.callback()
def balance(ctx: typer.Context, account: Account = None, as_json: AsJson = False) -> None:
    """Show the account's balance. Operators grant credits."""
    if ctx.invoked_subcommand is None:
        request = ApiRequest(method="GET", path=CREDITS, headers=_for(account))
        output.show_object(client(ctx).json(request), BALANCE, as_json=as_json)


@credits_app.command()
def transfers(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")] = 50,
    account: Account = None,
    as_json: AsJson = False,
) -> None:
    """List grants and charges of the account."""
    rows = list(client(ctx).pages(f"{CREDITS}/transfers", limit, headers=_for(account)))
    output.show_list(rows, TRANSFER, as_json=as_json, none="No grants or charges yet.")


@credits_app.command()
def grant(
    ctx: typer.Context,
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Account ID (acct_…).")],
    amount: Amount,
    *,
    note: Annotated[str | None, typer.Option(help="Reason for the grant.")] = None,
    correction: Annotated[
        bool, typer.Option("--correction", help="Take credits back instead of granting them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Grant credits to an account."""
    microcredits = _microcredits(amount)
    body = {
        "amount_microcredits": -microcredits if correction else microcredits,
        "correction": correction,
        "note": note,
    }
    moved = client(ctx).create(f"/v1/accounts/{quoted(account)}/credits", body)
    output.show_object(moved, TRANSFER, as_json=as_json)


@prices_app.callback()
def prices(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Show prices. Operators set them."""
    if ctx.invoked_subcommand is None:
        known = list(client(ctx).pages(PRICES))
        output.show_list(known, PRICE, as_json=as_json, none="No prices yet.")


@prices_app.command("set")
def set_prices(
    ctx: typer.Context,
    memory: Annotated[
        str, typer.Argument(metavar="MEMORY", help="Credits per GiB-hour of memory.")
    ],
    storage: Annotated[
        str, typer.Argument(metavar="STORAGE", help="Credits per GiB-month of storage.")
    ],
    *,
    flex: Annotated[
        str | None,
        typer.Option(
            metavar="CREDITS",
            help="Credits per GiB-hour of memory during background work. Default: half of MEMORY.",
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Full hour in the future. Default: the next one."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set the prices that apply from a full hour onwards."""
    body: JsonObject = {
        "memory_microcredits_per_gib_hour": _microcredits(memory),
        "storage_microcredits_per_gib_month": _microcredits(storage),
    }
    if flex is not None:
        body["flex_microcredits_per_gib_hour"] = _microcredits(flex)
        if _microcredits(flex) > _microcredits(memory):
            raise WrongUseError(
                "Background work must not cost more than other work.",
                hint=f"Use --flex with at most {memory} credits.",
            )
    if begin:
        body["effective_from"] = begin
    output.show_object(client(ctx).create(PRICES, body), PRICE, as_json=as_json)


def _for(account: str | None) -> dict[str, str]:
    return {"x-stoker-account": account} if account else {}


def _microcredits(text: str) -> int:
    """Parses credits exactly: ``12.5`` → ``12500000``."""
    try:
        amount = Decimal(text) * MICRO
        if amount >= 0 and amount == int(amount):
            return int(amount)
    except (InvalidOperation, OverflowError, ValueError):
        pass
    raise WrongUseError(
        f"'{text}' is not an amount of credits.",
        hint="Use an amount such as 100 or 12.5, with up to six decimal places.",
    )
