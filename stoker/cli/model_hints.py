"""Finds hints for errors about a call's model. They need further requests to the server."""

import contextlib
import re

from stoker.cli import hints
from stoker.cli.context import Context
from stoker.client.client import quoted
from stoker.client.errors import ApiError, StokerError
from stoker.client.media import TRANSCRIPTIONS

MODELS, CHAT = "/v1/models", "/v1/chat/completions"

_UNKNOWN, _WRONG_TASK = "model_not_found", "endpoint_not_supported"
_NAME = re.compile(r"'([^']+)' is ")
_COMMANDS = {
    CHAT: "chat",
    TRANSCRIPTIONS: "transcribe",
    "/v1/images/generations": "image",
    "/v1/images/edits": "image --edit FILE",
    "/v1/audio/speech": "speak",
    "/v1/videos": "video",
}
"""Maps an endpoint to its command. All others have `stoker call`."""


def explain(error: ApiError, settings: Context, *, is_call: bool) -> None:
    """Sets the hint of an error about an unknown model, or of a call of a model of another task."""
    named = _NAME.search(error.message)
    if error.code not in (_UNKNOWN, _WRONG_TASK) or not named:
        return
    with contextlib.suppress(StokerError):
        server = settings.client()
        if error.code == _UNKNOWN:
            known = [model["id"] for model in server.pages(MODELS)]
            error.hint = hints.similar(named[1], known, "") or None
        elif is_call:
            endpoints: list[str] = server.get(f"{MODELS}/{quoted(named[1])}")["endpoints"]
            commands = dict.fromkeys(_COMMANDS.get(path, "call") for path in endpoints)
            shown = [f"'stoker {command} {named[1]} …'" for command in commands]
            error.hint = f"Use {' or '.join(shown)}." if shown else None
