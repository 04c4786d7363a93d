"""A run as its events tell it: what was said, and which calls are open.

There is no other record of how far a run is. Who takes it over reads its events and goes on.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from stoker.workloads.agents import events
from stoker.workloads.agents.events import Event


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    url: str
    headers: dict[str, str]
    """With what is secret."""
    allowed_tools: list[str] | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was asked for, and the agent as it was then."""

    input: str | list[dict[str, Any]]
    """A user's message, or messages as chat completions take them."""
    instructions: str | None
    functions: list[dict[str, Any]]
    """As chat completions take tools."""
    servers: list[McpServer]
    max_steps: int
    config: dict[str, Any]


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server."""

    name: str
    """As the model knows it."""
    tool: str
    """As the server does."""
    description: str | None
    parameters: dict[str, Any]


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str
    """What the model wrote: JSON, or not."""
    is_started: bool = False
    output: str | None = None

    def parsed(self) -> dict[str, Any] | None:
        """The arguments; None where they are not the JSON of an object."""
        try:
            value = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None

    def shown(self) -> dict[str, Any]:
        """As chat completions show calls."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass
class Transcript:
    asked: Asked
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What the model is given, the calls that are open left out."""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """Of the last message, while at least one has no output."""
    steps: int = 0
    """Those that were completed."""
    attempted: int = 0
    """The step that was begun last."""
    listed: dict[str, list[Listed]] = field(default_factory=dict[str, list[Listed]])
    """The tools of servers, by label."""
    last: int = 0
    """The sequence number of the last event."""
    finish_reason: str | None = None
    """Of the last message."""

    def __post_init__(self) -> None:
        if self.asked.instructions:
            self.messages.append({"role": "system", "content": self.asked.instructions})
        given = self.asked.input
        self.messages += [{"role": "user", "content": given}] if isinstance(given, str) else given

    @classmethod
    def read(cls, asked: Asked, history: Iterable[Event]) -> "Transcript":
        found = cls(asked)
        found.add(history)
        return found

    def add(self, history: Iterable[Event]) -> None:
        for event in history:
            self.note(event.type, event.data)
            self.last = event.sequence

    @property
    def answer(self) -> str | None:
        """The text that the run ends with, once the model has called nothing."""
        if self.steps == 0 or self.calls or self.messages[-1]["role"] != "assistant":
            return None
        return self.messages[-1]["content"] or ""

    def call(self, call_id: str) -> ToolCall | None:
        return next((one for one in self.calls if one.id == call_id), None)

    def note(self, name: str, data: Mapping[str, Any]) -> None:
        """Bring the state on by one event."""
        match name:
            case events.STEP_STARTED:
                self.attempted = data["step"]
            case events.TOOLS_LISTED:
                self.listed[data["server_label"]] = msgspec.convert(data["tools"], list[Listed])
            case events.MESSAGE_COMPLETED:
                self._answered(data)
            case events.CALL_STARTED:
                if call := self.call(data["tool_call_id"]):
                    call.is_started = True
            case events.CALL_COMPLETED:
                if call := self.call(data["tool_call_id"]):
                    call.output = data["output"]
                    self._settle()
            case _:
                pass

    def _answered(self, data: Mapping[str, Any]) -> None:
        self.steps = data["step"]
        self.finish_reason = data["finish_reason"]
        message = data["message"]
        self.messages.append({"role": "assistant", **message})
        self.calls = [
            ToolCall(one["id"], one["function"]["name"], one["function"]["arguments"])
            for one in message.get("tool_calls") or ()
        ]

    def _settle(self) -> None:
        """Once every call has its output, the model may be given all of them."""
        if any(call.output is None for call in self.calls):
            return
        self.messages += [
            {"role": "tool", "tool_call_id": call.id, "content": call.output} for call in self.calls
        ]
        self.calls = []
