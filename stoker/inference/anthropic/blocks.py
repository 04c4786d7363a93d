"""Content blocks of Anthropic's Messages."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic.json_schema import SkipJsonSchema

from stoker.inference.openai.items import served_only
from stoker.inference.openai.messages import ImageSource, Text
from stoker.inference.openai.sampling import Name, OpenAIRequest
from stoker.inference.openai.unions import one_of

MAX_BLOCKS = 4096
"""Maximum number of blocks in a message."""
_NO_FILES = "is not supported. Send the content itself"


def _other_block(value: str) -> str:
    raise ValueError(
        f"'{value}' is not supported. Models here read text, images, documents of plain text, "
        "search results, thinking, and calls of your own tools with their results"
    )


def _other_source(value: str) -> str:
    raise ValueError(f"'{value}' is not supported. Send the content itself")


class TextBlock(OpenAIRequest):
    type: Literal["text"]
    text: Text


class Base64Source(OpenAIRequest):
    type: Literal["base64"]
    media_type: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Not used: the content shows its type."
    )
    data: ImageSource


class UrlSource(OpenAIRequest):
    type: Literal["url"]
    url: ImageSource


class OtherSource(OpenAIRequest):
    type: Annotated[str, Field(max_length=64), AfterValidator(_other_source)]


class ImageBlock(OpenAIRequest):
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("<base64>")]
        | Annotated[UrlSource, Tag("<url>")]
        | Annotated[SkipJsonSchema[OtherSource], Tag("<other>")],
        one_of("base64", "url", must_be="a source of the type 'base64' or 'url'"),
    ]


class PlainTextSource(OpenAIRequest):
    type: Literal["text"]
    data: Text


_NO_PDF = "a source of the type 'text'. Models here read plain text"


class DocumentBlock(OpenAIRequest):
    """A document of plain text."""

    type: Literal["document"]
    source: Annotated[
        Annotated[PlainTextSource, Tag("<text>")]
        | Annotated[SkipJsonSchema[OtherSource], Tag("<other>")],
        one_of("text", must_be=_NO_PDF),
    ]
    title: Text | None = None
    context: Text | None = None

    @property
    def text(self) -> str:
        data = self.source.data if isinstance(self.source, PlainTextSource) else ""
        return "\n\n".join(part for part in (self.title, self.context, data) if part)


class ThinkingBlock(OpenAIRequest):
    """Reasoning of an earlier answer, for templates that show it again."""

    type: Literal["thinking"]
    thinking: Text
    signature: Annotated[str, Field(max_length=1 << 20)] | None = Field(
        default=None, description="Not used."
    )


class RedactedThinkingBlock(OpenAIRequest):
    """Reasoning that only its provider can read. Left out."""

    type: Literal["redacted_thinking"]


class SearchResultBlock(OpenAIRequest):
    """A passage that a search returned."""

    type: Literal["search_result"]
    source: Text
    title: Text
    content: list[TextBlock] = Field(max_length=MAX_BLOCKS)

    @property
    def text(self) -> str:
        return "\n\n".join([f"{self.title}\n{self.source}", *(part.text for part in self.content)])


class ToolReferenceBlock(OpenAIRequest):
    """Shows a tool with `defer_loading` to the model from now on."""

    type: Literal["tool_reference"]
    tool_name: Name

    @property
    def text(self) -> str:
        return f"The tool {self.tool_name} is available now."


class ChangedTool(OpenAIRequest):
    type: Literal["tool_reference"] = Field(
        description="A tool of `tools`. Other types are not supported."
    )
    name: Name


class ToolChangeBlock(OpenAIRequest):
    """Shows a tool to the model from now on, or no longer. Only in messages of the system."""

    type: Literal["tool_addition", "tool_removal"]
    tool: ChangedTool

    @property
    def text(self) -> str:
        state = "available now" if self.type == "tool_addition" else "no longer available"
        return f"The tool {self.tool.name} is {state}."


class ToolUseBlock(OpenAIRequest):
    type: Literal["tool_use"]
    id: Name
    name: Text = Field(description="As the model wrote it. It may differ from every tool's name.")
    input: dict[str, Any] = Field(max_length=4096)


class OtherBlock(OpenAIRequest):
    type: Annotated[str, Field(max_length=64), AfterValidator(_other_block)]


_Other = Annotated[SkipJsonSchema[OtherBlock], Tag("<other>")]
_BLOCK = "an object with the 'type' of a content block"
_TEXT_OR_BLOCKS = "a text or a list of content blocks"
_Text = Annotated[Text, Tag("<str>")]
_TextBlock = Annotated[TextBlock, Tag("<text>")]
_ImageBlock = Annotated[ImageBlock, Tag("<image>")]
_DocumentBlock = Annotated[DocumentBlock, Tag("<document>")]
_SearchResultBlock = Annotated[SearchResultBlock, Tag("<search_result>")]

ResultBlock = Annotated[
    _TextBlock
    | _ImageBlock
    | _DocumentBlock
    | _SearchResultBlock
    | Annotated[ToolReferenceBlock, Tag("<tool_reference>")]
    | _Other,
    one_of("text", "image", "document", "search_result", "tool_reference", must_be=_BLOCK),
]


class ToolResultBlock(OpenAIRequest):
    type: Literal["tool_result"]
    tool_use_id: Name
    content: (
        Annotated[
            _Text | Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS), Tag("<list>")],
            one_of(must_be=_TEXT_OR_BLOCKS),
        ]
        | None
    ) = None
    is_error: bool | None = Field(
        default=None, description="True: the model reads `Error: ` before the content."
    )
    toolset_name: Annotated[None, served_only(why="is not supported: toolsets are not")] = None


Block = Annotated[
    _TextBlock
    | _ImageBlock
    | _DocumentBlock
    | _SearchResultBlock
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ToolChangeBlock, Tag("<tool_addition>")]
    | Annotated[ToolChangeBlock, Tag("<tool_removal>")]
    | _Other,
    one_of(
        *("text", "image", "document", "search_result", "thinking", "redacted_thinking"),
        *("tool_use", "tool_result", "tool_addition", "tool_removal"),
        must_be=_BLOCK,
    ),
]
Content = Annotated[
    _Text | Annotated[list[Block], Field(max_length=MAX_BLOCKS), Tag("<list>")],
    one_of(must_be=_TEXT_OR_BLOCKS),
]
SystemContent = Annotated[
    _Text | Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS), Tag("<list>")],
    one_of(must_be="a text or a list of text blocks"),
]
