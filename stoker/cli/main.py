"""The `stoker` command."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli import (
    accounts,
    agents,
    artifacts,
    call,
    chat,
    deploy,
    deployments,
    doctor,
    engines,
    files,
    keys,
    media,
    output,
    usage,
    videos,
)
from stoker.cli.context import DEFAULT_BASE_URL, Context
from stoker.cli.settings import read_settings
from stoker.client.errors import CliError
from stoker.plugins import PluginError

if TYPE_CHECKING:
    from stoker.config import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


@app.callback()
def root(
    ctx: typer.Context,
    base_url: Annotated[
        str, typer.Option(envvar="STOKER_BASE_URL", help="Address of the server.")
    ] = DEFAULT_BASE_URL,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="STOKER_API_KEY",
            show_envvar=True,
            help="API key. Others see it in the list of processes: the variable is the safer way.",
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            envvar="STOKER_ACCOUNT",
            show_envvar=True,
            metavar="ID",
            help="With an operator's key: the account (acct_…) to act for.",
        ),
    ] = None,
) -> None:
    """Keeps a team's own machine-learning models hot."""
    ctx.obj = Context(base_url=base_url, api_key=api_key, account=account)


Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port; 0 picks a free one.")]
DataDir = Annotated[Path | None, typer.Option(help="Database, artifacts, logs.")]


def _settings(host: str | None, port: int | None, data_dir: Path | None) -> "Settings":
    given: dict[str, Any] = {"host": host, "port": port, "data_dir": data_dir}
    return read_settings(**{name: value for name, value in given.items() if value is not None})


@app.command()
def serve(host: Host = None, port: Port = None, data_dir: DataDir = None) -> None:
    """Start the server, empty. The operator key is written to DATA_DIR/operator-key."""
    from stoker.server import bootstrap
    from stoker.server import serve as server

    server.run(_settings(host, port, data_dir), bootstrap.announce)


@app.command()
def demo(host: Host = None, port: Port = None, data_dir: DataDir = None) -> None:
    """Start the server with the demo models deployed, and print calls to copy."""
    from stoker.demo import command

    command.run(_settings(host, port, data_dir))


app.command()(call.call)
app.command()(chat.chat)
app.command()(media.image)
app.command()(media.speak)
app.command()(media.transcribe)
app.command()(videos.video)
app.command()(call.models)
app.command()(deploy.deploy)
app.add_typer(deployments.app, name="deployments")
app.add_typer(videos.app, name="videos")
app.add_typer(files.app, name="files")
app.add_typer(agents.app, name="agents")
app.add_typer(artifacts.app, name="artifacts")
app.add_typer(engines.app, name="engines")
app.add_typer(keys.app, name="keys")
app.add_typer(accounts.app, name="accounts")
app.command()(usage.usage)
app.add_typer(usage.credits_app, name="credits")
app.add_typer(usage.prices_app, name="prices")
app.command()(doctor.doctor)


def main() -> None:
    try:
        app()
    except CliError as error:
        output.show_error(error)
        sys.exit(error.exit_code)
    except (OSError, PluginError) as error:
        output.show_error(CliError(str(error)))
        sys.exit(1)
