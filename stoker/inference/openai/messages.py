"""Messages of OpenAI's clients, validated and converted to the form of chat templates."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.answer_forms import check_schema_is_named, only_default
from stoker.inference.openai.call_arguments import arguments_of
from stoker.inference.openai.sampling import MAX_TEXT_CHARS, Name, OpenAIRequest
from stoker.inference.openai.unions import attribute, one_of, type_of
from stoker.media.inline import Inline
from stoker.media.media import Media
from stoker.models.tasks.inputs import claimed
from stoker.wire.generation_request import image_part, text_content, text_part

MAX_IMAGES = 64
"""Maximum number of images in a request."""
MAX_IMAGE_CHARS = 64 << 20
MAX_MESSAGES = 4096
MAX_PARTS = 256
MAX_TOOLS = 128
MAX_CALLS = 4096
"""Maximum number of calls in an earlier answer."""
FUNCTION_NAME = r"^[a-zA-Z0-9_-]{1,64}$"

Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


class TextPart(OpenAIRequest):
    type: Literal["text"]
    text: Text


class RefusalPart(OpenAIRequest):
    type: Literal["refusal"]
    refusal: Text


def _image(value: Any, info: ValidationInfo) -> str | Inline:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string: an http(s) URL, a data URI or base64")
    if len(value) > MAX_IMAGE_CHARS:
        raise ValueError(f"must have at most {MAX_IMAGE_CHARS} characters")
    return claimed(value, info)


ImageSource = Annotated[
    str | Inline,
    PlainValidator(_image),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_IMAGE_CHARS,
            "description": "An http(s) URL, a data URI or base64.",
        }
    ),
]
Detail = Annotated[
    Literal["auto", "low", "high", "original"],
    Field(description="Not used: the model's image processor sets the size."),
]


class ImageUrl(OpenAIRequest):
    url: ImageSource
    detail: Detail = "auto"


class ImagePart(OpenAIRequest):
    type: Literal["image_url"]
    image_url: ImageUrl


Part = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[ImagePart, Tag("<image_url>")],
    one_of("text", "image_url", must_be="a part of the type 'text' or 'image_url'"),
]
AnsweredPart = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    one_of("text", "refusal", must_be="a part of the type 'text' or 'refusal'"),
]
_TEXT_OR_PARTS = one_of(must_be="a text or a list of parts")
_Plain = Annotated[Text, Tag("<str>")]
Content = Annotated[
    _Plain | Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS), Tag("<list>")],
    _TEXT_OR_PARTS,
]
PlainContent = Annotated[
    _Plain | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS), Tag("<list>")],
    _TEXT_OR_PARTS,
]
AnsweredContent = Annotated[
    _Plain | Annotated[list[AnsweredPart], Field(max_length=MAX_PARTS), Tag("<list>")],
    _TEXT_OR_PARTS,
]


class CalledFunction(OpenAIRequest):
    name: Text = Field(description="As the model wrote it. It may differ from every tool's name.")
    arguments: Text


class ToolCall(OpenAIRequest):
    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class SystemMessage(OpenAIRequest):
    role: Literal["system", "developer"]
    content: PlainContent
    name: Name | None = None


class UserMessage(OpenAIRequest):
    role: Literal["user"]
    content: Content
    name: Name | None = None

    @field_validator("content")
    @classmethod
    def _not_empty(cls, value: Content) -> Content:
        if not value:
            raise ValueError("must not be empty")
        return value


_TO_CONTINUE = only_default('is not supported. Send "continue_final_message": true', False)
"""For fields with which other servers' clients continue the last message."""


class AssistantMessage(OpenAIRequest):
    role: Literal["assistant"]
    content: AnsweredContent | None = None
    reasoning_content: Text | None = None
    refusal: Text | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_CALLS)] | None = None
    prefix: Annotated[Literal[False] | None, _TO_CONTINUE] = None
    partial: Annotated[Literal[False] | None, _TO_CONTINUE] = None


class ToolMessage(OpenAIRequest):
    role: Literal["tool"]
    content: Content
    tool_call_id: Name


def _role(value: Any) -> Any:
    role = attribute(value, "role")
    return "system" if role == "developer" else role


Message = Annotated[
    Annotated[SystemMessage, Tag("<system>")]
    | Annotated[UserMessage, Tag("<user>")]
    | Annotated[AssistantMessage, Tag("<assistant>")]
    | Annotated[ToolMessage, Tag("<tool>")],
    one_of(
        "system",
        "user",
        "assistant",
        "tool",
        must_be="a message whose role is system, developer, user, assistant or tool",
        kind=_role,
    ),
]


class FunctionDefinition(OpenAIRequest):
    name: str = Field(pattern=FUNCTION_NAME)
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, max_length=4096, description="A JSON schema of an object."
    )
    strict: bool | None = Field(
        default=None, description="Reject a schema that cannot be fully enforced."
    )

    checks_spelling = True

    @model_validator(mode="before")
    @classmethod
    def _has_its_schema(cls, data: Any) -> Any:
        check_schema_is_named(cls, data, "parameters")
        return data


