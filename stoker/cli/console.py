"""`stoker open`: opens the console in a browser, signed in."""

import webbrowser
from typing import Annotated

import typer

from stoker.cli import output
from stoker.cli.context import client
from stoker.cli.output import AsJson

LINKS = "/v1/console/links"


def open_console(
    ctx: typer.Context,
    *,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the browser, or only print the link."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Open the console in a browser. A one-time link signs you in."""
    link = client(ctx).post(LINKS)
    if as_json:
        output.print_json(link)
        return
    if browser and webbrowser.open(link["url"]):
        output.say("Opened the console in your browser.")
        return
    print(output.printable(link["url"]))
    output.say("Open this link within one minute. It signs in one browser, once.", style="dim")
