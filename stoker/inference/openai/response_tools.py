"""Tools of `/v1/responses`, and the functions that chat templates and grammars know."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from stoker.base.errors import InvalidRequestError
from stoker.inference.openai.answer_forms import MAX_FORM_CHARS, check_schema_is_named
from stoker.inference.openai.items import served_only
from stoker.inference.openai.lark_expressions import LarkError, expression_of
from stoker.inference.openai.messages import FUNCTION_NAME, MAX_TOOLS, Text
from stoker.inference.openai.sampling import OpenAIRequest
from stoker.inference.openai.unions import one_of
from stoker.models.tasks.base import refusal
from stoker.wire.generation_request import Tools

_HOSTED = re.compile(
    r"(apply_patch|code_interpreter|computer|computer_use|computer_use_preview|file_search|"
    r"image_generation|local_shell|mcp|programmatic_tool_calling|shell|tool_search|web_search|"
    r"web_search_preview)(_\d{4}_\d{2}_\d{2})?"
)
_NO_PROGRAMS = "is not supported: models call functions directly, not through programs"
_NO_SEARCH = "is not supported: tools are not searched. Send all that may be called"
INPUT = "input"
"""Parameter of the function that stands for a custom tool."""
_SEPARATOR = "__"


def _hosted_type(value: str) -> str:
    if not _HOSTED.fullmatch(value):
        raise ValueError(
            f"'{value}' is not supported. Tools of your own have the type 'function', 'custom' or "
            "'namespace'"
        )
    return value


def _own_tool(value: str) -> str:
    if value not in ("function", "custom"):
        raise ValueError(f"'{value}' is not supported. It must be a tool of your own")
    return value


class _OwnTool(OpenAIRequest):
    """Fields that functions and custom tools share."""

    allowed_callers: Annotated[
        list[Literal["direct"]] | None, served_only(["direct"], why=_NO_PROGRAMS)
    ] = Field(default=None, max_length=1)
    defer_loading: Annotated[Literal[False] | None, served_only(False, why=_NO_SEARCH)] = None
    async_: Annotated[Literal[False] | None, served_only(False, why="is not supported here")] = (
        Field(default=None, alias="async")
    )

    checks_spelling = True


class FunctionTool(_OwnTool):
    type: Literal["function"]
    name: str = Field(pattern=FUNCTION_NAME)
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, max_length=4096, description="A JSON schema of an object."
    )
    strict: bool | None = Field(
        default=None, description="Reject a schema that cannot be fully enforced."
    )
    output_schema: Annotated[None, served_only(why=_NO_PROGRAMS)] = None

    @model_validator(mode="before")
    @classmethod
    def _has_its_schema(cls, data: Any) -> Any:
        check_schema_is_named(cls, data, "parameters")
        return data

    def function(self) -> dict[str, Any]:
        fields = {"name", "description", "parameters", "strict"}
        return self.model_dump(include=fields, exclude_none=True)

    def echo(self) -> dict[str, Any]:
        fields = {"type", "name", "description", "parameters"}
        return {**self.model_dump(include=fields), "strict": bool(self.strict)}


class ToolText(OpenAIRequest):
    type: Literal["text"]


class ToolGrammar(OpenAIRequest):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str = Field(
        min_length=1,
        max_length=MAX_FORM_CHARS,
        description="A grammar in Lark must not be recursive.",
    )

    def expression(self) -> str:
        """Returns the regular expression of all inputs. Raises `LarkError`."""
        return self.definition if self.syntax == "regex" else expression_of(self.definition)


class CustomTool(_OwnTool):
    """A tool whose input is a text. The model reads it as a function with one parameter."""

    type: Literal["custom"]
    name: str = Field(pattern=FUNCTION_NAME)
    description: Text | None = None
    format: (
        Annotated[
            Annotated[ToolText, Tag("<text>")] | Annotated[ToolGrammar, Tag("<grammar>")],
            one_of("text", "grammar", must_be="an object of the type 'text' or 'grammar'"),
        ]
        | None
    ) = None

    def function(self) -> dict[str, Any]:
        description = self.description or ""
        if isinstance(self.format, ToolGrammar):
            kind = "Lark grammar" if self.format.syntax == "lark" else "regular expression"
            description += f"\n\nThe input must match this {kind}:\n{self.format.definition}"
        function: dict[str, Any] = {"name": self.name, "parameters": _input_schema({})}
        return function | ({"description": description.strip()} if description else {})

    def form(self, field: str) -> dict[str, Any] | None:
        """Returns the schema of the input's grammar. Raises `InvalidRequestError`."""
        if not isinstance(self.format, ToolGrammar):
            return None
        try:
            expression = self.format.expression()
        except LarkError as error:
            message = f"'{field}' cannot be enforced: {error}."
            raise InvalidRequestError(message, param=field) from error
        return _input_schema({"pattern": f"^(?:{expression})$"})

    def echo(self) -> dict[str, Any]:
        format_ = self.format.model_dump() if self.format else {"type": "text"}
        fields = {"type", "name", "description"}
        return {**self.model_dump(include=fields), "format": format_}


