"""Work on one run: the loop of steps and tool calls."""

import asyncio
import time
from typing import Any

import msgspec

from stoker.base.config import MIB
from stoker.base.errors import RunLimitError
from stoker.store.tables.agents import Run
from stoker.store.tables.usage import Price
from stoker.tenancy.usage import money
from stoker.workloads.agents import events
from stoker.workloads.agents.context import AgentContext
from stoker.workloads.agents.costs import charge
from stoker.workloads.agents.journal import JournalWriter
from stoker.workloads.agents.step import StreamedMessage, ask, caller_of
from stoker.workloads.agents.tool_servers import ToolServers
from stoker.workloads.agents.transcript import ListedTool, McpServer, RunTranscript, ToolCall

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
)
"""Fields of an agent's config that have the same names in chat completions."""
COUNTED = (
    "steps",
    "prompt_tokens",
    "completion_tokens",
    "worked_ms",
    "microcredits",
    "carry",
    "tries",
    "losses",
)
_INTERRUPTED = (
    "The call was interrupted while it ran: whether it took effect is not known, and it was not "
    "repeated. Check before you call it again."
)
_CUT = "The call was not made: the answer ended in the middle of its arguments."


class Turn:
    """Work on one run, continued from its last event."""

    def __init__(
        self,
        context: AgentContext,
        row: Run,
        transcript: RunTranscript,
        writer: JournalWriter,
        servers: ToolServers,
        *,
        price: Price,
    ) -> None:
        self.transcript = transcript
        self._context = context
        self._row = row
        self._writer = writer
        self._servers = servers
        self._price = price
        self._config = transcript.asked.config
        self._by_label = {server.label: server for server in transcript.asked.servers}
        self._since = time.monotonic()

    async def run(self) -> list[ToolCall]:
        """Returns the calls that wait for their outputs. None remain if the run is complete.

        Raises `RunLimitError`, `LostError` and the errors of a step.
        """
        limit_s = self._config.get("timeout_s")
        left_s = None if limit_s is None else limit_s - self._row.worked_ms / 1000
        timeout = asyncio.timeout(left_s)
        try:
            async with timeout:
                return await self._steps()
        except TimeoutError:
            if not timeout.expired():
                raise
            self._set_counted()
            raise RunLimitError(
                f"The run has reached its limit of {limit_s:g} s of work.",
                code="time_limit_exceeded",
            ) from None

    async def _steps(self) -> list[ToolCall]:
        transcript = self.transcript
        if transcript.attempted > transcript.steps or any(
            call.is_started and self._listed(call) for call in transcript.calls
        ):
            self._tell(events.RESUMED, {"step": transcript.steps + 1})
        await self._list_tools()
        while transcript.answer is None:
            # Checked before tools run, as their outputs would otherwise be unused.
            self._check_limits()
            if transcript.calls and (waiting := await self._settle()):
                return waiting
            await self._step()
        return []

    def _check_limits(self) -> None:
        """Raises `RunLimitError` if no further step is allowed."""
        row, config = self._row, self._config
        limit = self.transcript.asked.max_steps
        if self.transcript.steps >= limit:
            raise RunLimitError(
                f"The run has reached its limit of {limit} steps and has no answer.",
                code="step_limit_exceeded",
            )
        tokens, limit = row.prompt_tokens + row.completion_tokens, config.get("max_total_tokens")
        if limit is not None and tokens >= limit:
            raise RunLimitError(
                f"The run has used {tokens} tokens; its limit is {limit}.",
                code="token_limit_exceeded",
            )
        limit = config.get("max_credits")
        if limit is not None and row.cost >= limit * money.MICRO:
            raise RunLimitError(
                f"The run has cost {money.in_credits(row.cost)} credits; its limit is {limit:g}.",
                code="cost_limit_exceeded",
            )

    async def _step(self) -> None:
        context, row = self._context, self._row
        number = self.transcript.steps + 1
        caller = await caller_of(context, row.api_key, row.account_id)
        self._tell(events.STEP_STARTED, {"step": number})
        began = time.monotonic()

        def on_text(is_reasoning: bool, text: str) -> None:
            name = events.REASONING_DELTA if is_reasoning else events.MESSAGE_DELTA
            self._writer.add_delta(name, number, text)

        answer = await ask(context, caller, self._body(), on_text)
        self._count(answer, time.monotonic() - began)
        row.steps = number
        # The step succeeded, so the try count restarts.
        row.tries, row.losses = 1, 0
        self._tell(
            events.MESSAGE_COMPLETED,
            {
                "step": number,
                "message": answer.message(),
                "finish_reason": answer.finish_reason,
                "usage": {
                    name: answer.usage.get(name, 0)
                    for name in ("prompt_tokens", "completion_tokens", "total_tokens")
                },
            },
        )
        self._set_counted()

    def _body(self) -> dict[str, Any]:
        """Returns the body of the next chat completion."""
        row, config, transcript = self._row, self._config, self.transcript
        body: dict[str, Any] = {"model": row.model, "messages": transcript.messages}
        body |= {name: config[name] for name in SAMPLING if name in config}
        most = config.get("max_tokens")
        if total := config.get("max_total_tokens"):
            tokens_left = total - row.prompt_tokens - row.completion_tokens
            most = tokens_left if most is None else min(most, tokens_left)
        if most is not None:
            body["max_completion_tokens"] = most
        listed = [_function(tool) for tools in transcript.listed.values() for tool in tools]
        if tools := transcript.asked.functions + listed:
            body["tools"] = tools
        # `tool_choice` applies to the first answer only. Otherwise every answer would have to
        # follow it, without an end.
        if not tools or transcript.steps:
            body.pop("tool_choice", None)
        return body

    def _count(self, answer: StreamedMessage, seconds: float) -> None:
        row = self._row
        row.prompt_tokens += answer.usage.get("prompt_tokens", 0)
        row.completion_tokens += answer.usage.get("completion_tokens", 0)
        stats = self._context.runtime.stats(answer.version_id)
        mib_ms = -(-stats.memory_bytes // MIB) * round(seconds * 1000) if stats else 0
        charge(row, mib_ms, self._price)

    # --- tools ---

    async def _list_tools(self) -> None:
        transcript = self.transcript
        names = {tool["function"]["name"] for tool in transcript.asked.functions}
        names |= {tool.name for tools in transcript.listed.values() for tool in tools}
        for server in transcript.asked.servers:
            if server.label in transcript.listed:
                continue
            listed = await self._servers.list(server, names)
            names |= {tool.name for tool in listed}
            tools = [msgspec.to_builtins(tool) for tool in listed]
            self._tell(events.TOOLS_LISTED, {"server_label": server.label, "tools": tools})

    async def _settle(self) -> list[ToolCall]:
        """Answers the open calls. Returns the calls that the run's owner must answer."""
        self._refuse_cut()
        opened = [call for call in self.transcript.calls if call.output is None]
        own_names = {tool["function"]["name"] for tool in self.transcript.asked.functions}
        waiting = [call for call in opened if call.name in own_names]
        for call in waiting:
            if not call.is_started:
                self._started(call, None)
        await asyncio.gather(*(self._answer(call) for call in opened if call.name not in own_names))
        return waiting

    def _refuse_cut(self) -> None:
        """Answers calls that were cut off with an error: only the model can write them again."""
        if self.transcript.finish_reason == "tool_calls":
            return
        for call in list(self.transcript.calls):
            if call.output is None and call.parsed() is None:
                self._completed(call, _CUT, is_error=True)

    async def _answer(self, call: ToolCall) -> None:
        """Answers a call that is not a function of the run's owner."""
        server_tool = self._listed(call)
        if server_tool is None:
            self._completed(call, f"There is no tool '{call.name[:64]}'.", is_error=True)
            return
        if call.is_started:
            # An earlier worker started the call and stopped before its result was recorded. The
            # call is not repeated silently.
            self._completed(call, _INTERRUPTED, is_error=True, is_interrupted=True)
            return
        server, tool = server_tool
        arguments = call.parsed()
        if arguments is None:
            self._completed(call, "The arguments are not a JSON object.", is_error=True)
            return
        self._started(call, server.label)
        # Must be durable before the tool can have an effect.
        await self._writer.commit()
        output = await self._servers.call(server, tool.tool, arguments)
        self._completed(call, output.text, is_error=output.is_error)
        self._set_counted()
        # Written at once, while the next step begins. A crash could also lose it earlier.
        self._writer.hurry()

    def _listed(self, call: ToolCall) -> tuple[McpServer, ListedTool] | None:
        """Returns the server and the tool of a call."""
        for label, tools in self.transcript.listed.items():
            for tool in tools:
                if tool.name == call.name:
                    return self._by_label[label], tool
        return None

    def _started(self, call: ToolCall, label: str | None) -> None:
        self._tell(
            events.CALL_STARTED,
            {
                "step": self.transcript.steps,
                "tool_call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "server_label": label,
            },
        )

    def _completed(
        self, call: ToolCall, output: str, *, is_error: bool, is_interrupted: bool = False
    ) -> None:
        data = {"tool_call_id": call.id, "output": output, "is_error": is_error}
        if is_interrupted:
            data["is_interrupted"] = True
        self._tell(events.CALL_COMPLETED, data)

    # --- writing down ---

    def _tell(self, name: str, data: dict[str, Any]) -> None:
        self._writer.add(name, data)
        self.transcript.note(name, data)

    def counted(self) -> dict[str, Any]:
        """Returns the counter columns with their current values."""
        row = self._row
        worked_ms = round((time.monotonic() - self._since) * 1000)
        row.worked_ms += worked_ms
        # The next count includes what was rounded.
        self._since += worked_ms / 1000
        return {name: getattr(row, name) for name in COUNTED}

    def _set_counted(self) -> None:
        self._writer.set(self.counted())


def _function(tool: ListedTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.parameters}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}
