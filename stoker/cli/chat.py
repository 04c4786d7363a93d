"""`stoker chat`: chats with a language model and streams its answers."""

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.call import TIMEOUT_S, Model, Parameters, parsed_parameters
from stoker.cli.chat_commands import HELP, ChatSession, run_command
from stoker.cli.context import client
from stoker.cli.inputs import CHAT
from stoker.client.client import ApiRequest, Client, JsonObject
from stoker.client.errors import StokerError

PROMPT = "> "


def chat(
    ctx: typer.Context,
    model: Model,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT", help="Message to send. Without it, an interactive chat starts."
        ),
    ] = None,
    *,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            "--image",
            exists=True,
            dir_okay=False,
            help="Image to send with the first message. Repeatable.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    parameters: Parameters = None,
) -> None:
    """Chat with a language model. Ctrl-D or /exit ends the chat.

    On a terminal, /help lists the commands of the chat. Without one, each line of standard input is
    a message.
    """
    server = client(ctx)
    options = parsed_parameters(parameters or [])
    session = ChatSession(model, system, options, list(images or []))
    if text is not None:
        _exchange(server, session, text)
    elif sys.stdin.isatty():
        _converse(server, session)
    else:
        for line in sys.stdin:
            if message := line.strip():
                _exchange(server, session, message)


def _converse(server: Client, session: ChatSession) -> None:
    """Chats on the terminal. An error or Ctrl-C ends an answer, but not the chat."""
    output.say(f"{HELP.splitlines()[0]} /help lists all commands.", "dim")
    for line in _typed_lines():
        try:
            if not line.startswith("/"):
                _exchange(server, session, line.strip())
            elif not run_command(session, line.strip()):
                return
        except StokerError as error:
            output.show_error(error)
        except KeyboardInterrupt:
            output.say("\nStopped.", "yellow")


def _typed_lines() -> Iterator[str]:
    """Yields lines of the terminal that are not empty, until Ctrl-D.

    `input` has arrow keys and history once readline is imported.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            output.write("\n")
            return
        if line.strip():
            yield line


def _exchange(server: Client, session: ChatSession, text: str) -> None:
    """Sends a message and prints the answer. Keeps both, even if the answer was stopped."""
    body = session.request(text)
    answer, measured, waiting = "", Measured(), contextlib.ExitStack()
    try:
        with waiting:
            if sys.stderr.isatty():
                waiting.enter_context(output.spinner(f"{session.model}: waiting …"))
            for piece in _pieces(server, body, measured):
                waiting.close()
                answer += piece
                output.write(piece)
        output.write("\n")
    finally:
        if answer:
            session.add(body["messages"][-1], answer)
    if sys.stderr.isatty() and (speed := measured.shown()):
        output.say(speed, "dim")


class Measured:
    """Times and tokens of one answer."""

    def __init__(self) -> None:
        self._sent = self._first = self._last = time.monotonic()
        self._is_begun = False
        self.tokens = 0

    def piece(self) -> None:
        """Notes that text has arrived."""
        self._last = time.monotonic()
        if not self._is_begun:
            self._first, self._is_begun = self._last, True

    def shown(self) -> str:
        """Returns tokens, tokens per second and the time to the first one. Empty if unknown.

        The speed is of the tokens after the first one.
        """
        if not self.tokens:
            return ""
        parts = [f"{self.tokens} tokens"]
        if self.tokens > 1 and self._last > self._first:
            parts.append(f"{(self.tokens - 1) / (self._last - self._first):.1f} tokens/s")
        return ", ".join([*parts, f"first after {self._first - self._sent:.2f} s"])


def _pieces(server: Client, body: JsonObject, measured: Measured) -> Iterator[str]:
    request = ApiRequest(method="POST", path=CHAT, json=body, timeout_s=TIMEOUT_S)
    for event in server.events(request):
        if "error" in event:
            raise StokerError(event["error"]["message"])
        if usage := event.get("usage"):
            measured.tokens = usage["completion_tokens"]
        for choice in event["choices"]:
            delta: dict[str, Any] = choice["delta"]
            text = delta.get("reasoning_content") or delta.get("content") or ""
            if text:
                measured.piece()
            yield text
            calls: list[dict[str, Any]] = delta.get("tool_calls") or []
            for call in calls:
                function: dict[str, str] = call["function"]
                yield function.get("name") or function.get("arguments") or ""
