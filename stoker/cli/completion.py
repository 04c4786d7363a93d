"""Completes names and IDs of the server's objects in a shell.

A completion that fails or takes long offers nothing, because a shell cannot show errors.
"""

import contextlib
import io
import threading
from collections.abc import Callable

import typer

from stoker.cli.context import Context
from stoker.client.client import JsonObject

DEADLINE_S = 2.0
"""Longest time that the shell waits for the server."""

Candidates = list[tuple[str, str]]
"""Values with their help."""
Describe = Callable[[JsonObject], Candidates]


def _models(model: JsonObject) -> Candidates:
    return [(model["id"], model["pipeline"])]


def _deployments(deployment: JsonObject) -> Candidates:
    return [(deployment["model"], deployment["pipeline"]), (deployment["id"], deployment["model"])]


def _artifacts(artifact: JsonObject) -> Candidates:
    name = artifact["display_name"]
    return [(name, artifact["pipeline"] or ""), (artifact["id"], name)]


def _agents(agent: JsonObject) -> Candidates:
    return [(agent["name"], agent["model"]), (agent["id"], agent["name"])]


def _batches(batch: JsonObject) -> Candidates:
    return [(batch["id"], f"{batch['status']} {batch['model'] or ''}".strip())]


def _named(item: JsonObject) -> Candidates:
    return [(item["id"], item["name"] or "")]


def models(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/models", _models)


def deployments(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/deployments", _deployments)


def artifacts(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/model-artifacts", _artifacts)


def agents(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/agent", _agents)


def batches(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/batches", _batches)


def keys(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/api-keys", _named)


def accounts(ctx: typer.Context, incomplete: str) -> Candidates:
    return _candidates(ctx, incomplete, "/v1/accounts", _named)


def _candidates(ctx: typer.Context, incomplete: str, path: str, describe: Describe) -> Candidates:
    """Returns the values of a list that begin with a text. IDs only if the text begins one.

    Empty if the server does not answer in time.
    """
    found: Candidates = []

    def ask() -> None:
        with contextlib.suppress(Exception), contextlib.redirect_stderr(io.StringIO()):
            found.extend(
                (value, note)
                for item in _context(ctx).client().pages(path)
                for value, note in _shown(describe(item), incomplete)
            )

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(DEADLINE_S)
    return [] if asking.is_alive() else found


def _shown(candidates: Candidates, incomplete: str) -> Candidates:
    """Returns an object's first value that fits. Shells split values at spaces."""
    fitting = [
        (value, note)
        for value, note in candidates
        if value.startswith(incomplete) and not any(map(str.isspace, value))
    ]
    return fitting[:1]


def _context(ctx: typer.Context) -> Context:
    """Returns the global options. A completion runs no command, so nothing has stored them."""
    given = ctx.find_root().params
    return Context.given(given.get("base_url"), given.get("api_key"), given.get("account"))
