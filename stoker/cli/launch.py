"""`stoker launch`: starts a coding agent for the terminal with a deployed model."""

import os
import re
import shlex
import shutil
import sys
from typing import Annotated

import typer

from stoker.cli import completion, hints, output
from stoker.cli.call import MODELS, TIMEOUT_S
from stoker.cli.coding_agents import CODING_AGENTS, CodingAgent, LaunchSettings, LaunchTarget
from stoker.cli.context import context
from stoker.cli.inputs import CHAT
from stoker.client.client import ApiRequest, Client, JsonObject
from stoker.client.errors import ApiError, StokerError, WrongUseError

MIN_CONTEXT, GOOD_CONTEXT = 32_768, 65_536
_BEYOND = 1 << 20
"""More tokens than models have room for. Larger numbers are refused without a look at the model."""
_LIMIT = re.compile(r"maximum context length is (\d+) tokens")
_TOO_LONG = "context_length_exceeded"
_TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}},
}


def _names(incomplete: str) -> list[tuple[str, str]]:
    agents = CODING_AGENTS.values()
    return [(agent.name, agent.title) for agent in agents if agent.name.startswith(incomplete)]


def launch(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="|".join(CODING_AGENTS),
            help="Coding agent to start.",
            autocompletion=_names,
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="Arguments of the coding agent, after --."),
    ] = None,
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model ID. Default: the only chat model of the key.",
            autocompletion=completion.models,
        ),
    ] = None,
    only_print: Annotated[
        bool,
        typer.Option("--print", help="Print shell commands that start it, and do not start it."),
    ] = False,
    show_key: Annotated[
        bool, typer.Option("--show-key", help="With --print: print the API key, too.")
    ] = False,
) -> None:
    """Start Claude Code, Codex or opencode with a deployed model.

    Sets variables and options of its process only. Its configuration files stay as they are.
    """
    agent = _agent(name)
    if show_key and not only_print:
        raise WrongUseError("--show-key needs --print.")
    settings = context(ctx)
    if settings.account:
        raise WrongUseError(
            "Coding agents cannot name an account.", hint="Use a key of the account itself."
        )
    program = shutil.which(agent.program)
    if program is None and not only_print:
        raise WrongUseError(
            f"{agent.title} is not installed: there is no program '{agent.program}' in PATH.",
            hint=f"Install it: {agent.install}",
        )
    server = settings.client()
    chosen = _chosen(server, agent, model)
    with output.spinner(f"{chosen}: checking …"):
        _check_tools(server, chosen)
        target = LaunchTarget(settings.base_url, chosen, _context_tokens(server, chosen))
    _warn_if_short(agent, target)
    start, key = agent.start(target), str(settings.api_key)
    if program is None or only_print:
        _print(agent, start, arguments or [], key if show_key else None)
        return
    inherited = {name: it for name, it in os.environ.items() if name not in agent.removed}
    environment = {**inherited, **start.variables, agent.key_variable: key}
    sys.stdout.flush()
    sys.stderr.flush()
    command = [agent.program, *start.options, *(arguments or [])]
    os.execve(program, command, environment)  # noqa: S606 - the user named the program


def _agent(name: str) -> CodingAgent:
    if name not in CODING_AGENTS:
        known = f"Known are {', '.join(CODING_AGENTS)}."
        hint = hints.similar(name, list(CODING_AGENTS), known)
        raise WrongUseError(f"'{name}' is not a coding agent that can be started.", hint=hint)
    return CODING_AGENTS[name]


def _chosen(server: Client, agent: CodingAgent, model: str | None) -> str:
    """Returns the id of the model to use. Raises `WrongUseError` if it is not clear."""
    rows = list(server.pages(MODELS))
    fitting = [str(row["id"]) for row in rows if agent.path in row["endpoints"]]
    if model is None:
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise WrongUseError(
                "The key can call no chat model.",
                hint="Deploy one with 'stoker deploy MODEL_ID ARTIFACT'.",
            )
        raise WrongUseError(
            f"The key can call several chat models: {', '.join(fitting)}.",
            hint=f"Name one: stoker launch {agent.name} --model {fitting[0]}",
        )
    if model in fitting:
        return model
    if any(row["id"] == model for row in rows):
        raise WrongUseError(f"'{model}' is not a chat model.", hint=_choices(model, fitting))
    raise WrongUseError(f"There is no model '{model}'.", hint=_choices(model, fitting))


def _choices(model: str, fitting: list[str]) -> str:
    return hints.similar(model, fitting, f"Chat models: {', '.join(fitting) or 'none'}.")


def _check_tools(server: Client, model: str) -> None:
    """Asks for one token of a forced tool call. Loads the model if necessary.

    Raises `StokerError` if the model has no chat template or cannot call tools.
    """
    try:
        _ask(server, model, tools=[_TOOL], tool_choice="required", max_tokens=1)
    except ApiError as error:
        if error.problem.param in ("tools", "tool_choice"):
            raise StokerError(
                f"'{model}' cannot call tools, which coding agents need. {error.message}",
                hint="Choose another model with --model.",
            ) from error
        raise


def _context_tokens(server: Client, model: str) -> int:
    """Returns the maximum tokens of the model's prompt and answer.

    Asks for more tokens than the model has room for. The error names the room.
    """
    try:
        _ask(server, model, max_tokens=_BEYOND)
    except ApiError as error:
        if error.code == _TOO_LONG and (limit := _LIMIT.search(error.message)):
            return int(limit[1])
        raise
    return _BEYOND


def _ask(server: Client, model: str, **fields: object) -> None:
    body: JsonObject = {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}
    server.json(ApiRequest(method="POST", path=CHAT, json=body, timeout_s=TIMEOUT_S))


def _warn_if_short(agent: CodingAgent, target: LaunchTarget) -> None:
    if target.context >= GOOD_CONTEXT:
        return
    what = f"'{target.model}' has a context of {target.context:,} tokens"
    if target.context < MIN_CONTEXT:
        message = (
            f"{what}, which is too short: the first request of {agent.title} alone has about "
            f"{agent.first_tokens:,} tokens. Use a model with at least {MIN_CONTEXT:,}."
        )
    else:
        message = f"{what}. Longer tasks need {GOOD_CONTEXT:,} or more."
    output.say(output.printable(message), "yellow")


def _print(
    agent: CodingAgent, start: LaunchSettings, arguments: list[str], key: str | None
) -> None:
    for name in agent.removed:
        print(f"unset {name}")
    for name, value in start.variables.items():
        print(f"export {name}={shlex.quote(value)}")
    if key is not None:
        print(f"export {agent.key_variable}={shlex.quote(key)}")
    elif agent.key_variable != "STOKER_API_KEY":
        print(f'export {agent.key_variable}="$STOKER_API_KEY"')
    print(shlex.join([agent.program, *start.options, *arguments]))
    if key is None:
        output.say("These commands need STOKER_API_KEY. --show-key prints the key instead.", "dim")
