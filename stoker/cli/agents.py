"""`stoker agents`: manages agents and their runs."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import completion, confirmation, hints, output
from stoker.cli.call import parsed_parameters
from stoker.cli.confirmation import Yes
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import ApiRequest, Client, JsonObject, quoted
from stoker.client.errors import StokerError, WrongUseError

AGENTS = "/v1/agent"
ID_PREFIX = "agent_"
SILENCE_S = 60.0
"""Seconds without data before the stream times out. The server sends a ping every 15 s."""
RECONNECTS = 10

app = typer.Typer(
    no_args_is_help=True, help="Manage agents: chat models with instructions and tools."
)

Which = Annotated[
    str,
    typer.Argument(
        metavar="AGENT", help="Agent ID (agent_…) or name.", autocompletion=completion.agents
    ),
]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="Run ID (run_…).")]
Limit = Annotated[int, typer.Option(min=1, help="Maximum number to list, newest first.")]
Instructions = Annotated[
    str | None, typer.Option(help="Instructions to the model, sent before every input.")
]
Tools = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="JSON file with a list of tools."),
]
MaxSteps = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of model calls in a run.")
]
Config = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Model parameter, such as temperature=0. Repeatable."),
]


def _tools(agent: JsonObject) -> str:
    return ", ".join(
        tool["function"]["name"] if tool["type"] == "function" else f"{tool['server_label']} (MCP)"
        for tool in agent["tools"]
    )


FIELDS: Columns = {
    "id": lambda a: a["id"],
    "name": lambda a: a["name"],
    "model": lambda a: a["model"],
    "tools": _tools,
    "steps": lambda a: f"up to {a['max_steps']}",
}
DETAILS: Columns = {
    **FIELDS,
    "instructions": lambda a: a["instructions"],
    "config": lambda a: ", ".join(f"{k}={json.dumps(v)}" for k, v in a["config"].items()),
    "created": lambda a: output.moment(a["created_at"]),
    "updated": lambda a: output.moment(a["updated_at"]),
}
RUN: Columns = {
    "id": lambda r: r["id"],
    "status": lambda r: r["status"],
    "steps": lambda r: r["usage"]["steps"],
    "tokens": lambda r: r["usage"]["total_tokens"],
    "output": lambda r: r["output"],
    "error": lambda r: r["error"] and f"{r['error']['code']}: {r['error']['message']}",
    "created": lambda r: output.moment(r["created_at"]),
}
EVENT: Columns = {
    "event": lambda e: e["sequence"],
    "time": lambda e: output.moment(e["created_at"]),
    "type": lambda e: e["type"],
    "data": lambda e: json.dumps(e["data"], ensure_ascii=False),
}


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Agent name.")],
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model ID of a deployed chat model.",
            autocompletion=completion.models,
        ),
    ],
    *,
    instructions: Instructions = None,
    tools: Tools = None,
    max_steps: MaxSteps = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Create an agent from a deployed chat model, with instructions and tools."""
    body = {"name": name, "model": model, **_wished(instructions, tools, max_steps, config)}
    output.show_object(client(ctx).create(AGENTS, body), FIELDS, as_json=as_json)