def _input_schema(more: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {INPUT: {"type": "string", **more}},
        "required": [INPUT],
        "additionalProperties": False,
    }


class OtherTool(OpenAIRequest):
    type: Annotated[str, Field(max_length=64), AfterValidator(_own_tool)]


_OWN = Annotated[FunctionTool, Tag("<function>")] | Annotated[CustomTool, Tag("<custom>")]
_MUST_BE = "an object with the 'type' of a tool"
OwnTool = Annotated[
    _OWN | Annotated[OtherTool, Tag("<other>")],
    one_of("function", "custom", must_be=_MUST_BE),
]


class NamespaceTool(OpenAIRequest):
    """A group of tools. The model reads `<namespace>__<name>`; the answer has both names."""

    type: Literal["namespace"]
    name: str = Field(pattern=FUNCTION_NAME)
    description: Text | None = None
    tools: list[OwnTool] = Field(min_length=1, max_length=MAX_TOOLS)

    checks_spelling = True

    def echo(self) -> dict[str, Any]:
        tools = [tool.echo() for tool in self.tools if not isinstance(tool, OtherTool)]
        return {**self.model_dump(include={"type", "name", "description"}), "tools": tools}


class HostedTool(OpenAIRequest):
    """A tool that OpenAI's servers run. It is left out, and a header of the answer names it."""

    type: Annotated[str, Field(max_length=64), AfterValidator(_hosted_type)]


Tool = Annotated[
    _OWN | Annotated[NamespaceTool, Tag("<namespace>")] | Annotated[HostedTool, Tag("<other>")],
    one_of("function", "custom", "namespace", must_be=_MUST_BE),
]


class ChosenResponseTool(OpenAIRequest):
    type: Annotated[
        str,
        Field(max_length=64, json_schema_extra={"enum": ["function", "custom"]}),
        AfterValidator(
            lambda value: value if value in ("function", "custom") else _own_tool(value)
        ),
    ]
    name: str = Field(pattern=FUNCTION_NAME)
    namespace: str | None = Field(default=None, pattern=FUNCTION_NAME)


class AllowedResponseTools(OpenAIRequest):
    """Restricts the tools that may be called. The model is shown no others."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ChosenResponseTool] = Field(min_length=1, max_length=MAX_TOOLS)


@dataclass(frozen=True)
class CallableTool:
    """A tool that the model may call."""

    tool: FunctionTool | CustomTool
    namespace: str | None
    field: str
    """Its place in the request."""

    @property
    def name(self) -> str:
        """Name of the function that the model reads."""
        return template_name(self.tool.name, self.namespace)

    @property
    def schema_field(self) -> str:
        is_custom = isinstance(self.tool, CustomTool)
        return f"{self.field}.{'format.definition' if is_custom else 'parameters'}"

    def call(self) -> dict[str, str] | None:
        """Returns the fields of the answer's calls. None for a plain function."""
        if self.namespace is None and isinstance(self.tool, FunctionTool):
            return None
        kind = "custom_tool_call" if isinstance(self.tool, CustomTool) else "function_call"
        fields = {"type": kind, "name": self.tool.name}
        return fields if self.namespace is None else {**fields, "namespace": self.namespace}


