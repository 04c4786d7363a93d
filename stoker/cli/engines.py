"""`stoker engines`: manages engines with separate Python environments. Needs no server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.confirmation import Yes, confirm
from stoker.cli.output import AsJson, Columns
from stoker.cli.settings import read_settings
from stoker.client.errors import StokerError, WrongUseError

if TYPE_CHECKING:
    from stoker.base.config import Settings
    from stoker.models.engines.environments import Environment

app = typer.Typer(
    no_args_is_help=True,
    help="Manage engines with separate Python environments in the data folder.",
)

DataDir = Annotated[
    Path | None, typer.Option(help="Data folder of the server. Default: STOKER_DATA_DIR.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Engine, such as vllm.")]

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
    cpu: Annotated[bool, typer.Option("--cpu", help="Install the build for CPUs.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Install an engine. This takes minutes and gigabytes of disk space."""
    from stoker.models.engines import environments

    settings = _settings(name, data_dir)
    with output.spinner(f"Installing {name} …") as say:
        try:
            installed = environments.install(settings, name, say, cpu=cpu)
        except environments.InstallError as error:
            raise StokerError(f"'{name}' could not be installed: {error}") from error
    output.show_object(_shown(name, installed), FIELDS, as_json=as_json)


@app.command("list")
def list_engines(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the engines that can be installed and whether they are."""
    from stoker.models.engines import environments
    from stoker.models.engines.catalogue import ENGINES

    settings = _settings(None, data_dir)
    rows = [_shown(name, environments.installed(settings, name)) for name in environments.NAMES]
    missing = [record.name for record in ENGINES.values() if record.is_missing]
    rows += [_shown(name, None) for name in missing]
    output.show_list(rows, FIELDS, as_json=as_json, none="")


@app.command()
def remove(name: Name, data_dir: DataDir = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove an engine. Deployments that use it will fail to start."""
    from stoker.models.engines import environments

    settings = _settings(name, data_dir)
    confirm(f"Remove engine {name} from {settings.data_dir}?", yes=yes)
    try:
        removed = environments.remove(settings, name)
    except environments.InstallError as error:
        raise StokerError(str(error)) from error
    if not removed:
        raise StokerError(f"'{name}' is not installed in {settings.data_dir}.")
    output.show_done({"name": name, "removed": True}, f"Removed {name}.", as_json=as_json)


def _settings(name: str | None, data_dir: Path | None) -> "Settings":
    from stoker.models.engines import environments
    from stoker.models.engines.catalogue import ENGINES

    record = ENGINES.get(name or "")
    if record and record.package:
        raise WrongUseError(
            f"'{name}' is a package of the server's Python environment. "
            f"Install it with: {record.package.install}"
        )
    if name is not None and name not in environments.NAMES:
        raise WrongUseError(f"Unknown engine '{name}'. Available: {', '.join(environments.NAMES)}.")
    overrides: dict[str, Any] = {} if data_dir is None else {"data_dir": data_dir}
    return read_settings(**overrides)


def _shown(name: str, found: "Environment | None") -> dict[str, Any]:
    return {
        "name": name,
        "status": "installed" if found else "not installed",
        "package": found.package if found else "",
        "version": found.version if found else "",
        "python": str(found.python) if found else "",
    }
