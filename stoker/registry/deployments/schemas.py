from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from stoker.models.engines.catalogue import ENGINES
from stoker.models.engines.record import AUTO
from stoker.platform.web.schemas import RequestModel, ResponseModel, UtcString
from stoker.runtime.observed import Reason, Status
from stoker.runtime.specification import Readiness
from stoker.store.db import NO_CONTROL
from stoker.store.tables.deployments import KEEP_S, Desired

# A model id has one or more path segments: ids such as `team/ner` are as common as `ner`.
ModelId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*$",
        description="Your own id for the model, unique in the account.",
        examples=["ner", "team/sentiment"],
    ),
]
_AUTO = (
    "`auto`: torch at first; on a CPU, OpenVINO once the model has been in use "
    "for a while, was converted and gave correct answers on this machine; on a GPU, vLLM for text "
    "generation if it is installed;"
)
# The catalogue's content is known at import time, but not to a type checker.
_EngineName = str if TYPE_CHECKING else Literal[(AUTO, *ENGINES)]
Engine = Annotated[
    _EngineName,
    Field(description=" ".join((_AUTO, *(record.meaning for record in ENGINES.values())))),
]
Device = Annotated[
    str,
    Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,2})?)$", description="Device that runs the model."),
]
Dtype = Annotated[
    Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"],
    Field(
        description="Precision of the computation. `auto`: on a GPU, half precision if the model's "
        "answers to examples agree with float32. `tf32`: float32 with rounded products, only on "
        "GPUs. `int8`: weights and activations, on "
        "OpenVINO, except for language models, image generators and models with "
        "their own loop. Until the model is converted, it runs in float32."
    ),
]
IdleTimeout = Annotated[
    float,
    Field(
        ge=1,
        le=7 * 24 * 3600,
        description="Idle time after which a `cold` deployment is unloaded, seconds.",
    ),
]
MaxQueue = Annotated[
    int,
    Field(
        ge=1,
        le=100_000,
        description="Maximum number of requests that wait or run. More are rejected with 429.",
    ),
]


KeepS = Annotated[
    float,
    Field(
        ge=0,
        le=24 * 3600,
        description=(
            "Time for which a replaced version stays loaded without calls, seconds, if "
            "memory allows."
        ),
    ),
]


class Replicas(RequestModel):
    min: int = Field(default=0, ge=0, le=64, description="Replicas kept loaded.")
    max: int = Field(default=1, ge=1, le=64, description="Replicas under load.")

    @model_validator(mode="after")
    def _ordered(self) -> "Replicas":
        if self.min > self.max:
            raise ValueError("min must not be greater than max")
        return self


if TYPE_CHECKING:

    class Config(RequestModel):
        """Engine options. Unknown options are refused."""

else:
    Config = create_model(
        "Config",
        __base__=(
            RequestModel,
            *(record.options.model for record in ENGINES.values() if record.options),
            *{record.generation: None for record in ENGINES.values() if record.generation},
        ),
        __doc__="Engine options; unknown ones are refused.",
        __module__=__name__,
    )


class DeploymentCreate(RequestModel):
    model: ModelId
    artifact_id: str | None = Field(
        default=None, max_length=64, pattern=NO_CONTROL, description="A ready artifact."
    )
    source: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description=(
            "Model folder, instead of an artifact. It must be below a folder that the "
            "operator allows."
        ),
    )
    adapter_of: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description=(
            "For an adapter artifact: model id of the deployment whose replicas, "
            "pipeline, readiness and engine it shares. If they cannot be shared, the "
            "adapter is merged and gets its own replicas."
        ),
    )
    pipeline: str | None = Field(
        default=None,
        max_length=64,
        description="Task of the model by its name on the hub. Default: the artifact's.",
    )
    readiness: Readiness = Readiness.COLD
    engine: Engine = AUTO
    device: Device = "auto"
    dtype: Dtype = "auto"
    replicas: Replicas = Replicas()
    idle_timeout_s: IdleTimeout = 300
    max_queue: MaxQueue = 256
    keep_s: KeepS = KEEP_S
    config: Config = Config()

    @model_validator(mode="after")
    def _one_source(self) -> "DeploymentCreate":
        if (self.artifact_id is None) == (self.source is None):
            raise ValueError("give either artifact_id or source")
        return self


class ReplicasUpdate(RequestModel):
    min: int | None = Field(default=None, ge=0, le=64, description="Replicas kept loaded.")
    max: int | None = Field(default=None, ge=1, le=64, description="Replicas under load.")


class DeploymentUpdate(RequestModel):
    """Changes of a deployment. Omitted or null fields stay unchanged."""

    readiness: Readiness | None = None
    engine: Engine | None = None
    device: Device | None = None
    dtype: Dtype | None = None
    replicas: ReplicasUpdate | None = None
    idle_timeout_s: IdleTimeout | None = None
    max_queue: MaxQueue | None = None
    keep_s: KeepS | None = None
    config: Config | None = Field(
        default=None,
        description="Omitted options stay unchanged. Null resets an option.",
    )


