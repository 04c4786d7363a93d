"""The commands and the modules that define them. A command's module is imported when it runs.

Importing all modules and building their options takes 150 ms.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from stoker.cli.panels import CALLS, PANEL_OF
from stoker.client.errors import ApiError


@dataclass(frozen=True)
class CommandEntry:
    name: str
    place: str
    """Module and attribute of the function or of the group."""
    help: str
    """Its help in the list of commands. Equals its docstring or the help of the group."""


ENTRIES = (
    CommandEntry(
        "login",
        "login:login",
        "Sign the command line in to a server, for all shells.",
    ),
    CommandEntry(
        "logout",
        "login:logout",
        "Delete the key that `stoker login` saved. The key stays valid on the server.",
    ),
    CommandEntry("call", "call:call", "Call a model and print the response as JSON."),
    CommandEntry("chat", "chat:chat", "Chat with a language model. Ctrl-D or /exit ends the chat."),
    CommandEntry(
        "launch",
        "launch:launch",
        "Start Claude Code, Codex or opencode with a deployed model.",
    ),
    CommandEntry("image", "media:image", "Generate or edit images and save them to files."),
    CommandEntry("speak", "media:speak", "Convert text to speech and save it to a file."),
    CommandEntry("transcribe", "media:transcribe", "Transcribe a recording."),
    CommandEntry(
        "video",
        "videos:video",
        "Generate a video and save it to a file. The job continues if you stop this command.",
    ),
    CommandEntry("models", "call:models", "List the models that the API key can call."),
    CommandEntry("deploy", "deploy:deploy", "Deploy an artifact or a hub model under a model ID."),
    CommandEntry(
        "tune",
        "tune:tune",
        "Measure a model on each engine and precision, and compare its answers.",
    ),
    CommandEntry(
        "check",
        "check:check",
        "Run a deployment's checks and report failures. Exits with 1 if a check fails.",
    ),
    CommandEntry(
        "open",
        "console:open_console",
        "Open the console in a browser. A one-time link signs you in.",
    ),
    CommandEntry(
        "top",
        "top:top",
        "Show live requests, latency, memory and waiting models. Stop with Ctrl-C.",
    ),
    CommandEntry("logs", "deployments:logs", "Print the logs of a deployment's workers."),
    CommandEntry(
        "usage",
        "usage:usage",
        "Show usage and costs of the last 30 days, or of 24 hours if grouped by hour.",
    ),
    CommandEntry(
        "machine",
        "machine:machine",
        "Show memory, engines and replicas. Operators see the replicas of all accounts.",
    ),
    CommandEntry(
        "doctor",
        "doctor:doctor",
        "Check this machine and the server. Exits with 1 if a check fails.",
    ),
    CommandEntry(
        "backup",
        "backups:backup",
        "Save the data folder in one file. The server may run meanwhile.",
    ),
    CommandEntry("restore", "backups:restore", "Restore a backup into an empty data folder."),
    CommandEntry("node", "node:app", "Run replicas for the servers of a fleet."),
    CommandEntry("cluster", "cluster:app", "Manage fleets of machines that run replicas together."),
    CommandEntry(
        "deployments", "deploy:app", "Manage deployments: list, change, start, stop, logs."
    ),
    CommandEntry(
        "versions", "versions:app", "Roll out new versions of a deployment and roll back."
    ),
    CommandEntry("videos", "videos:app", "Manage video jobs."),
    CommandEntry("batch", "batches:app", "Run batches: files of requests in the background."),
    CommandEntry("files", "files:app", "Manage uploaded and generated files."),
    CommandEntry("agents", "agents:app", "Manage agents: chat models with instructions and tools."),
    CommandEntry("artifacts", "artifacts:app", "Push, import and manage models."),
    CommandEntry(
        "engines",
        "engines:app",
        "Manage engines with separate Python environments in the data folder.",
    ),
    CommandEntry("keys", "keys:app", "Manage API keys: create, list, show, rotate, revoke."),
    CommandEntry("accounts", "accounts:app", "Manage accounts (requires an operator key)."),
    CommandEntry(
        "credits", "usage:credits_app", "Show the account's balance. Operators grant credits."
    ),
    CommandEntry("prices", "usage:prices_app", "Show prices. Operators set them."),
)
"""All commands except those of `main.py`. `panels.py` has the order of the help."""
ALIASES: Mapping[str, str] = {"batches": "batch"}
"""Other names of commands, which the help does not list."""


class LazyCommands(MutableMapping[str, Any]):
    """Maps names to commands. Imports a command's module when the command is read.

    Typer does not export the types of commands and contexts.
    """

    def __init__(self, loaded: dict[str, Any], entries: Sequence[CommandEntry]) -> None:
        self._loaded = loaded
        self._entries = {entry.name: entry for entry in entries}
        self._names = dict.fromkeys([*loaded, *self._entries])

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self._entries[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def line(self, name: str) -> Any:
        """Returns a command for the list of commands, with its help and its group only."""
        panel = PANEL_OF.get(name)
        if name in self._loaded:
            self._loaded[name].rich_help_panel = panel
            return self._loaded[name]
        return TyperCommand(name, help=self._entries[name].help, rich_help_panel=panel)


class LazyGroup(TyperGroup):
    """Group whose commands are imported when they run."""

    def __init__(self, *, commands: dict[str, Any], **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in commands.values():
            command.get_params = partial(_plain_parameters, command.get_params)
        self.commands = self._lazy = LazyCommands(commands, ENTRIES)
        self._is_listing = False

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return [*dict.fromkeys(name for name in (*PANEL_OF, *self._lazy) if name in self._lazy)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        if cmd_name not in self._lazy:
            return None
        return self._lazy.line(cmd_name) if self._is_listing else self._lazy[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ApiError as error:
            from stoker.cli import model_hints

            is_call = PANEL_OF.get(ctx.invoked_subcommand) == CALLS
            model_hints.explain(error, ctx.obj, is_call=is_call)
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._is_listing = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        self._is_listing = True
        return super().shell_complete(ctx, incomplete)


def _load(entry: CommandEntry) -> Any:
    """Imports a command and builds its options."""
    module, _, attribute = entry.place.partition(":")
    command = getattr(importlib.import_module(f"stoker.cli.{module}"), attribute)
    parent = typer.Typer()
    if isinstance(command, typer.Typer):
        parent.add_typer(command, name=entry.name)
    else:
        parent.command(entry.name)(command)
    loaded: Any = typer.main.get_group(parent).commands[entry.name]
    for part in (loaded, *getattr(loaded, "commands", {}).values()):
        part.get_params = partial(_plain_parameters, part.get_params)
    return loaded


def _plain_parameters(get_params: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    return _plain(get_params(context))


def _plain(parameters: list[Any]) -> list[Any]:
    """Lets options and arguments keep text and missing values without a conversion.

    Typer converts each value by pydantic, and importing pydantic takes longer than most commands.
    Also hides the type of flags in the help, because flags take no value.
    """
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = _no_type
        if "process_value" not in vars(parameter):
            parameter.process_value = partial(_processed, parameter, parameter.process_value)
    return parameters


def _no_type(**_: Any) -> None:
    return None


def _processed(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """Returns the value of an option or argument. `process` is Typer's own function for it."""
    if parameter.nargs != 1 or parameter.multiple or not _is_kept(parameter, value):
        return process(context, value)
    return parameter.callback(context, parameter, value) if parameter.callback else value


def _is_kept(parameter: Any, value: Any) -> bool:
    """Returns True if a conversion would not change the value."""
    if value is None:
        return not parameter.required
    described = getattr(parameter, "type_descriptor", None)
    if described is None or described.parameter_info.parser is not None:
        return False
    return described.annotation is str and isinstance(value, str)
