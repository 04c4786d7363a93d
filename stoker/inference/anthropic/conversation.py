"""Converts Anthropic's messages to the form of chat templates."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stoker.base.errors import InvalidRequestError
from stoker.inference.anthropic.blocks import (
    Block,
    Content,
    DocumentBlock,
    ImageBlock,
    OtherSource,
    RedactedThinkingBlock,
    ResultBlock,
    SearchResultBlock,
    SystemContent,
    TextBlock,
    ThinkingBlock,
    ToolChangeBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    ToolUseBlock,
    UrlSource,
)
from stoker.inference.openai.call_arguments import arguments_of
from stoker.inference.openai.sampling import OpenAIRequest
from stoker.wire.generation_request import image_part, text_content, text_part

_BILLING = "x-anthropic-billing-header:"
"""Begins a text for Anthropic's accounting. It differs in each conversation, so a prompt with it
would share no beginning with others.
"""


class InputMessage(OpenAIRequest):
    role: Literal["user", "assistant", "system"]
    content: Content


def for_template(
    messages: Sequence[InputMessage], system: SystemContent | None
) -> list[dict[str, Any]]:
    """Returns the messages in the form of chat templates. Joins consecutive messages of one role.

    Raises `InvalidRequestError` that names the field.
    """
    turns = _Turns()
    texts = [system] if isinstance(system, str) else [block.text for block in system or []]
    if texts := [text for text in texts if text and not text.startswith(_BILLING)]:
        turns.messages.append({"role": "system", "content": text_content(texts)})
    for index, message in enumerate(messages):
        turns.add(message, f"messages[{index}]")
    turns.check_calls("messages")
    return turns.messages


class _Turns:
    """Builds the messages for a template."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._open_calls: dict[str, None] = {}
        """Ids of calls without a result, in order."""

    def add(self, message: InputMessage, place: str) -> None:
        blocks = _blocks(message.content)
        if message.role == "assistant":
            self.check_calls(place)
            self._assistant(blocks, place)
        elif message.role == "system":
            texts = [
                block.text
                if isinstance(block, ToolChangeBlock)
                else _text(block, f"{place}.content[{at}]")
                for at, block in enumerate(blocks)
            ]
            self.messages.append({"role": "system", "content": text_content(texts)})
        else:
            self._user(blocks, place)

    def check_calls(self, place: str) -> None:
        """Raises `InvalidRequestError` if a call has no result."""
        if self._open_calls:
            first = next(iter(self._open_calls))
            raise _wrong(
                f"The tool call '{first}' has no result. Send a 'tool_result' block for each "
                "'tool_use' block in the next message.",
                place,
            )

    def _user(self, blocks: Sequence[Block | ResultBlock], place: str) -> None:
        parts: list[dict[str, Any]] = []
        results: list[tuple[ToolResultBlock, str]] = []
        for at, block in enumerate(blocks):
            where = f"{place}.content[{at}]"
            if isinstance(block, ToolResultBlock):
                results.append((block, where))
            else:
                parts.append(_part(block, where))
        for block, where in results:
            self._result(block, where)
        self.check_calls(place)
        if not parts:
            if not results:
                raise _wrong(f"'{place}.content' must not be empty.", f"{place}.content")
            return
        last = self.messages[-1] if self.messages else None
        if last and last["role"] == "user":
            last["content"] = [*_parts(last["content"]), *parts]
        else:
            is_plain = len(parts) == 1 and "text" in parts[0]
            content = parts[0]["text"] if is_plain else parts
            self.messages.append({"role": "user", "content": content})

    def _result(self, block: ToolResultBlock, place: str) -> None:
        """Adds the message of a result."""
        if block.tool_use_id not in self._open_calls:
            raise _wrong(
                f"'{place}' answers no tool call: '{block.tool_use_id}' is not the id of a "
                "'tool_use' block without a result in the message before.",
                f"{place}.tool_use_id",
            )
        del self._open_calls[block.tool_use_id]
        parts = [
            _part(content, f"{place}.content[{at}]")
            for at, content in enumerate(_blocks(block.content or ""))
        ]
        if block.is_error:
            begins = bool(parts) and "text" in parts[0]
            message = f"Error: {parts[0]['text'] if begins else ''}".rstrip()
            parts = [text_part(message), *parts[1 if begins else 0 :]]
        is_text = all("text" in part for part in parts)
        content = text_content([part["text"] for part in parts]) if is_text else parts
        self.messages.append(
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        )

    def _assistant(self, blocks: Sequence[Block | ResultBlock], place: str) -> None:
        last = self.messages[-1] if self.messages else None
        turn: dict[str, Any] = {"role": "assistant", "content": ""}
        if last and last["role"] == "assistant":
            turn = last
        else:
            self.messages.append(turn)
        texts = [part["text"] for part in _parts(turn["content"]) if part["text"]]
        reasoning = [turn["reasoning_content"]] if "reasoning_content" in turn else []
        calls: list[dict[str, Any]] = turn.get("tool_calls", [])
        for at, block in enumerate(blocks):
            where = f"{place}.content[{at}]"
            match block:
                case ThinkingBlock():
                    reasoning.append(block.thinking)
                case RedactedThinkingBlock():
                    continue
                case ToolUseBlock():
                    calls.append(self._call(block, where))
                case _:
                    texts.append(_text(block, where))
        turn["content"] = text_content(texts)
        if any(reasoning):
            turn["reasoning_content"] = "\n".join(text for text in reasoning if text)
        if calls:
            turn["tool_calls"] = calls

    def _call(self, block: ToolUseBlock, place: str) -> dict[str, Any]:
        if block.id in self._open_calls:
            raise _wrong(f"'{place}.id' is the id of another tool call.", f"{place}.id")
        self._open_calls[block.id] = None
        arguments = arguments_of(json.dumps(block.input), f"{place}.input")
        function = {"name": block.name, "arguments": arguments}
        return {"id": block.id, "type": "function", "function": function}


