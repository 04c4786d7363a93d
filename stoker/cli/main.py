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

from stoker.base.plugins import PluginError
from stoker.cli import (
    accounts,
    agents,
    artifacts,
    call,
    chat,
    check,
    cluster,
    console,
    deploy,
    deployments,
    doctor,
    engines,
    files,
    keys,
    machine,
    media,
    node,
    output,
    top,
    tune,
    usage,
    versions,
    videos,
)
from stoker.cli.context import DEFAULT_BASE_URL, Context
from stoker.cli.settings import read_settings
from stoker.client.errors import CliError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from stoker.base.config import Settings

INTERRUPT_AGAIN_S = 0.01

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False)


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
app.command()(tune.tune)
app.command()(check.check)
app.command("open")(console.open_console)
app.command()(top.top)
app.command()(deployments.logs)
app.add_typer(node.app, name="node")
app.add_typer(cluster.app, name="cluster")
app.add_typer(deployments.app, name="deployments")
app.add_typer(versions.app, name="versions")
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
app.command()(machine.machine)
app.command()(doctor.doctor)


def main() -> None:
    try:
        with _interruptible():
            app()
    except CliError as error:
        output.show_error(error)
        sys.exit(error.exit_code)
    except (OSError, PluginError) as error:
        output.show_error(CliError(str(error)))
        sys.exit(1)


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Interrupt once more where Ctrl-C struck in a finalizer: Python prints it there and goes on.

    Those run all the time while modules are imported.
    """
    others, main_thread = sys.unraisablehook, threading.main_thread().ident or 0

    def again(seen: threading.Event) -> None:
        # One that comes just before a system call is not noticed before that ends: more follow.
        while not seen.wait(INTERRUPT_AGAIN_S):
            signal.pthread_kill(main_thread, signal.SIGINT)

    def tell(lost: "UnraisableHookArgs") -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            others(lost)
            return
        seen, usual = threading.Event(), signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if _is_below(frame, tell.__code__):
                # In here it would be lost, too.
                return
            seen.set()
            signal.signal(number, usual)
            if callable(usual):
                usual(number, frame)

        signal.signal(signal.SIGINT, interrupt)
        # From another thread, once this has returned.
        threading.Thread(target=again, args=(seen,), daemon=True).start()

    sys.unraisablehook = tell
    try:
        yield
    finally:
        sys.unraisablehook = others


def _is_below(frame: FrameType | None, code: CodeType) -> bool:
    """Whether the frame is one of the code's, or was called by it."""
    while frame and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
