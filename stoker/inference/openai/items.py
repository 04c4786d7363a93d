"""Items of a response's input, and their conversion to messages for chat templates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Tag,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.call_arguments import arguments_of
from stoker.inference.openai.messages import (
    MAX_MESSAGES,
    MAX_PARTS,
    Detail,
    ImageSource,
    RefusalPart,
    Text,
)
from stoker.inference.openai.sampling import Name, OpenAIRequest
from stoker.inference.openai.unions import one_of, typed
from stoker.models.tasks.base import refusal
from stoker.wire.generation_request import as_text, image_part, text_content, text_part


def served_only(*taken: Any, why: str) -> BeforeValidator:
    """Accepts null and these values. For all others, reports why they are not served."""

    def check(value: Any) -> Any:
        if value is not None and value not in taken:
            raise ValueError(why)
        return value

    return BeforeValidator(check)


def _other_part(value: str) -> str:
    raise ValueError(f"'{value}' is not supported. Models here read texts and images")


def _other_item(value: str) -> str:
    if value == "item_reference":
        raise ValueError(
            "'item_reference' is not supported, because no items are stored. Send the item itself"
        )
    raise ValueError(
        f"'{value}' is not supported. Items have the type 'message', 'function_call', "
        "'function_call_output' or 'reasoning'"
    )


_NO_TEMPLATE = "is not supported by chat templates"
_NO_FILES = "is not supported. Send the image itself as 'image_url'"
_ENCRYPTED = "is not supported: content encrypted elsewhere cannot be read here"


class WrittenPart(OpenAIRequest):
    type: Literal["input_text", "output_text"]
    text: Text


class InputImagePart(OpenAIRequest):
    type: Literal["input_image"]
    image_url: ImageSource
    detail: Detail = "auto"
    file_id: Annotated[None, served_only(why=_NO_FILES)] = None


class OtherContent(OpenAIRequest):
    type: Annotated[str, Field(max_length=64), AfterValidator(_other_part)]


_Other = Annotated[SkipJsonSchema[OtherContent], Tag("<other>")]
_Written = (
    Annotated[WrittenPart, Tag("<input_text>")] | Annotated[WrittenPart, Tag("<output_text>")]
)
ItemPart = Annotated[
    _Written
    | Annotated[InputImagePart, Tag("<input_image>")]
    | Annotated[RefusalPart, Tag("<refusal>")]
    | _Other,
    one_of(
        "input_text", "output_text", "input_image", "refusal", must_be="an object with a 'type'"
    ),
]
ItemContent = Annotated[
    Annotated[Text, Tag("<str>")]
    | Annotated[list[ItemPart], Field(max_length=MAX_PARTS), Tag("<list>")],
    one_of(must_be="a text or a list"),
]


class MessageItem(OpenAIRequest):
    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer", "assistant"]
    content: ItemContent
    phase: Annotated[None, served_only(why=_NO_TEMPLATE)] = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        # An interrupted answer may have no parts.
        empty: Sequence[Any] = ("", []) if self.role == "user" else ([],)
        if self.role != "assistant" and self.content in empty:
            raise refusal("must not be empty", "content")
        return self


class FunctionCallItem(OpenAIRequest):
    type: Literal["function_call"]
    call_id: Name
    name: Text = Field(description="As the model wrote it. It may differ from every tool's name.")
    arguments: Text
    namespace: Annotated[None, served_only(why=_NO_TEMPLATE)] = None


class FunctionOutputItem(OpenAIRequest):
    type: Literal["function_call_output"]
    call_id: Name
    output: ItemContent


class ReasoningText(OpenAIRequest):
    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(OpenAIRequest):
    """Text that the model wrote before an answer, for templates that show it again."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS)] | None = None
    encrypted_content: Annotated[None, served_only(why=_ENCRYPTED)] = None


class OtherItem(OpenAIRequest):
    type: Annotated[str, Field(max_length=64), AfterValidator(_other_item)]


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[SkipJsonSchema[OtherItem], Tag("<other>")],
    one_of(
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        must_be="an object with a 'type' or a 'role'",
        kind=typed,
    ),
]
Input = Annotated[
    Annotated[Text, Field(min_length=1), Tag("<str>")]
    | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES), Tag("<list>")],
    one_of(must_be="a text or a list"),
]


def for_template(given: Input, instructions: str | None) -> list[dict[str, Any]]:
    """Returns the messages in the form of chat templates. Raises `InvalidRequestError` that names
    the field.
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
            f"The function call '{first}' has no output. Add an item of the type "
            "'function_call_output' after it.",
            "input",
        )
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

    def add(self, item: InputItem, place: str) -> None:
        if isinstance(item, FunctionOutputItem):
            self._output(item, place)
            return
        of_answer = not isinstance(item, MessageItem) or item.role == "assistant"
        if self.open_calls and (self.turn is None or not of_answer):
            first = next(iter(self.open_calls))
            raise _wrong(
                f"'{place}' comes before the output of the function call '{first}'.",
                place,
            )
        match item:
            case MessageItem(role="assistant"):
                self._written(item, place)
            case MessageItem():
                self._message(item, place)
            case FunctionCallItem():
                self._call(item, place)
            case ReasoningItem():
                self._reasoning(item)
            case OtherItem():  # Rejected by validation.
                return

    def _message(self, item: MessageItem, place: str) -> None:
        self.turn = None
        if item.role == "user":
            self.found.append({"role": "user", "content": _content(item.content, place)})
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
        text = "\n".join(part.text for part in item.content or [])
        if text:
            turn = self._assistant()
            before = f"{turn['reasoning_content']}\n" if "reasoning_content" in turn else ""
            turn["reasoning_content"] = before + text

    def _call(self, item: FunctionCallItem, place: str) -> None:
        # Some servers number the calls of each answer from zero. The id of a call with an output
        # may be used again.
        if item.call_id in self.open_calls:
            raise _wrong(
                f"'{place}.call_id' is the id of another call without an output.",
                f"{place}.call_id",
            )
        self.open_calls[item.call_id] = None
        arguments = arguments_of(item.arguments, f"{place}.arguments")
        function = {"name": item.name, "arguments": arguments}
        calls: list[Any] = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": item.call_id, "type": "function", "function": function})

    def _output(self, item: FunctionOutputItem, place: str) -> None:
        self.turn = None
        if item.call_id not in self.open_calls:
            raise _wrong(
                f"'{place}' answers no function call: '{item.call_id}' is not the 'call_id' of "
                "an earlier call without an output.",
                f"{place}.call_id",
            )
        del self.open_calls[item.call_id]
        content = text_content(_texts(item.output, f"{place}.output"))
        self.found.append({"role": "tool", "tool_call_id": item.call_id, "content": content})

    def _assistant(self) -> dict[str, Any]:
        """Returns the assistant's current message, or begins a new one."""
        if self.turn is None:
            self.turn = {"role": "assistant", "content": ""}
            self.turn_texts = []
            self.found.append(self.turn)
        return self.turn


_Content = str | Sequence[WrittenPart | InputImagePart | RefusalPart | OtherContent]


def _content(content: _Content, place: str) -> Any:
    if isinstance(content, str):
        return content
    return [
        image_part(part.image_url, f"{place}.content[{index}].image_url")
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
                    f"'{where}' is an image. Only user messages may contain images.", where
                )
            case OtherContent():  # Rejected by validation.
                continue
    return texts


def _wrong(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param)
