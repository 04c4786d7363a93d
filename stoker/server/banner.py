"""Text that a server prints on a terminal: addresses, a sign-in link and the next commands."""

import shlex
import sys
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import stoker
from stoker.base import logs
from stoker.base.config import Settings
from stoker.platform.parts import ServerParts
from stoker.platform.web.context import Platform
from stoker.platform.web.principal import Scope
from stoker.server import bootstrap
from stoker.server.console.service import create_link

LINK_MINUTES = 10
IN_SECOND_TERMINAL = "In a second terminal:"
END = "Ctrl-C ends the server."
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104
"""Maps an address that means all of the machine's addresses to one of them."""


async def announce(parts: ServerParts, base_url: str) -> None:
    """Announces a ready server. If its log is text on a terminal, prints how to begin."""
    await bootstrap.announce(parts, base_url)
    settings = parts.get(Platform).settings
    if sys.stdout.isatty() and logs.is_text(settings.log_format):
        ready = await describe(parts, base_url)
        commands = "\n".join(f"  {command}" for command in await _commands(parts, base_url))
        say(f"\n{ready}\n\n{IN_SECOND_TERMINAL}\n\n{commands}\n\n{END}\n")


async def describe(parts: ServerParts, base_url: str) -> str:
    """Describes a ready server: its version, addresses and data folder.

    On a terminal, the address of the console is a link that signs in with the operator's key, once.
    """
    settings = parts.get(Platform).settings
    base = _shown(settings, base_url)
    link = await _link(parts, base) if sys.stdout.isatty() else None
    lines = [
        f"Stoker {stoker.__version__} is ready: {base}",
        "",
        f"  console      {link or f'{base}/console/'}",
        f"  API          {base}/docs",
        f"  data folder  {settings.data_dir.resolve()}",
    ]
    if link:
        hint = f"The link signs in one browser, once, within {LINK_MINUTES} minutes."
        lines.insert(3, f"               {hint}")
    return "\n".join(lines)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _shown(settings: Settings, base_url: str) -> str:
    """Returns the address that a browser on this machine, or behind the proxy, opens."""
    if settings.public_url:
        return settings.public_url.rstrip("/")
    address = urlsplit(base_url)
    host = _WILDCARDS.get(address.hostname or "")
    return f"http://{host}:{address.port}" if host else base_url


async def _link(parts: ServerParts, base: str) -> str | None:
    """Returns a link that signs in with the operator's key. None if that key has ended."""
    platform = parts.get(Platform)
    path = _folder(parts) / bootstrap.FILE
    async with platform.database.transaction() as session:
        key = await bootstrap.key_in_file(session, path, Scope.OPERATOR)
        if key is None:
            return None
        life = timedelta(minutes=LINK_MINUTES)
        return (await create_link(session, base, key.id, key.secret_sha256, life)).url


async def _commands(parts: ServerParts, base_url: str) -> list[str]:
    """Returns the commands that lead to the first answer of a user's own model."""
    folder = _folder(parts)
    async with parts.get(Platform).database.reading() as session:
        path = folder / bootstrap.ACCOUNT_FILE
        has_account = await bootstrap.key_in_file(session, path, Scope.ACCOUNT) is not None
    if not has_account:
        return [
            f"export STOKER_BASE_URL={base_url}",
            f"export STOKER_API_KEY=$(cat {shlex.quote(str(folder / bootstrap.FILE))})",
            "stoker accounts create NAME",
        ]
    return [
        _login(folder),
        "stoker artifacts push FOLDER --name my-model --deploy my-model",
        'stoker call my-model "Some text."',
    ]


def _login(folder: Path) -> str:
    usual = Path(Settings.model_fields["data_dir"].default).resolve()
    return "stoker login" + ("" if folder == usual else f" --data-dir {shlex.quote(str(folder))}")


def _folder(parts: ServerParts) -> Path:
    return parts.get(Platform).settings.data_dir.resolve()