@app.command()
def update(
    ctx: typer.Context,
    which: Which,
    *,
    name: Annotated[str | None, typer.Option(help="Agent name.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model ID of a deployed chat model.", autocompletion=completion.models),
    ] = None,
    instructions: Instructions = None,
    tools: Tools = None,
    max_steps: MaxSteps = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Change an agent. Omitted options stay unchanged, as do runs already started.

    Empty instructions remove them. --config and --tools replace all previous values.
    """
    changes = _wished(instructions, tools, max_steps, config)
    changes |= {"name": name} if name is not None else {}
    changes |= {"model": model} if model is not None else {}
    if not changes:
        raise WrongUseError("Nothing to change.", hint="Give an option, such as --max-steps 8.")
    if changes.get("instructions") == "":
        changes["instructions"] = None
    server = client(ctx)
    request = ApiRequest(method="PATCH", path=_path(server, which), json=changes)
    output.show_object(server.json(request), DETAILS, as_json=as_json)


app.command("set", hidden=True)(update)


@app.command("list")
def list_agents(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the account's agents."""
    agents = list(client(ctx).pages(AGENTS, limit))
    output.show_list(agents, FIELDS, as_json=as_json, none="No agents yet.")


@app.command()
def show(
    ctx: typer.Context,
    which: Which,
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="RUN_ID", help="Run ID (run_…) to show, with its result."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show an agent, or one of its runs."""
    server = client(ctx)
    path = _path(server, which) if run_id is None else _run_path(server, which, run_id)
    output.show_object(server.get(path), DETAILS if run_id is None else RUN, as_json=as_json)


app.command("status", hidden=True)(show)


@app.command()
def delete(ctx: typer.Context, which: Which, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete an agent and erase all of its runs."""
    server = client(ctx)
    answer = confirmation.delete(
        server,
        _path(server, which),
        lambda a: f"Delete agent {a['id']} ('{a['name']}') and erase all of its runs?",
        yes=yes,
    )
    output.show_done(answer, f"Deleted {answer['id']}.", as_json=as_json)


@app.command()
def run(
    ctx: typer.Context,
    which: Which,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Input for the run.")],
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait for the run, or print its ID and exit.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Run an agent and follow its output.

    Each function call is printed, and its output is read as one line from stdin. The run
    continues if you stop this command.
    """
    server = client(ctx)
    runs = f"{_path(server, which)}/runs"
    made = server.create(runs, {"input": text})
    place = f"{runs}/{made['id']}"
    if not wait:
        output.show_object(made, RUN, as_json=as_json)
        return
    _follow(server, place, f"stoker agents follow {which} {made['id']}", quiet=as_json)
    _show_end(server.get(place), as_json=as_json)


@app.command()
def runs(ctx: typer.Context, which: Which, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List an agent's runs."""
    server = client(ctx)
    rows = list(server.pages(f"{_path(server, which)}/runs", limit))
    output.show_list(rows, RUN, as_json=as_json, none="No runs yet.")


@app.command()
def follow(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """Follow an existing run and provide the function outputs it waits for."""
    server = client(ctx)
    place = _run_path(server, which, run_id)
    _follow(server, place, f"stoker agents follow {which} {run_id}", quiet=as_json)
    _show_end(server.get(place), as_json=as_json)


@app.command()
def events(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """List the events of a run."""
    server = client(ctx)
    path = f"{_run_path(server, which, run_id)}/events"
    rows = list(server.pages(path, params={"order": "asc"}))
    output.show_list(rows, EVENT, as_json=as_json, none="No events yet.")


@app.command()
def cancel(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """Cancel a run and keep its output so far."""
    server = client(ctx)
    answer = server.post(f"{_run_path(server, which, run_id)}/cancel")
    output.show_done(answer, f"Cancelled {run_id}.", as_json=as_json)


@app.command()
def erase(
    ctx: typer.Context, which: Which, run_id: RunId, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Erase a run with its messages. An active run is stopped."""
    server = client(ctx)
    path = _run_path(server, which, run_id)
    question = f"Erase run {run_id} of agent {which} with its messages?"
    answer = confirmation.delete(server, path, lambda _: question, yes=yes)
    output.show_done(answer, f"Erased {run_id}.", as_json=as_json)


def _wished(
    instructions: str | None, tools: Path | None, max_steps: int | None, config: list[str] | None
) -> JsonObject:
    """Returns the agent fields with values."""
    fields = {
        "instructions": instructions,
        "tools": _read(tools) if tools else None,
        "max_steps": max_steps,
        "config": parsed_parameters(config) if config else None,
    }
    return {field: value for field, value in fields.items() if value is not None}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise WrongUseError(f"{path} is not valid JSON: {error}") from error


def _path(server: Client, which: str) -> str:
    """Returns an agent's path. Raises `StokerError` if no agent or several have the name."""
    if which.startswith(ID_PREFIX):
        return f"{AGENTS}/{quoted(which)}"
    known = list(server.pages(AGENTS))
    matches = [agent["id"] for agent in known if agent["name"] == which]
    if len(matches) == 1:
        return f"{AGENTS}/{matches[0]}"
    if matches:
        raise StokerError(
            f"Several agents are named '{which}': {', '.join(matches)}.", hint="Use the ID."
        )
    names = [agent["name"] for agent in known]
    raise StokerError(
        f"Agent '{which}' not found.",
        hint=hints.similar(which, names, "List agents with 'stoker agents list'."),
    )


def _run_path(server: Client, which: str, run_id: str) -> str:
    return f"{_path(server, which)}/runs/{quoted(run_id)}"


def _show_end(run: JsonObject, *, as_json: bool) -> None:
    if as_json:
        output.print_json(run)
    if run["error"]:
        raise StokerError(f"The run {run['status']}: {run['error']['message']}")


def _follow(server: Client, place: str, resume: str, *, quiet: bool) -> None:
    """Prints a run's output until it ends, and submits function outputs.

    Args:
        resume: command that follows the run again.
    """
    last, is_open = 0, True
    for _ in range(RECONNECTS):
        headers = {"accept": "text/event-stream", "last-event-id": str(last)}
        request = ApiRequest(
            method="GET", path=f"{place}/events", headers=headers, timeout_s=SILENCE_S
        )
        for event in server.events(request):
            last = event["sequence"]
            is_open = not _show(server, place, event, resume, quiet=quiet)
        if not is_open:
            return
    raise StokerError(
        "The connection was lost repeatedly. The run continues on the server.",
        hint=f"Resume with: {resume}",
    )


def _show(server: Client, place: str, event: JsonObject, resume: str, *, quiet: bool) -> bool:
    """Prints an event. Returns True if it ended the run."""
    data = event["data"]
    match event["type"]:
        case "message.delta" if not quiet:
            output.write(data["text"])
        case "message.completed" if not quiet and data["message"]["content"]:
            output.write("\n")
        case "tool_call.started" if not quiet and data["server_label"]:
            output.say(f"{data['server_label']}: {data['name']}({data['arguments']})")
        case "run.requires_action":
            _answer(server, place, resume)
        case "run.completed" | "run.failed" | "run.cancelled":
            return True
        case _:
            pass
    return False


def _answer(server: Client, place: str, resume: str) -> None:
    """Submits the function outputs that a run waits for, if it still waits."""
    if waiting := server.get(place)["required_action"]:
        outputs = [_answered(call, resume) for call in waiting["tool_calls"]]
        server.create(f"{place}/tool-outputs", {"tool_outputs": outputs})


def _answered(call: JsonObject, resume: str) -> JsonObject:
    function = call["function"]
    output.say(f"{function['name']}({function['arguments']}) = ?")
    line = sys.stdin.readline()
    if not line:
        raise StokerError(
            f"The run waits for the output of {function['name']}, but standard input has ended.",
            hint=f"The run continues to wait. Give the output on a line with: {resume}",
        )
    return {"tool_call_id": call["id"], "output": line.strip()}
