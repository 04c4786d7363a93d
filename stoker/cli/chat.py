"""`stoker chat`: chats with a language model and streams its answers."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.call import TIMEOUT_S, Parameters, parsed_parameters
from stoker.cli.context import client
from stoker.cli.inputs import CHAT, image_url
from stoker.client.client import ApiRequest, Client, JsonObject
from stoker.client.errors import StokerError


def chat(
    ctx: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model ID, as listed by 'stoker models'.")
    ],
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
    """Chat with a language model. An empty line or Ctrl-D ends the chat."""
    server = client(ctx)
    messages: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    options = parsed_parameters(parameters or [])
    shown = images or []
    for line in [text] if text is not None else _lines():
        messages.append({"role": "user", "content": _content(line, shown)})
        shown = []
        body = {"model": model, "messages": messages, "stream": True} | options
        answer = ""
        for piece in _pieces(server, body):
            answer += piece
            output.write(piece)
        output.write("\n")
        messages.append({"role": "assistant", "content": answer or " "})


def _content(said: str, images: Sequence[Path]) -> str | list[JsonObject]:
    if not images:
        return said
    parts: list[JsonObject] = [
        {"type": "image_url", "image_url": {"url": image_url(image_path)}} for image_path in images
    ]
    return [*parts, {"type": "text", "text": said}]


def _lines() -> Iterator[str]:
    """Yields lines from the terminal or a pipe until an empty line."""
    shown = sys.stdin.isatty()
    while True:
        if shown:
            output.write("> ")
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def _pieces(server: Client, body: JsonObject) -> Iterator[str]:
    request = ApiRequest(method="POST", path=CHAT, json=body, timeout_s=TIMEOUT_S)
    for event in server.events(request):
        if "error" in event:
            raise StokerError(event["error"]["message"])
        for choice in event["choices"]:
            delta: dict[str, Any] = choice["delta"]
            yield delta.get("reasoning_content") or delta.get("content") or ""
            calls: list[dict[str, Any]] = delta.get("tool_calls") or []
            for call in calls:
                function: dict[str, str] = call["function"]
                yield function.get("name") or function.get("arguments") or ""
