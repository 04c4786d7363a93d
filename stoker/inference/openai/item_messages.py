"""Converts the items of a response's input to messages for chat templates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.call_arguments import arguments_of
from stoker.inference.openai.items import (
    CompactionItem,
    CompactionTrigger,
    CustomCallItem,
    FunctionCallItem,
    Input,
    InputImagePart,
    InputItem,
    MessageItem,
    OtherContent,
    OtherItem,
    OutputItem,
    ReasoningItem,
    WrittenPart,
)
from stoker.inference.openai.messages import RefusalPart
from stoker.inference.openai.response_tools import INPUT, template_name
from stoker.wire.generation_request import as_text, image_part, text_content, text_part

SUMMARIZE = (
    "Summarize the conversation so far, so that it can be continued from your summary alone. Keep "
    "the task, decisions, facts, names of files, results of tools and open steps. Write only the "
    "summary."
)
"""Message of the user that asks for a compaction."""
SUMMARY = "Summary of the conversation so far:\n\n"


def for_template(
    given: Input, instructions: str | None, *, summarizes: bool = False
) -> list[dict[str, Any]]:
    """Returns the messages in the form of chat templates. Raises `InvalidRequestError` that names
    the field.

    Args:
        summarizes: if True, the last message asks the model to summarize the conversation.
    """
    if isinstance(given, str):
        given = [MessageItem(role="user", content=given)]
    messages = _Messages()
    if instructions:
        messages.found.append({"role": "system", "content": instructions})
    for index, item in enumerate(given):
        messages.add(item, f"input[{index}]")
    if messages.open_calls:
        first = next(iter(messages.open_calls))
        raise _wrong(
            f"The call '{first}' has no output. Add an item of the type 'function_call_output' or "
            "'custom_tool_call_output' after it.",
            "input",
        )
    if summarizes:
        messages.found.append({"role": "user", "content": SUMMARIZE})
    return messages.found


@dataclass
class _Messages:
    """Builds messages from items. Consecutive items of the assistant, including calls, form one
    message.
    """

    found: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    turn: dict[str, Any] | None = None
    """The assistant's current message, while more items may belong to it."""
    turn_texts: list[str] = field(default_factory=list[str])
    """Texts of that message."""
    open_calls: dict[str, None] = field(default_factory=dict[str, None])
    """Ids of calls that wait for their output, in order."""

    is_over: bool = False
    """True after the item that must be the last."""

    def add(self, item: InputItem, place: str) -> None:
        if self.is_over:
            raise _wrong(
                f"'{place}' comes after an item 'compaction_trigger', which must be the last.",
                place,
            )
        if isinstance(item, OutputItem):
            self._output(item, place)
            return
        of_answer = isinstance(item, FunctionCallItem | CustomCallItem | ReasoningItem) or (
            isinstance(item, MessageItem) and item.role == "assistant"
        )
        if self.open_calls and (self.turn is None or not of_answer):
            first = next(iter(self.open_calls))
            raise _wrong(
                f"'{place}' comes before the output of the call '{first}'.",
                place,
            )
        match item:
            case MessageItem(role="assistant"):
                self._written(item, place)
            case MessageItem():
                self._message(item, place)
            case FunctionCallItem():
                arguments = arguments_of(item.arguments, f"{place}.arguments")
                self._call(item, arguments, place)
            case CustomCallItem():
                self._call(item, {INPUT: item.input}, place)
            case ReasoningItem():
                self._reasoning(item)
            case CompactionItem():
                self.turn = None
                self.found.append({"role": "user", "content": SUMMARY + item.summary})
            case CompactionTrigger():
                self.is_over = True
            case OtherItem():  # Rejected by validation.
                return

    def _message(self, item: MessageItem, place: str) -> None:
        self.turn = None
        if item.role == "user":
            self.found.append(
                {"role": "user", "content": _content(item.content, f"{place}.content")}
            )
            return
        texts = _texts(item.content, f"{place}.content")
        if len(self.found) == 1 and self.found[0]["role"] == "system":
            # Often sent in addition to the instructions. Templates accept one system message, the
            # first.
            before = as_text(self.found[0]["content"])
            self.found[0]["content"] = before + "\n\n" + "\n".join(texts)
        else:
            self.found.append({"role": "system", "content": text_content(texts)})

    def _written(self, item: MessageItem, place: str) -> None:
        texts = _texts(item.content, f"{place}.content")
        if self.turn and "tool_calls" in self.turn:
            # All are one answer: its text may stand before, between and after its calls.
            texts = [*self.turn_texts, *texts]
        elif self.turn and self.turn["content"]:
            self.turn = None
        self._assistant()["content"] = text_content(texts)
        self.turn_texts = texts

    def _reasoning(self, item: ReasoningItem) -> None:
        if text := item.text:
            turn = self._assistant()
            before = f"{turn['reasoning_content']}\n" if "reasoning_content" in turn else ""
            turn["reasoning_content"] = before + text

    def _call(
        self, item: FunctionCallItem | CustomCallItem, arguments: dict[str, Any] | str, place: str
    ) -> None:
        # Some servers number the calls of each answer from zero. The id of a call with an output
        # may be used again.
        if item.call_id in self.open_calls:
            raise _wrong(
                f"'{place}.call_id' is the id of another call without an output.",
                f"{place}.call_id",
            )
        self.open_calls[item.call_id] = None
        function = {"name": template_name(item.name, item.namespace), "arguments": arguments}
        calls: list[Any] = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": item.call_id, "type": "function", "function": function})

    def _output(self, item: OutputItem, place: str) -> None:
        self.turn = None
        if item.call_id not in self.open_calls:
            raise _wrong(
                f"'{place}' answers no call: '{item.call_id}' is not the 'call_id' of "
                "an earlier call without an output.",
                f"{place}.call_id",
            )
        del self.open_calls[item.call_id]
        content = _output(item.output, f"{place}.output")
        self.found.append({"role": "tool", "tool_call_id": item.call_id, "content": content})

    def _assistant(self) -> dict[str, Any]:
        """Returns the assistant's current message, or begins a new one."""
        if self.turn is None:
            self.turn = {"role": "assistant", "content": ""}
            self.turn_texts = []
            self.found.append(self.turn)
        return self.turn


_Content = str | Sequence[WrittenPart | InputImagePart | RefusalPart | OtherContent]


def _output(content: _Content, place: str) -> Any:
    if not isinstance(content, str) and any(isinstance(part, InputImagePart) for part in content):
        return _content(content, place)
    return text_content(_texts(content, place))


def _content(content: _Content, place: str) -> Any:
    if isinstance(content, str):
        return content
    return [
        image_part(part.image_url, f"{place}[{index}].image_url")
        if isinstance(part, InputImagePart)
        else text_part("".join(_texts([part], place)))
        for index, part in enumerate(content)
    ]


def _texts(content: _Content, place: str) -> list[str]:
    """Returns the texts of a content's parts. Raises `InvalidRequestError` for an image."""
    if isinstance(content, str):
        return [content]
    texts: list[str] = []
    for index, part in enumerate(content):
        match part:
            case WrittenPart():
                texts.append(part.text)
            case RefusalPart():
                texts.append(part.refusal)
            case InputImagePart():
                where = f"{place}[{index}]"
                raise _wrong(
                    f"'{where}' is an image. Only user messages and outputs of tools may contain "
                    "images.",
                    where,
                )
            case OtherContent():  # Rejected by validation.
                continue
    return texts


def _wrong(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param)
