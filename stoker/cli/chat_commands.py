"""Commands in `stoker chat`, and the session that they change."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.cli import output
from stoker.cli.call import parsed_parameters
from stoker.cli.inputs import image_url
from stoker.client.client import JsonObject
from stoker.client.errors import StokerError, WrongUseError

HELP = """\
Ctrl-D ends the chat, Ctrl-C stops an answer.
/clear              forget the messages, except the system message
/system TEXT        set the system message; without TEXT, remove it
/set NAME VALUE     set a parameter, such as temperature 0.7; without VALUE, remove it
/set                show the parameters
/save FILE          write the messages to a new JSON file
/exit               end the chat
A message that begins with / needs a space before it."""


class ChatSession:
    """Messages and parameters of a chat with one model."""

    def __init__(
        self, model: str, system: str | None, options: JsonObject, images: list[Path]
    ) -> None:
        self.model = model
        self.system = system
        self.options = options
        self.messages: list[JsonObject] = []
        self._images = images

    def all_messages(self) -> list[JsonObject]:
        """Returns the messages, with the system message first."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def request(self, text: str) -> JsonObject:
        """Returns the request body for a new message."""
        message = {"role": "user", "content": self._content(text)}
        return {
            "model": self.model,
            "messages": [*self.all_messages(), message],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.options,
        }

    def add(self, message: JsonObject, answer: str) -> None:
        """Keeps a message and its answer. Images are sent with the first message only."""
        self.messages += [message, {"role": "assistant", "content": answer}]
        self._images = []

    def _content(self, text: str) -> str | list[JsonObject]:
        if not self._images:
            return text
        parts: list[JsonObject] = [
            {"type": "image_url", "image_url": {"url": image_url(path)}} for path in self._images
        ]
        return [*parts, {"type": "text", "text": text}]


def run_command(session: ChatSession, line: str) -> bool:
    """Runs a command such as `/set temperature 0.7`. Returns False if it ends the chat.

    Raises `WrongUseError` for an unknown command.
    """
    name, _, argument = line.partition(" ")
    if name in ("/exit", "/quit", "/bye"):
        return False
    command = _COMMANDS.get(name)
    if command is None:
        raise WrongUseError(f"Unknown command '{name}'.", hint="/help lists the commands.")
    command(session, argument.strip())
    return True


def _help(_conversation: ChatSession, _argument: str) -> None:
    output.say(HELP)


def _clear(session: ChatSession, _argument: str) -> None:
    session.messages.clear()
    output.say("The messages are forgotten.", "dim")


def _system(session: ChatSession, argument: str) -> None:
    session.system = argument or None
    output.say(
        "The system message is set." if argument else "The system message is removed.", "dim"
    )


def _set(session: ChatSession, argument: str) -> None:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    if name and value.strip():
        session.options |= parsed_parameters([f"{name}={value.strip()}"])
    elif name in session.options:
        del session.options[name]
    elif name:
        raise WrongUseError(f"'{name}' is not set.", hint="/set NAME VALUE sets a parameter.")
    shown = ", ".join(f"{key}={json.dumps(it)}" for key, it in session.options.items())
    output.say(output.printable(shown or "No parameter is set."), "dim")


def _save(session: ChatSession, argument: str) -> None:
    if not argument:
        raise WrongUseError("Name a file: /save chat.json")
    file = Path(argument).expanduser()
    content = {"model": session.model, "messages": session.all_messages()}
    try:
        with file.open("x", encoding="utf-8") as opened:
            json.dump(content, opened, ensure_ascii=False, indent=2)
            opened.write("\n")
    except OSError as error:
        raise StokerError(f"'{file}' cannot be written: {error.strerror}.") from error
    output.say(output.printable(f"Saved {len(content['messages'])} messages in {file}."), "dim")


_COMMANDS: Mapping[str, Callable[[ChatSession, str], None]] = {
    "/help": _help,
    "/?": _help,
    "/clear": _clear,
    "/system": _system,
    "/set": _set,
    "/save": _save,
}
