"""Items of a response's input."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    Tag,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

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
        "'function_call_output', 'custom_tool_call', 'custom_tool_call_output', "
        "'reasoning', 'compaction' or 'compaction_trigger'"
    )


_NO_TEMPLATE = "is not supported by chat templates"
_NO_FILES = "is not supported. Send the image itself as 'image_url'"
MAX_SEALED_CHARS = 1 << 22


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
    namespace: Name | None = None


class CustomCallItem(OpenAIRequest):
    type: Literal["custom_tool_call"]
    call_id: Name
    name: Text
    input: Text
    namespace: Name | None = None


class OutputItem(OpenAIRequest):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Name
    output: ItemContent


class ReasoningText(OpenAIRequest):
    type: Literal["reasoning_text", "text"]
    text: Text


class SummaryText(OpenAIRequest):
    type: Literal["summary_text"]
    text: Text


class ReasoningItem(OpenAIRequest):
    """Text that the model wrote before an answer, for templates that show it again."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=MAX_PARTS)] | None = None
    summary: Annotated[list[SummaryText], Field(max_length=MAX_PARTS)] | None = None
    encrypted_content: Annotated[str, Field(max_length=MAX_SEALED_CHARS)] | None = Field(
        default=None,
        description="As this server sealed it. Of another server's, only `content` and `summary` "
        "are read.",
    )

    @property
    def text(self) -> str:
        """The readable text."""
        return "\n".join(part.text for part in self.content or self.summary or [])


class CompactionItem(OpenAIRequest):
    """Summary of the conversation before it, as this server sealed it."""

    type: Literal["compaction"]
    encrypted_content: Annotated[str, Field(max_length=MAX_SEALED_CHARS)]
    _summary: str = ""

    @property
    def summary(self) -> str:
        """The text, after the item was opened."""
        return self._summary

    def open(self, summary: str) -> None:
        self._summary = summary


class CompactionTrigger(OpenAIRequest):
    """As the last item: the answer is one item `compaction` instead of a message."""

    type: Literal["compaction_trigger"]


class OtherItem(OpenAIRequest):
    type: Annotated[str, Field(max_length=64), AfterValidator(_other_item)]


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[OutputItem, Tag("<function_call_output>")]
    | Annotated[CustomCallItem, Tag("<custom_tool_call>")]
    | Annotated[OutputItem, Tag("<custom_tool_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[CompactionItem, Tag("<compaction>")]
    | Annotated[CompactionTrigger, Tag("<compaction_trigger>")]
    | Annotated[SkipJsonSchema[OtherItem], Tag("<other>")],
    one_of(
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "compaction",
        "compaction_trigger",
        must_be="an object with a 'type' or a 'role'",
        kind=typed,
    ),
]
Input = Annotated[
    Annotated[Text, Field(min_length=1), Tag("<str>")]
    | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES), Tag("<list>")],
    one_of(must_be="a text or a list"),
]
