"""`stoker agents`: agents, and what they are given to do."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.call import parsed_parameters
from stoker.cli.context import client
from stoker.cli.output import AsJson, Columns
from stoker.client.client import Client, JsonObject, Request, quoted
from stoker.client.errors import CliError, WrongUseError

AGENTS = "/v1/agent"
ID_PREFIX = "agent_"
SILENCE_S = 60.0
"""The server sends something every fifteen seconds."""
RECONNECTS = 10

app = typer.Typer(no_args_is_help=True, help="Chat models with instructions and tools.")

Which = Annotated[str, typer.Argument(metavar="AGENT", help="An agent's id (agent_…) or name.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run's id (run_…).")]
Limit = Annotated[int, typer.Option(min=1, help="Most shown, newest first.")]
Instructions = Annotated[
    str | None, typer.Option(help="What the model is told before every input.")
]
Tools = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="A JSON file with a list of tools."),
]
MaxSteps = Annotated[int | None, typer.Option(min=1, help="Most times that a run asks the model.")]
Config = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE", help="How the model is asked, as in temperature=0; repeatable."
    ),
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
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A deployed chat model's id.")],
    *,
    instructions: Instructions = None,
    tools: Tools = None,
    max_steps: MaxSteps = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Give a deployed chat model instructions and tools."""
    body = {"name": name, "model": model, **_wished(instructions, tools, max_steps, config)}
    output.show_object(client(ctx).create(AGENTS, body), FIELDS, as_json=as_json)