class Tool(OpenAIRequest):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(OpenAIRequest):
    name: str = Field(pattern=FUNCTION_NAME)


class NamedTool(OpenAIRequest):
    type: Literal["function"] = Field(
        default="function",
        description="May be missing: huggingface_hub's own type has no such field.",
    )
    function: NamedFunction


class AllowedTools(OpenAIRequest):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedToolsChoice(OpenAIRequest):
    """Restricts the tools that may be called. The model is shown no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<str>")]
    | Annotated[NamedTool, Tag("<function>")]
    | Annotated[AllowedToolsChoice, Tag("<allowed_tools>")],
    one_of(
        "function",
        "allowed_tools",
        must_be="'none', 'auto', 'required', one function or 'allowed_tools'",
        kind=lambda value: type_of(value) or "function",
    ),
]


def for_template(messages: Sequence[Message], field: str = "messages") -> list[dict[str, Any]]:
    """Returns the messages in the form of chat templates. Raises `InvalidRequestError` that names
    the field.
    """
    open_calls: list[str] = []
    converted: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        place = f"{field}[{index}]"
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise _wrong(
                    f"'{place}' answers no tool call: '{message.tool_call_id}' is not the id of "
                    "an unanswered call in the assistant's message before it.",
                    f"{place}.tool_call_id",
                )
            open_calls.remove(message.tool_call_id)
        elif open_calls:
            raise _wrong(
                f"'{place}' comes before the answer to the tool call '{open_calls[0]}'. "
                "Send a message of the role 'tool' for each call first.",
                place,
            )
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.tool_calls or []]
            # Some servers number the calls of each message from zero.
            if len({*open_calls}) < len(open_calls):
                raise _wrong(
                    f"'{place}' has two tool calls with the same id.", f"{place}.tool_calls"
                )
        converted.append(_for_template(message, place))
    if open_calls:
        raise _wrong(
            f"The tool call '{open_calls[0]}' has no answer. Add a message of the role "
            "'tool' after it.",
            field,
        )
    return converted


def _for_template(message: Message, place: str) -> dict[str, Any]:
    match message:
        case SystemMessage():
            # Templates only know the older of the two role names.
            return {"role": "system", "content": _texts(message.content)}
        case UserMessage():
            return {"role": "user", "content": _content(message.content, place)}
        case ToolMessage():
            content = _output(message.content, place)
            return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
        case AssistantMessage():
            return _assistant(message, place)


def _assistant(message: AssistantMessage, place: str) -> dict[str, Any]:
    parts = (message.content, message.tool_calls, message.refusal, message.reasoning_content)
    if not any(part is not None for part in parts):
        raise _wrong(f"'{place}' has neither content nor tool calls.", f"{place}.content")
    converted: dict[str, Any] = {
        "role": "assistant",
        "content": _texts(message.content or message.refusal or ""),
    }
    if message.reasoning_content:
        converted["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        converted["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": arguments_of(
                        call.function.arguments, f"{place}.tool_calls[{at}].function.arguments"
                    ),
                },
            }
            for at, call in enumerate(message.tool_calls)
        ]
    return converted


def _content(content: str | Sequence[TextPart | ImagePart], place: str) -> Any:
    if isinstance(content, str):
        return content
    return [
        text_part(part.text)
        if isinstance(part, TextPart)
        else image_part(part.image_url.url, f"{place}.content[{index}].image_url")
        for index, part in enumerate(content)
    ]


def _output(content: str | Sequence[TextPart | ImagePart], place: str) -> Any:
    if isinstance(content, str):
        return content
    texts = [part for part in content if isinstance(part, TextPart)]
    return _content(content, place) if len(texts) < len(content) else _texts(texts)


def _texts(content: str | Sequence[TextPart | RefusalPart]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return text_content(
        [part.text if isinstance(part, TextPart) else part.refusal for part in content]
    )


def check_images(media: Sequence[tuple[str, Media]], *, taken: bool) -> None:
    """Raises `InvalidRequestError` for too many images, or for a model that cannot read images.

    Args:
        media: images with their fields, such as `messages[0].content[1].image_url`.
    """
    if media and not taken:
        part = media[0][0].rpartition(".")[0]
        raise _wrong(f"'{part}' is an image; this model reads text only.", part)
    if len(media) > MAX_IMAGES:
        field = media[MAX_IMAGES][0]
        raise _wrong(
            f"'{field}' is one image too many: a request may have at most {MAX_IMAGES}.", field
        )


def checked_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Returns the tools in the form of templates. Raises `InvalidRequestError` for duplicate
    names.
    """
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _wrong(
                f"'tools[{index}].function.name' is '{name}', which another tool already has.",
                f"tools[{index}].function.name",
            )
    return [tool.model_dump(exclude_none=True) for tool in tools]


def _wrong(message: str, param: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param)
