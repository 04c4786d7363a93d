"""State of a run, rebuilt from its events: the messages and the open calls.

There is no other record of a run's progress. A server that takes it over reads its events and
continues.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from stoker.workloads.agents import events
from stoker.workloads.agents.events import JournalEvent


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    url: str
    headers: dict[str, str]
    """Headers, including secrets."""
    allowed_tools: list[str] | None = None


class RunInput(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a run, and the agent as it was when the run was created."""

    input: str | list[dict[str, Any]]
    """A user's message, or messages in the format of chat completions."""
    instructions: str | None
    functions: list[dict[str, Any]]
    """Function tools in the format of chat completions."""
    servers: list[McpServer]
    max_steps: int
    config: dict[str, Any]


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server."""

    name: str
    """Name that the model sees."""
    tool: str
    """Name on the server."""
    description: str | None
    parameters: dict[str, Any]


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str
    """Arguments as the model wrote them. They may be invalid JSON."""
    is_started: bool = False
    output: str | None = None

    def parsed(self) -> dict[str, Any] | None:
        """Returns the arguments, or None if they are not a JSON object."""
        try:
            value = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return cast("dict[str, Any]", value) if isinstance(value, dict) else None

    def shown(self) -> dict[str, Any]:
        """Returns the call in the format of chat completions."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass
class RunTranscript:
    asked: RunInput
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Messages for the model, without open calls."""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """Calls of the last message, while at least one has no output."""
    steps: int = 0
    """Number of completed steps."""
    attempted: int = 0
    """Number of the last step that was started."""
    listed: dict[str, list[ListedTool]] = field(default_factory=dict[str, list[ListedTool]])
    """Tools of servers, by label."""
    last: int = 0
    """Sequence number of the last event."""
    finish_reason: str | None = None
    """Finish reason of the last message."""

    def __post_init__(self) -> None:
        if self.asked.instructions:
            self.messages.append({"role": "system", "content": self.asked.instructions})
        content = self.asked.input
        self.messages += (
            [{"role": "user", "content": content}] if isinstance(content, str) else content
        )

    @classmethod
    def read(cls, asked: RunInput, history: Iterable[JournalEvent]) -> "RunTranscript":
        transcript = cls(asked)
        transcript.add(history)
        return transcript

    def add(self, history: Iterable[JournalEvent]) -> None:
        for event in history:
            self.note(event.type, event.data)
            self.last = event.sequence

    @property
    def answer(self) -> str | None:
        """Final text of the run, once the model makes no more calls."""
        if self.steps == 0 or self.calls or self.messages[-1]["role"] != "assistant":
            return None
        return self.messages[-1]["content"] or ""

    def call(self, call_id: str) -> ToolCall | None:
        return next((call for call in self.calls if call.id == call_id), None)

    def note(self, name: str, data: Mapping[str, Any]) -> None:
        """Applies one event to the state."""
        match name:
            case events.STEP_STARTED:
                self.attempted = data["step"]
            case events.TOOLS_LISTED:
                self.listed[data["server_label"]] = msgspec.convert(data["tools"], list[ListedTool])
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
            ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]

    def _settle(self) -> None:
        """Appends the outputs of all calls to the messages, once every call has its output."""
        if any(call.output is None for call in self.calls):
            return
        self.messages += [
            {"role": "tool", "tool_call_id": call.id, "content": call.output} for call in self.calls
        ]
        self.calls = []