def template_name(name: str, namespace: str | None) -> str:
    """Returns the name by which chat templates know a tool."""
    return name if namespace is None else f"{namespace}{_SEPARATOR}{name}"


class ToolList:
    """Tools of one request. Hosted tools cannot be called."""

    def __init__(self, tools: Sequence[Any]) -> None:
        """Raises `InvalidRequestError` for names that occur twice or are too long."""
        self._tools = tools
        self.callable = list(_callable_tools(tools))
        self.by_name: dict[str, CallableTool] = {}
        if len(self.callable) > MAX_TOOLS:
            raise refusal(f"has {len(self.callable)} tools; the limit is {MAX_TOOLS}", "tools")
        for entry in self.callable:
            place = _path(f"{entry.field}.name")
            if not re.fullmatch(FUNCTION_NAME, entry.name):
                raise refusal(f"'{entry.name}', with its namespace, is too long", *place)
            if entry.name in self.by_name:
                raise refusal(f"'{entry.name}' is also the name of another tool", *place)
            self.by_name[entry.name] = entry

    @property
    def dropped(self) -> list[str]:
        """Types of the hosted tools, each once."""
        types = [tool.type for tool in self._tools if isinstance(tool, HostedTool)]
        return list(dict.fromkeys(types))

    def echo(self) -> list[dict[str, Any]]:
        return [tool.echo() for tool in self._tools if not isinstance(tool, HostedTool)]

    def calls(self) -> dict[str, dict[str, str]]:
        """Maps names that the model writes to fields of the answer's calls, if they differ."""
        return {entry.name: call for entry in self.callable if (call := entry.call())}

    def for_model(self, choice: Any, *, parallel: bool) -> Tools | None:
        """Returns the functions in their internal form. Raises `InvalidRequestError`."""
        if not self.callable:
            return None
        functions = [
            {"type": "function", "function": {**entry.tool.function(), "name": entry.name}}
            for entry in self.callable
        ]
        mode, name, allowed = choice or "auto", None, None
        if isinstance(choice, ChosenResponseTool):
            mode, name, parallel = "required", chosen_name(choice), False
        elif isinstance(choice, AllowedResponseTools):
            mode, allowed = choice.mode, [chosen_name(tool) for tool in choice.tools]
        return Tools(
            functions=functions,
            choice=mode,
            name=name,
            allowed=allowed,
            parallel=parallel,
            fields=[entry.schema_field for entry in self.callable],
            forms={} if mode == "none" else self._forms(name, allowed),
        )

    def _forms(self, name: str | None, allowed: Sequence[str] | None) -> dict[str, dict[str, Any]]:
        return {
            entry.name: form
            for entry in self.callable
            if isinstance(entry.tool, CustomTool)
            and name in (None, entry.name)
            and (allowed is None or entry.name in allowed)
            and (form := entry.tool.form(entry.schema_field))
        }


def chosen_name(choice: ChosenResponseTool) -> str:
    return template_name(choice.name, choice.namespace)


def _callable_tools(tools: Sequence[Any]) -> Iterator[CallableTool]:
    for index, tool in enumerate(tools):
        if isinstance(tool, (FunctionTool, CustomTool)):
            yield CallableTool(tool, None, f"tools[{index}]")
        elif isinstance(tool, NamespaceTool):
            for place, inner in enumerate(tool.tools):
                if isinstance(inner, (FunctionTool, CustomTool)):
                    yield CallableTool(inner, tool.name, f"tools[{index}].tools[{place}]")


def _path(field: str) -> list[str | int]:
    """Returns the parts of a field's place such as `tools[0].name`."""
    return [int(part) if part.isdecimal() else part for part in re.findall(r"\w+", field)]
