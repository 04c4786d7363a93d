# `python -m tools.client_api` writes this file.
"""Parameters of agents, from the OpenAPI document."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict


class JsonSchemaParams(TypedDict, total=False):
    description: str | None
    name: Required[str]
    schema: Mapping[str, Any] | None
    strict: bool | None
    """Objects may have only the members that the schema names, unless it sets
    `additionalProperties` for them. The schema is enforced either way.
    """


class JsonSchemaFormatParams(TypedDict, total=False):
    json_schema: JsonSchemaParams | None
    schema: Mapping[str, Any] | str | None
    """Replaces `json_schema`, as in other APIs."""
    type: Required[Literal["json_schema"]]
    value: Mapping[str, Any] | str | None
    """Replaces `json_schema`, as in other APIs."""


class JsonValueFormatParams(TypedDict, total=False):
    """Form of any object, or of a value of a schema, which clients of other servers send
    under two names.
    """

    schema: Mapping[str, Any] | str | None
    """A JSON schema, as llama.cpp's clients send it."""
    type: Required[Literal["json_object", "json"]]
    value: Mapping[str, Any] | str | None
    """A JSON schema. The type `json` needs this field or `schema`."""


class NamedFunctionParams(TypedDict):
    name: str


class NamedToolParams(TypedDict, total=False):
    function: Required[NamedFunctionParams]
    type: Literal["function"]
    """May be missing: huggingface_hub's own type has no such field."""


class RegexFormatParams(TypedDict):
    """Form that Text Generation Inference's clients send."""

    type: Literal["regex"]
    value: str


class TextFormatParams(TypedDict):
    type: Literal["text"]


class AgentConfigParams(TypedDict, total=False):
    """Options of the model's chat completions, and limits of a run."""

    max_credits: float | None
    """Maximum cost of the model's memory during the run's steps."""
    max_tokens: int | None
    """Maximum number of tokens per step."""
    max_total_tokens: int | None
    """Maximum number of tokens in all steps' prompts and answers together."""
    parallel_tool_calls: bool | None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None
    response_format: (
        TextFormatParams | JsonValueFormatParams | JsonSchemaFormatParams | RegexFormatParams | None
    )
    seed: int | None
    stop: str | Sequence[str] | None
    temperature: float | None
    timeout_s: float | None
    """Maximum working time, seconds. Waiting for tool outputs does not count."""
    tool_choice: Literal["none", "auto", "required"] | NamedToolParams | None
    """Tool choice of the first step. Later steps choose freely."""
    top_k: int | None
    top_p: float | None


class FunctionDefinitionParams(TypedDict, total=False):
    description: str | None
    name: Required[str]
    parameters: Mapping[str, Any] | None
    """A JSON schema of an object."""
    strict: bool | None
    """Reject a schema that cannot be fully enforced."""


class AgentFunctionToolParams(TypedDict):
    """A function that the run's owner executes. The run waits for its output."""

    function: FunctionDefinitionParams
    type: Literal["function"]


class McpToolParams(TypedDict, total=False):
    """All or some tools of a server of the Model Context Protocol."""

    allowed_tools: Sequence[str] | None
    """Default: all."""
    headers: Mapping[str, str]
    """Sent with every request, kept encrypted, and shown as `***`."""
    server_label: Required[str]
    """Label of the tool server, unique in the agent."""
    server_url: Required[str]
    """URL of the server's streamable HTTP endpoint."""
    type: Required[Literal["mcp"]]


class AgentCreateParams(TypedDict, total=False):
    config: AgentConfigParams
    instructions: str | None
    max_steps: int
    """Maximum number of model calls per run."""
    model: Required[str]
    """Your own id for the model, unique in the account."""
    name: Required[str]
    tools: Sequence[AgentFunctionToolParams | McpToolParams]


class AgentUpdateParams(TypedDict, total=False):
    """Changes of an agent. Omitted fields keep their values; present fields replace them."""

    config: AgentConfigParams
    instructions: str | None
    """Null removes the instructions."""
    max_steps: int
    """Maximum number of model calls per run."""
    model: str
    """Your own id for the model, unique in the account."""
    name: str
    tools: Sequence[AgentFunctionToolParams | McpToolParams]


class RefusalPartParams(TypedDict):
    refusal: str
    type: Literal["refusal"]


class TextPartParams(TypedDict):
    text: str
    type: Literal["text"]


class CalledFunctionParams(TypedDict):
    arguments: str
    name: str
    """As the model wrote it. It may differ from every tool's name."""


class ToolCallParams(TypedDict, total=False):
    function: Required[CalledFunctionParams]
    id: Required[str]
    type: Literal["function"]


class AssistantMessageParams(TypedDict, total=False):
    content: str | Sequence[TextPartParams | RefusalPartParams] | None
    name: str | None
    partial: Literal[False] | None
    prefix: Literal[False] | None
    reasoning_content: str | None
    refusal: str | None
    role: Required[Literal["assistant"]]
    tool_calls: Sequence[ToolCallParams] | None


class ImageUrlParams(TypedDict, total=False):
    detail: Literal["auto", "low", "high", "original"]
    """Not used: the model's image processor sets the size."""
    url: Required[str]
    """An http(s) URL, a data URI or base64."""


class ImagePartParams(TypedDict):
    image_url: ImageUrlParams
    type: Literal["image_url"]


class SystemMessageParams(TypedDict, total=False):
    content: Required[str | Sequence[TextPartParams]]
    name: str | None
    role: Required[Literal["system", "developer"]]


class ToolMessageParams(TypedDict):
    content: str | Sequence[TextPartParams | ImagePartParams]
    role: Literal["tool"]
    tool_call_id: str


class UserMessageParams(TypedDict, total=False):
    content: Required[str | Sequence[TextPartParams | ImagePartParams]]
    name: str | None
    role: Required[Literal["user"]]


class RunCreateParams(TypedDict):
    input: (
        str
        | Sequence[
            SystemMessageParams | UserMessageParams | AssistantMessageParams | ToolMessageParams
        ]
    )
    """Task for the agent: a text, or a conversation in the format of chat completions."""


class ToolOutputParams(TypedDict):
    output: str
    tool_call_id: str


class ToolOutputsParams(TypedDict):
    tool_outputs: Sequence[ToolOutputParams]
    """Outputs of all or some of the calls that the run waits for."""
