"""Wire types of agents, runs and events."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from stoker.base.strict_json import check_storable
from stoker.inference.openai.messages import (
    MAX_MESSAGES,
    MAX_TOOLS,
    FunctionDefinition,
    Message,
    NamedTool,
    Text,
)
from stoker.inference.openai.response_formats import ResponseFormat
from stoker.inference.openai.sampling import MAX_TEXT_CHARS, MAX_TOKENS, Name, StopString
from stoker.inference.openai.unions import attribute, one_of
from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.registry.deployments.schemas import ModelId
from stoker.store.tables.agents import RunStatus

DEFAULT_STEPS = 16
MAX_STEPS = 1000
MAX_OUTPUTS = MAX_TOOLS
MAX_CONFIG_CREDITS = 1_000_000_000
HIDDEN = "***"
"""Placeholder for secrets in responses."""
_HEADER = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$"
_OURS = {
    "accept",
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
    "upgrade",
}

HeaderName = Annotated[str, Field(max_length=128, pattern=_HEADER)]
HeaderValue = Annotated[str, Field(min_length=1, max_length=8192, pattern=r"^[\x20-\x7e]+$")]
Label = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,32}$")]


class AgentFunctionTool(RequestModel):
    """A function that the run's owner executes. The run waits for its output."""

    type: Literal["function"]
    function: FunctionDefinition

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, data: Any) -> Any:
        """Accepts the flat form of OpenAI's newer APIs, too."""
        if not isinstance(data, dict) or "function" in data or "name" not in data:
            return cast("Any", data)
        fields = cast("dict[str, Any]", data)
        inner = {name: fields[name] for name in fields if name != "type"}
        return {"type": fields.get("type"), "function": inner}


class McpTool(RequestModel):
    """All or some tools of a server of the Model Context Protocol."""

    type: Literal["mcp"]
    server_label: Label = Field(description="Label of the tool server, unique in the agent.")
    server_url: str = Field(
        min_length=1, max_length=2048, description="URL of the server's streamable HTTP endpoint."
    )
    headers: dict[HeaderName, HeaderValue] = Field(
        default={},
        max_length=32,
        description=f"Sent with every request, kept encrypted, and shown as `{HIDDEN}`.",
    )
    allowed_tools: list[Annotated[str, Field(min_length=1, max_length=256)]] | None = Field(
        default=None, max_length=MAX_TOOLS, description="Default: all."
    )

    @field_validator("headers")
    @classmethod
    def _free(cls, value: dict[str, str]) -> dict[str, str]:
        for name, content in value.items():
            if name.lower() in _OURS:
                raise ValueError(f"'{name}' is reserved by the protocol")
            if content == HIDDEN:
                raise ValueError(f"'{name}' needs its real value: '{HIDDEN}' is only a placeholder")
        return value


def _kind(value: Any) -> Any:
    return attribute(value, "type")