def shown_tools(messages: Sequence[InputMessage], names: Mapping[str, bool]) -> set[str]:
    """Returns the names of the tools that the model sees after a conversation.

    Args:
        names: maps each tool's name to True if the model sees it from the beginning.
    """
    shown = {name for name, is_shown in names.items() if is_shown}
    for message in messages:
        for block in _blocks(message.content):
            if isinstance(block, ToolResultBlock):
                content = block.content if isinstance(block.content, list) else []
                shown |= {
                    part.tool_name for part in content if isinstance(part, ToolReferenceBlock)
                }
            elif isinstance(block, ToolChangeBlock):
                if block.type == "tool_addition":
                    shown.add(block.tool.name)
                else:
                    shown.discard(block.tool.name)
    return shown & names.keys()


def _blocks(content: Content | Sequence[ResultBlock]) -> Sequence[Block | ResultBlock]:
    return [TextBlock(type="text", text=content)] if isinstance(content, str) else content


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [text_part(content)] if isinstance(content, str) else content


def _part(block: Block | ResultBlock, place: str) -> dict[str, Any]:
    """Returns a block of a user's message in the form of templates."""
    if isinstance(block, ImageBlock):
        source = block.source
        if isinstance(source, OtherSource):  # Rejected by validation.
            raise _wrong(f"'{place}.source' is not supported.", place)
        if isinstance(source, UrlSource):
            return image_part(source.url, f"{place}.source.url")
        return image_part(source.data, f"{place}.source.data")
    return text_part(_text(block, place))


def _text(block: Block | ResultBlock, place: str) -> str:
    if isinstance(block, TextBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock):
        return block.text
    raise _wrong(
        f"'{place}' is a block of the type '{block.type}', which does not fit here.", place
    )


def _wrong(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param)