@app.command("set")
def set_agent(
    ctx: typer.Context,
    which: Which,
    *,
    name: Annotated[str | None, typer.Option(help="What to call it.")] = None,
    model: Annotated[str | None, typer.Option(help="A deployed chat model's id.")] = None,
    instructions: Instructions = None,
    tools: Tools = None,
    max_steps: MaxSteps = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Change an agent: what is not named stays. Runs go on with it as it was.

    Empty instructions take them away; --config and --tools take the place of what there was.
    """
    changes = _wished(instructions, tools, max_steps, config)
    changes |= {"name": name} if name is not None else {}
    changes |= {"model": model} if model is not None else {}
    if not changes:
        raise WrongUseError("There is nothing to change.", hint="Name what, as in --max-steps 8.")
    if changes.get("instructions") == "":
        changes["instructions"] = None
    server = client(ctx)
    request = Request(method="PATCH", path=_path(server, which), json=changes)
    output.show_object(server.json(request), DETAILS, as_json=as_json)


@app.command("list")
def list_agents(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the account's agents."""
    found = list(client(ctx).pages(AGENTS, limit))
    output.show_list(found, FIELDS, as_json=as_json, none="There are no agents.")


@app.command()
def show(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Show an agent."""
    server = client(ctx)
    output.show_object(server.get(_path(server, which)), DETAILS, as_json=as_json)


@app.command()
def delete(ctx: typer.Context, which: Which, as_json: AsJson = False) -> None:
    """Delete an agent, and erase all of its runs."""
    server = client(ctx)
    answer = server.delete(_path(server, which))
    output.show_done(answer, f"Deleted {answer['id']}.", as_json=as_json)


@app.command()
def run(
    ctx: typer.Context,
    which: Which,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to do.")],
    *,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Follow it, or print its id and go.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Have an agent do something, and follow it. Functions that it calls are yours to answer: each
    is shown, and a line is read for its output. The run goes on if this command is ended.
    """
    server = client(ctx)
    runs = f"{_path(server, which)}/runs"
    made = server.create(runs, {"input": text})
    place = f"{runs}/{made['id']}"
    if not wait:
        output.show_object(made, RUN, as_json=as_json)
        return
    _follow(server, place, quiet=as_json)
    _show_end(server.get(place), as_json=as_json)


@app.command()
def runs(ctx: typer.Context, which: Which, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List an agent's runs."""
    server = client(ctx)
    found = list(server.pages(f"{_path(server, which)}/runs", limit))
    output.show_list(found, RUN, as_json=as_json, none="It was given nothing to do yet.")


@app.command()
def status(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """Show how far a run is, or how it ended."""
    server = client(ctx)
    found = server.get(f"{_path(server, which)}/runs/{quoted(run_id)}")
    output.show_object(found, RUN, as_json=as_json)


@app.command()
def follow(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """Follow a run that was begun, and answer the functions that it waits for."""
    server = client(ctx)
    place = f"{_path(server, which)}/runs/{quoted(run_id)}"
    _follow(server, place, quiet=as_json)
    _show_end(server.get(place), as_json=as_json)


@app.command()
def events(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """List what happened in a run."""
    server = client(ctx)
    found = list(
        server.pages(f"{_path(server, which)}/runs/{run_id}/events", params={"order": "asc"})
    )
    output.show_list(found, EVENT, as_json=as_json, none="Nothing has happened yet.")


@app.command()
def cancel(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """Stop a run, and keep what it has done so far."""
    server = client(ctx)
    answer = server.post(f"{_path(server, which)}/runs/{run_id}/cancel")
    output.show_done(answer, f"Cancelled {run_id}.", as_json=as_json)


@app.command()
def erase(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """Stop a run if it is executing, and erase it with all that was said in it."""
    server = client(ctx)
    answer = server.delete(f"{_path(server, which)}/runs/{run_id}")
    output.show_done(answer, f"Erased {run_id}.", as_json=as_json)


def _wished(
    instructions: str | None, tools: Path | None, max_steps: int | None, config: list[str] | None
) -> JsonObject:
    """The fields of an agent that were given."""
    given = {
        "instructions": instructions,
        "tools": _read(tools) if tools else None,
        "max_steps": max_steps,
        "config": parsed_parameters(config) if config else None,
    }
    return {field: value for field, value in given.items() if value is not None}


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise WrongUseError(f"{path} is not JSON: {error}") from error


def _path(server: Client, which: str) -> str:
    """Where an agent is. Raises `CliError` for a name that none or several have."""
    if which.startswith(ID_PREFIX):
        return f"{AGENTS}/{which}"
    found = [agent for agent in server.pages(AGENTS) if agent["name"] == which]
    if len(found) != 1:
        ids = ", ".join(agent["id"] for agent in found)
        raise CliError(
            f"Several agents are called '{which}': {ids}." if found else f"No agent '{which}'.",
            hint="Give the id." if found else "See 'stoker agents list'.",
        )
    return f"{AGENTS}/{found[0]['id']}"


def _show_end(run: JsonObject, *, as_json: bool) -> None:
    if as_json:
        output.print_json(run)
    if run["error"]:
        raise CliError(f"The run {run['status']}: {run['error']['message']}")


def _follow(server: Client, place: str, *, quiet: bool) -> None:
    """Show a run until it has ended, and answer its functions."""
    last, is_open = 0, True
    for _ in range(RECONNECTS):
        headers = {"accept": "text/event-stream", "last-event-id": str(last)}
        request = Request(
            method="GET", path=f"{place}/events", headers=headers, timeout_s=SILENCE_S
        )
        for event in server.events(request):
            last = event["sequence"]
            is_open = not _show(server, place, event, quiet=quiet)
        if not is_open:
            return
    raise CliError("The connection was lost too often; the run goes on.", hint="See its events.")


def _show(server: Client, place: str, event: JsonObject, *, quiet: bool) -> bool:
    """Whether this was the last one."""
    data = event["data"]
    match event["type"]:
        case "message.delta" if not quiet:
            output.write(data["text"])
        case "message.completed" if not quiet and data["message"]["content"]:
            output.write("\n")
        case "tool_call.started" if not quiet and data["server_label"]:
            output.say(f"{data['server_label']}: {data['name']}({data['arguments']})")
        case "run.requires_action":
            _answer(server, place)
        case "run.completed" | "run.failed" | "run.cancelled":
            return True
        case _:
            pass
    return False


def _answer(server: Client, place: str) -> None:
    """Give the outputs that a run waits for; one that was followed before may have them."""
    if waiting := server.get(place)["required_action"]:
        given = [_answered(call) for call in waiting["tool_calls"]]
        server.create(f"{place}/tool-outputs", {"tool_outputs": given})


def _answered(call: JsonObject) -> JsonObject:
    function = call["function"]
    output.say(f"{function['name']}({function['arguments']}) = ?")
    line = sys.stdin.readline()
    if not line:
        raise CliError("The run waits for a function's output, and there is no more input.")
    return {"tool_call_id": call["id"], "output": line.strip()}