Tool = Annotated[
    Annotated[AgentFunctionTool, Tag("<function>")] | Annotated[McpTool, Tag("<mcp>")],
    one_of("function", "mcp", must_be="a tool of the type 'function' or 'mcp'", kind=_kind),
]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class AgentConfig(RequestModel):
    """Options of the model's chat completions, and limits of a run."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=1_000_000)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: (
        Annotated[
            list[StopString],
            Field(max_length=16),
            BeforeValidator(_listed, json_schema_input_type=StopString | list[StopString]),
        ]
        | None
    ) = None
    max_tokens: int | None = Field(
        default=None, ge=1, le=MAX_TOKENS, description="Maximum number of tokens per step."
    )
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        default=None, description="Tool choice of the first step. Later steps choose freely."
    )
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    response_format: ResponseFormat | None = None
    max_total_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**53,
        description="Maximum number of tokens in all steps' prompts and answers together.",
    )
    timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=30 * 24 * 3600,
        description="Maximum working time, seconds. Waiting for tool outputs does not count.",
    )
    max_credits: float | None = Field(
        default=None,
        gt=0,
        le=MAX_CONFIG_CREDITS,
        description="Maximum cost of the model's memory during the run's steps.",
    )


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
AgentName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Instructions = Annotated[
    # PostgreSQL cannot store NUL.
    Text,
    Field(pattern=r"^[^\x00]*$", description="A system message before every input."),
]
Steps = Annotated[
    int, Field(ge=1, le=MAX_STEPS, description="Maximum number of model calls per run.")
]


class AgentCreate(RequestModel):
    name: AgentName
    model: ModelId
    instructions: Instructions | None = None
    tools: Tools = []
    max_steps: Steps = DEFAULT_STEPS
    config: AgentConfig = AgentConfig()


class AgentUpdate(RequestModel):
    """Changes of an agent. Omitted fields keep their values; present fields replace them."""

    name: AgentName | SkipJsonSchema[None] = None
    model: ModelId | SkipJsonSchema[None] = None
    instructions: Instructions | None = Field(
        default=None, description="Null removes the instructions."
    )
    tools: Tools | SkipJsonSchema[None] = None
    max_steps: Steps | SkipJsonSchema[None] = None
    config: AgentConfig | SkipJsonSchema[None] = None

    @model_validator(mode="after")
    def _given(self) -> Self:
        for name in self.model_fields_set - {"instructions"}:
            if getattr(self, name) is None:
                raise ValueError(f"'{name}' cannot be null: leave it out to keep it")
        return self


class Agent(ResponseModel):
    id: str
    object: Literal["agent"] = "agent"
    name: str
    model: str
    instructions: str | None
    tools: list[dict[str, Any]]
    max_steps: int
    config: dict[str, Any]
    created_at: UtcString
    updated_at: UtcString


class RunCreate(RequestModel):
    takes_nul = True
    input: Annotated[
        Annotated[Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)], Tag("<str>")]
        | Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES), Tag("<list>")],
        one_of(must_be="a text or a list of messages"),
    ] = Field(
        description=(
            "Task for the agent: a text, or a conversation in the format of chat completions."
        )
    )

    @field_validator("input", mode="wrap")
    @classmethod
    def _can_be_stored(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        # Runs after the messages' own errors, which name the field.
        validated = handler(value)
        check_storable(value, takes_nul=True)
        return validated


class RunError(BaseModel):
    code: str
    message: str


class RunUsage(BaseModel):
    steps: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    seconds: float = Field(description="Working time in steps and tools.")
    microcredits: int = Field(
        description=(
            "Cost of one replica for the duration of the steps, rounded up. Bills are by "
            "memory held, which concurrent calls share."
        )
    )


class RequiredFunction(BaseModel):
    name: str
    arguments: str = Field(description="JSON.")


class RequiredCall(BaseModel):
    id: str
    type: Literal["function"]
    function: RequiredFunction


class RequiredAction(BaseModel):
    type: Literal["submit_tool_outputs"] = "submit_tool_outputs"
    tool_calls: list[RequiredCall]


class Run(ResponseModel):
    id: str
    object: Literal["agent.run"] = "agent.run"
    agent_id: str
    model: str
    status: RunStatus
    input: str | list[dict[str, Any]]
    output: str | None = Field(description="The answer, once the run is completed.")
    finish_reason: str | None = Field(
        description="Finish reason of the last response: `length` if it was cut off."
    )
    required_action: RequiredAction | None
    usage: RunUsage
    error: RunError | None
    created_at: UtcString
    completed_at: UtcString | None = Field(
        description="Time when the run ended, with or without success."
    )


class RunState(ResponseModel):
    """A run without its messages."""

    id: str
    object: Literal["agent.run"] = "agent.run"
    agent_id: str
    model: str
    status: RunStatus
    finish_reason: str | None
    usage: RunUsage
    error: RunError | None
    created_at: UtcString
    completed_at: UtcString | None


class ToolOutput(RequestModel):
    takes_nul = True
    tool_call_id: Name
    output: Annotated[str, Field(max_length=MAX_TEXT_CHARS)]


class ToolOutputs(RequestModel):
    tool_outputs: Annotated[list[ToolOutput], Field(min_length=1, max_length=MAX_OUTPUTS)] = Field(
        description="Outputs of all or some of the calls that the run waits for."
    )


class RunEvent(ResponseModel):
    id: str = Field(description="Sequence number, for `after` and `Last-Event-ID`.")
    object: Literal["agent.run.event"] = "agent.run.event"
    run_id: str
    sequence: int
    type: str
    data: dict[str, Any]
    created_at: UtcString


class DeletedRun(ResponseModel):
    id: str
    object: Literal["agent.run.deleted"] = "agent.run.deleted"
    deleted: Literal[True] = True