Percent = Annotated[int, Field(ge=0, le=100)]
VersionId = Annotated[str, Field(max_length=64, pattern=r"^ver_[0-9a-z]+$")]


class Traffic(RequestModel):
    weights: dict[VersionId, Percent] = Field(
        min_length=1,
        max_length=16,
        description=("Share of the calls for each version, in whole percents that add up to 100."),
    )
    sticky: str = Field(
        "none",
        max_length=80,
        pattern=r"^(none|key|user|header:[A-Za-z0-9-]{1,64})$",
        description="Value that keeps calls on the same version. `key`: the API key. `user`: "
        "the request's `user`. `header:<name>`: that header's value. `none`: the "
        "version is chosen at random.",
    )
    mirror: dict[VersionId, Percent] = Field(
        default_factory=dict,
        max_length=4,
        description=(
            "Versions that get copies of this percentage of the calls while the machine "
            "is idle. The copies' answers are compared and then dropped."
        ),
    )
    examples: bool = Field(
        False,
        description="True keeps the last ten calls that a mirror answers differently, "
        "encrypted. The comparison shows them.",
    )

    @model_validator(mode="after")
    def _whole(self) -> "Traffic":
        if sum(self.weights.values()) != 100:
            raise ValueError("weights have to add up to 100")
        return self


class Worker(ResponseModel):
    id: str
    status: Status
    pid: int | None
    outstanding: int = Field(description="Requests sent and not yet answered.")
    memory_bytes: int | None = Field(description="Proportional set size, bytes.")
    progress: float = Field(description="Progress of loading, 0 to 1.")
    engine: str = Field(
        description="Engine that runs the model now. Empty before the model is loaded."
    )
    cache_usage: float | None = Field(
        description="Share of the KV cache in use, 0 to 1. Null if the model has no KV cache."
    )
    device: str = Field(
        description="Device of the loaded weights: `cpu`, or `cuda:N` by the machine's numbers. "
        "Empty before the model is loaded, or if unknown."
    )
    device_name: str = Field(description="Name of the GPU. Empty on the CPU.")
    device_bytes: int | None = Field(
        description="Measured GPU memory, of the GPU with the largest use. Null if unknown."
    )
    device_held_bytes: int = Field(description="GPU memory that the replica claims.")
    recorded_passes: int | None = Field(
        description="Number of recorded passes (CUDA graphs), which take less time. Null if "
        "passes are not recorded on the model's device."
    )
    recording_problem: str = Field(
        description="Reason that no more passes are recorded. Empty if they are."
    )


class Memory(ResponseModel):
    """Memory that one replica needs."""

    bytes: int
    is_measured: bool = Field(description="False if estimated from the headers of the weights.")


class Notice(ResponseModel):
    """A fact about the model that callers should know."""

    code: str = Field(description="Stable; see the guide.")
    message: str


class Adapter(ResponseModel):
    """Combination of an adapter with its base."""

    of: str = Field(description="Model id of the base.")
    sharing: Literal["shared", "merged"] = Field(
        description=(
            "`shared`: the base's replicas apply the adapter per call. `merged`: the "
            "adapter has replicas of its own, with merged weights."
        )
    )
    reason: str = Field(description="Reason for the merge. Empty if the adapter is not merged.")


class Deployment(ResponseModel):
    id: str
    object: Literal["deployment"] = "deployment"
    model: str
    pipeline: str
    artifact_id: str | None
    source: str | None
    adapter_of: str | None = Field(description="For an adapter: model id of its base deployment.")
    adapter: Adapter | None = Field(description="Null if the deployment is not an adapter.")
    readiness: Readiness | SkipJsonSchema[str]
    engine: str
    device: str
    dtype: str
    replicas: Replicas
    idle_timeout_s: float
    max_queue: int
    keep_s: float
    config: dict[str, Any]
    version_id: str = Field(
        description="Live version, whose artifact, engine and other options this object shows."
    )
    traffic: Traffic | None = Field(description="Null if the live version receives all calls.")
    desired: Desired = Field(description="State that the owner requested.")
    status: Status = Field(description="Observed status.")
    reason: Reason
    message: str
    memory: Memory
    device_problem: str = Field(
        description="Reason that the model runs on the CPU although the driver lists a GPU. Empty "
        "if it does not."
    )
    notices: list[Notice] = Field(
        description=(
            "Notices from the live version's last load, such as fields of the model's "
            "files that have no effect. Empty if there are none, or if it was not loaded "
            "yet."
        )
    )
    workers: list[Worker]
    created_at: UtcString
    updated_at: UtcString


class Event(ResponseModel):
    id: str
    object: Literal["deployment.event"] = "deployment.event"
    version_id: str | None = Field(description="Of which version.")
    status: Status
    reason: Reason
    message: str
    created_at: UtcString


class LogLines(ResponseModel):
    object: Literal["list"] = "list"
    data: list[str] = Field(description="The last lines, oldest first.")
