"""`stoker engines`: Python environments for engines that cannot live in ours. Needs no server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.output import AsJson, Columns
from stoker.cli.settings import read_settings
from stoker.client.errors import CliError, WrongUseError

if TYPE_CHECKING:
    from stoker.base.config import Settings
    from stoker.models.engines.environments import Environment

app = typer.Typer(
    no_args_is_help=True,
    help="Engines with a Python environment of their own, below the data folder.",
)

DataDir = Annotated[
    Path | None, typer.Option(help="The server's data folder; default: STOKER_DATA_DIR's.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The engine, as in vllm.")]

FIELDS: Columns = {
    "name": lambda e: e["name"],
    "status": lambda e: e["status"],
    "package": lambda e: e["package"],
    "version": lambda e: e["version"],
    "python": lambda e: e["python"],
}


@app.command()
def install(
    name: Name,
    cpu: Annotated[bool, typer.Option("--cpu", help="The build for CPUs.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make an engine's environment: some minutes, and gigabytes of disk."""
    from stoker.models.engines import environments

    settings = _settings(name, data_dir)
    with output.spinner(f"Installing {name} …") as say:
        try:
            found = environments.install(settings, name, say, cpu=cpu)
        except environments.InstallError as error:
            raise CliError(f"'{name}' could not be installed: {error}") from error
    output.show_object(_shown(name, found), FIELDS, as_json=as_json)


@app.command("list")
def list_engines(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the engines that can be installed, and what is."""
    from stoker.models.engines import environments

    settings = _settings(None, data_dir)
    found = [_shown(name, environments.installed(settings, name)) for name in environments.NAMES]
    output.show_list(found, FIELDS, as_json=as_json, none="")


@app.command()
def remove(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Remove an engine's environment. Deployments on it do not start any more."""
    from stoker.models.engines import environments

    settings = _settings(name, data_dir)
    try:
        removed = environments.remove(settings, name)
    except environments.InstallError as error:
        raise CliError(str(error)) from error
    if not removed:
        raise CliError(f"'{name}' is not installed in {settings.data_dir}.")
    output.show_done({"name": name, "removed": True}, f"Removed {name}.", as_json=as_json)


def _settings(name: str | None, data_dir: Path | None) -> "Settings":
    from stoker.models.engines import environments

    if name is not None and name not in environments.NAMES:
        raise WrongUseError(
            f"There is no engine '{name}' to install; known: {', '.join(environments.NAMES)}."
        )
    given: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return read_settings(**given)


def _shown(name: str, found: "Environment | None") -> dict[str, Any]:
    return {
        "name": name,
        "status": "installed" if found else "not installed",
        "package": found.package if found else "",
        "version": found.version if found else "",
        "python": str(found.python) if found else "",
    }
