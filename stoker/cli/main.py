"""The `stoker` command."""

import contextlib
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import stoker
from stoker.base.plugins import PluginError
from stoker.cli.commands import LazyGroup
from stoker.cli.context import Context
from stoker.client.errors import StokerError
from stoker.client.settings import DEFAULT_BASE_URL

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from stoker.base.config import Settings

INTERRUPT_AGAIN_S = 0.01
# Defaults of the settings, whose import takes longer than the help.
HOST, PORT, DATA_DIR = "127.0.0.1", "8000", ".data"

app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_show_locals=False)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"stoker {stoker.__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    base_url: Annotated[
        str | None,
        typer.Option(
            envvar="STOKER_BASE_URL",
            show_envvar=True,
            help=f"Address of the server. Default: of 'stoker login', or {DEFAULT_BASE_URL}.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="STOKER_API_KEY",
            show_envvar=True,
            help="API key. Prefer 'stoker login' or the variable: process lists show options.",
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option(
            envvar="STOKER_ACCOUNT",
            show_envvar=True,
            metavar="ID",
            help="Account (acct_…) to act for, with an operator key.",
        ),
    ] = None,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Serve your team's machine-learning models."""
    ctx.obj = Context.given(base_url, api_key, account)


Host = Annotated[str | None, typer.Option(help="Address to listen on.", show_default=HOST)]
Port = Annotated[int | None, typer.Option(help="Port. 0 picks a free port.", show_default=PORT)]
Workers = Annotated[
    int | None, typer.Option(help="Processes that read, check and stream calls of models.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder for the database, artifacts and logs.", show_default=DATA_DIR),
]


def _settings(
    host: str | None, port: int | None, data_dir: Path | None, workers: int | None = None
) -> "Settings":
    overrides: dict[str, Any] = {
        "host": host,
        "port": port,
        "data_dir": data_dir,
        "workers": workers,
    }
    from stoker.cli.settings import read_settings

    return read_settings(**{name: value for name, value in overrides.items() if value is not None})


@app.command()
def serve(
    host: Host = None, port: Port = None, data_dir: DataDir = None, workers: Workers = None
) -> None:
    """Start the server without models.

    The first start writes an operator key to DATA_DIR/operator-key, and the key of an account to
    DATA_DIR/account-key.
    """
    from stoker.server import banner
    from stoker.server import serve as server

    server.run(_settings(host, port, data_dir, workers), banner.announce)


@app.command()
def demo(host: Host = None, port: Port = None, data_dir: DataDir = None) -> None:
    """Start the server with the demo models deployed, and print example calls."""
    from stoker.demo import command

    command.run(_settings(host, port, data_dir))


def main() -> None:
    try:
        with _interruptible():
            app()
    except StokerError as error:
        _show(error)
        sys.exit(error.exit_code)
    except (OSError, PluginError) as error:
        _show(StokerError(str(error)))
        sys.exit(1)


def _show(error: StokerError) -> None:
    from stoker.cli import output

    output.show_error(error)


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Repeats Ctrl-C if it was raised in a finalizer, where Python only prints it.

    Finalizers run often while modules are imported.
    """
    default_hook, main_thread = sys.unraisablehook, threading.main_thread().ident or 0

    def again(seen: threading.Event) -> None:
        # A signal just before a system call is noticed only when the call ends, so more are sent.
        while not seen.wait(INTERRUPT_AGAIN_S):
            signal.pthread_kill(main_thread, signal.SIGINT)

    def tell(lost: "UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            default_hook(lost)
            return
        interrupted, usual = threading.Event(), signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if _is_below(frame, tell.__code__):
                # Raised here, it would be lost as well.
                return
            interrupted.set()
            signal.signal(number, usual)
            if callable(usual):
                usual(number, frame)

        signal.signal(signal.SIGINT, interrupt)
        # Sent from another thread, after this function returns.
        threading.Thread(target=again, args=(interrupted,), daemon=True).start()

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = default_hook


def _is_below(frame: FrameType | None, code: CodeType) -> bool:
    """True if a frame belongs to the code or was called by it."""
    while frame and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
