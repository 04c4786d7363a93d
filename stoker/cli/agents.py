"""`stoker agents`: agents, and what they are given to do."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli import output
from stoker.cli.client import Client, JsonObject, Request
from stoker.cli.context import client
from stoker.cli.errors import CliError, WrongUseError
from stoker.cli.output import AsJson, Columns

AGENTS = "/v1/agent"
ID_PREFIX = "agent_"
SILENCE_S = 60.0
"""The server sends something every fifteen seconds."""
RECONNECTS = 10

app = typer.Typer(no_args_is_help=True, help="Chat models with instructions and tools.")

Which = Annotated[str, typer.Argument(metavar="AGENT", help="An agent's id (agent_…) or name.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run's id (run_…).")]
Limit = Annotated[int, typer.Option(min=1, help="Most shown, newest first.")]


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
    instructions: Annotated[
        str | None, typer.Option(help="What the model is told before every input.")
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A JSON file with a list of tools."),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(min=1, help="Most times that a run asks the model.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a deployed chat model instructions and tools."""
    given = {
        "name": name,
        "model": model,
        "instructions": instructions,
        "tools": _read(tools) if tools else None,
        "max_steps": max_steps,
    }
    body = {field: value for field, value in given.items() if value is not None}
    output.show_object(client(ctx).create(AGENTS, body), FIELDS, as_json=as_json)


@app.command("list")
def list_agents(ctx: typer.Context, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the account's agents."""
    found = list(client(ctx).pages(AGENTS, limit))
    output.show_list(found, FIELDS, as_json=as_json, none="There are no agents.")


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
    if wait:
        _follow(server, place, quiet=as_json)
        made = server.get(place)
    if as_json or not wait:
        output.show_object(made, RUN, as_json=as_json)
    if made["error"]:
        raise CliError(f"The run {made['status']}: {made['error']['message']}")


@app.command()
def runs(ctx: typer.Context, which: Which, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List an agent's runs."""
    server = client(ctx)
    found = list(server.pages(f"{_path(server, which)}/runs", limit))
    output.show_list(found, RUN, as_json=as_json, none="It was given nothing to do yet.")


@app.command()
def events(ctx: typer.Context, which: Which, run_id: RunId, as_json: AsJson = False) -> None:
    """List what happened in a run."""
    server = client(ctx)
    found = list(server.pages(f"{_path(server, which)}/runs/{run_id}/events", order="asc"))
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
            given = [_answered(call) for call in data["tool_calls"]]
            server.create(f"{place}/tool-outputs", {"tool_outputs": given})
        case "run.completed" | "run.failed" | "run.cancelled":
            return True
        case _:
            pass
    return False


def _answered(call: JsonObject) -> JsonObject:
    function = call["function"]
    output.say(f"{function['name']}({function['arguments']}) = ?")
    line = sys.stdin.readline()
    if not line:
        raise CliError("The run waits for a function's output, and there is no more input.")
    return {"tool_call_id": call["id"], "output": line.strip()}
