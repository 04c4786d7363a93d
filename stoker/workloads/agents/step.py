"""Step of a run: a call of the chat endpoint without HTTP.

The step passes the same validation, checks, admission queue, key limits and account credit as other
calls. Cancellation reaches the engine in the same way.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from pydantic import ValidationError

from stoker.base.errors import InferenceError, from_validation
from stoker.inference.openai.chat import ChatRequest
from stoker.inference.openai.generation import CHAT_PREFIX, prepare
from stoker.models.tasks.registry import GENERATING
from stoker.platform.web.principal import Principal, Scope
from stoker.registry.deployments import traffic
from stoker.registry.deployments.directory import DirectoryEntry
from stoker.workloads.agents.context import AgentContext

_LOOK_AGAIN_S = 1.0
"""Seconds between checks that the key of a run that waits for its rate limit still exists."""
MOST_PART_BYTES = 4 << 20
"""Maximum size in bytes of one part of a replica's stream, which holds some tokens. Parsing it
blocks the event loop.
"""

OnText = Callable[[bool, str], None]
"""Callback that receives whether the text is reasoning, and the text."""


@dataclass
class StreamedMessage:
    """An assistant's message, accumulated from the chunks of a stream."""

    version_id: str = ""
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])

    def message(self) -> dict[str, Any]:
        text = "".join(self.text)
        message: dict[str, Any] = {"content": text if text.strip() or not self.calls else None}
        if self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message

    def add(self, chunk: dict[str, Any], on_text: OnText) -> None:
        """Adds a chunk. Raises `InferenceError` for the final event of a failing stream."""
        if error := chunk.get("error"):
            raise InferenceError(error["message"], code=error["code"])
        if usage := chunk.get("usage"):
            self.usage = usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if text := delta.get("content"):
                self.text.append(text)
                on_text(False, text)
            if text := delta.get("reasoning_content"):
                self.reasoning.append(text)
                on_text(True, text)
            for part in delta.get("tool_calls") or ():
                self._add_call(part)
            self.finish_reason = choice["finish_reason"] or self.finish_reason

    def _add_call(self, part: dict[str, Any]) -> None:
        if "id" in part:
            function = {"name": part["function"]["name"], "arguments": ""}
            self.calls.append({"id": part["id"], "type": "function", "function": function})
        self.calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


async def caller_of(context: AgentContext, public_id: str, account_id: str) -> Principal:
    """Returns the caller of a run's requests: the account, with the limits of the key that created
    the run.

    Waits while the key has reached its rate limit. Raises `InvalidAPIKeyError` or
    `InsufficientCreditsError`, also if the reason arises during the wait.
    """
    while True:
        key = await context.keyring.principal(public_id)
        context.calls.credits.check(account_id)
        await context.rate_limits.ready(key)
        verdict = context.rate_limits.check(key)
        if not verdict.exhausted:
            break
        await asyncio.sleep(min(verdict.retry_after_s, _LOOK_AGAIN_S))
    return replace(key, scope=Scope.ACCOUNT, account_id=account_id)


async def ask(
    context: AgentContext, caller: Principal, body: dict[str, Any], on_text: OnText
) -> StreamedMessage:
    """Returns the model's answer to a chat completion's body. Raises the errors of the endpoint."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    try:
        request = ChatRequest.model_validate(body | options)
    except ValidationError as error:
        raise from_validation(error, ChatRequest.model_fields) from None
    entry = await context.calls.target(caller, request.model, GENERATING)
    generation = prepare(entry, request, CHAT_PREFIX)
    await context.media.collect(generation)
    answer = StreamedMessage()

    def choose(current: DirectoryEntry) -> str:
        answer.version_id = traffic.picked(current, caller.key_id)
        return answer.version_id

    parts = context.calls.stream(
        entry, generation, choose, wait_s=context.settings.load_timeout_s, keep_alive=b""
    )
    async with aclosing(parts):
        async for part in parts:
            for chunk in _chunks(part):
                answer.add(chunk, on_text)
    return answer


def _chunks(part: bytes) -> Iterator[dict[str, Any]]:
    """Yields the chunks in a part of a stream. Parts hold whole events. Raises `InferenceError`."""
    if len(part) > MOST_PART_BYTES:
        raise InferenceError("A part of the model's answer is too large.", code="inference_failed")
    for event in part.split(b"\n\n"):
        if event.startswith(b"data: ") and event != b"data: [DONE]":
            yield orjson.loads(event[6:])
