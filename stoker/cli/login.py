"""`stoker login` and `stoker logout`: save and delete the profile of the command line."""

import getpass
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output, profile
from stoker.cli.context import context
from stoker.cli.key_scope import key_scope
from stoker.cli.output import AsJson
from stoker.cli.profile import Profile
from stoker.cli.settings import read_settings
from stoker.client.client import Client
from stoker.client.errors import StokerError, WrongUseError
from stoker.client.settings import server_address

_VARIABLE = "ENVIRONMENT"
_ELSEWHERE = "Name its data folder with --data-dir, or an address with --base-url."
_WITHOUT_ACCOUNT = (
    "This is an operator key, which manages accounts and cannot call models without --account. "
    "Create an account and its key, and sign in with that key: 'stoker accounts create NAME'."
)


@dataclass(frozen=True)
class _FoundKey:
    key: str
    source: str


def login(
    ctx: typer.Context,
    *,
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Address of the server. Default: the server of the data folder."
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Data folder of a server on this machine. Default: STOKER_DATA_DIR."),
    ] = None,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key from standard input.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign the command line in to a server, for all shells.

    On the server's machine, reads the address and a key from the data folder. With --base-url or
    STOKER_BASE_URL, asks for the key on the terminal.
    """
    if base_url and data_dir:
        raise WrongUseError("--base-url and --data-dir exclude each other.", hint=_ELSEWHERE)
    piped = _piped_key() if key_stdin else None
    address, found = _found(ctx, base_url and server_address(base_url), data_dir, piped)
    owner = key_scope(Client(address, _checked(found.key)))
    if owner is None:
        raise StokerError(
            f"{address} rejects the key from {found.source}: it is wrong, expired or revoked.",
            hint=f"Nothing was saved. Pass another key: stoker login --base-url {address}",
        )
    file = profile.save(Profile(address, found.key))
    if as_json:
        shown = {"base_url": address, "scope": owner.scope, "account_id": owner.account_id}
        output.print_json({**shown, "profile": str(file)})
        return
    account = f", account {owner.account_id}" if owner.account_id else ""
    output.say(output.printable(f"Signed in to {address}: scope {owner.scope}{account}."))
    output.say(output.printable(f"The key from {found.source} is saved in {file}."))
    if owner.scope == "operator":
        output.say(_WITHOUT_ACCOUNT, "yellow")
    _warn_of_variables()


def logout() -> None:
    """Delete the key that `stoker login` saved. The key stays valid on the server."""
    output.say("Signed out." if profile.delete() else "You were not signed in.")


def _found(
    ctx: typer.Context, base_url: str | None, data_dir: Path | None, piped: _FoundKey | None
) -> tuple[str, _FoundKey]:
    """Returns the address of the server, and the key to save."""
    given = context(ctx)
    address = base_url or (given.given_url if data_dir is None else None)
    # A variable's key is meant for a variable's address.
    has_pair = address == given.given_url and _source(ctx, "base_url") == _VARIABLE
    is_meant = has_pair or _source(ctx, "api_key") != _VARIABLE
    found = piped or (_given_key(ctx) if is_meant else None)
    if address:
        return address, found or _typed_key(address)
    folder = data_dir or read_settings().data_dir
    address = server_address(_address(folder))
    return address, found or _stored_key(folder, address)


def _source(ctx: typer.Context, name: str) -> str:
    """Returns the origin of a global option's value, such as `ENVIRONMENT`."""
    source: Any = ctx.find_root().get_parameter_source(name)
    return str(source.name) if source else ""


def _given_key(ctx: typer.Context) -> _FoundKey | None:
    key = context(ctx).given_key
    return _FoundKey(key, "--api-key or STOKER_API_KEY") if key else None


def _piped_key() -> _FoundKey:
    """Returns the key in standard input. Raises `WrongUseError` if that has none."""
    if line := sys.stdin.readline().strip():
        return _FoundKey(line, "standard input")
    raise WrongUseError(
        "Standard input has no API key.", hint='echo "$KEY" | stoker login --key-stdin'
    )


def _typed_key(address: str) -> _FoundKey:
    if not sys.stdin.isatty():
        raise WrongUseError(
            "There is no terminal to ask for the API key.",
            hint="Pass the key on standard input: "
            f'echo "$KEY" | stoker login --base-url {address} --key-stdin',
        )
    try:
        key = getpass.getpass(f"API key for {output.printable(address)}: ").strip()
    except EOFError:
        key = ""
    return _FoundKey(key, "the terminal")


def _address(folder: Path) -> str:
    """Returns the address of the server that uses a data folder."""
    file = folder / "server.json"
    try:
        content: Any = json.loads(file.read_bytes())
        return str(content["base_url"])
    except FileNotFoundError as error:
        raise WrongUseError(f"No server uses the data folder {folder}.", hint=_ELSEWHERE) from error
    except OSError as error:
        raise _unreadable(file, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise WrongUseError(f"{file} has no address of a server.", hint=_ELSEWHERE) from error


def _stored_key(folder: Path, address: str) -> _FoundKey:
    """Returns the key of the demo that runs, of the server's first account, or of the operator."""
    demo = folder / "demo.json"
    try:
        if demo.exists():
            state: dict[str, Any] = json.loads(demo.read_bytes())
            if state.get("base_url") == address and state.get("account_key"):
                return _FoundKey(str(state["account_key"]), str(demo))
        for file in (folder / "account-key", folder / "operator-key"):
            if file.exists():
                return _FoundKey(file.read_text().strip(), str(file))
    except OSError as error:
        raise _unreadable(folder, error) from error
    raise WrongUseError(
        f"The data folder {folder} has no API key.",
        hint=f"Pass a key: 'stoker login --base-url {address}'.",
    )


def _unreadable(path: Path, error: OSError) -> WrongUseError:
    return WrongUseError(
        f"{path} cannot be read: {error.strerror}.",
        hint="Run the command as the server's user, or name the address with --base-url.",
    )


def _checked(key: str) -> str:
    """Returns a key that can be sent. Raises `WrongUseError` if it cannot be a key."""
    if not key.startswith("sk-") or not key.isascii() or not key.isprintable() or " " in key:
        raise WrongUseError("This is not an API key.", hint="Keys begin with 'sk-'.")
    return key


def _warn_of_variables() -> None:
    """Warns about variables that commands use instead of the profile."""
    for name in ("STOKER_API_KEY", "STOKER_BASE_URL"):
        if os.environ.get(name):
            output.say(f"{name} is set and takes precedence. To use the profile: unset {name}")
