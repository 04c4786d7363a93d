# `python -m tools.client_api` writes this file.
"""Parameters of deployments, from the OpenAPI document."""

from collections.abc import Mapping
from typing import Literal, Required, TypeAlias, TypedDict

from .common import ConfigParams

Readiness: TypeAlias = Literal["cold", "warm", "hot"]


class ReplicasParams(TypedDict, total=False):
    max: int
    """Replicas under load."""
    min: int
    """Replicas kept loaded."""


class DeploymentCreateParams(TypedDict, total=False):
    adapter_of: str | None
    """For an adapter artifact: model id of the deployment whose replicas, pipeline,
    readiness and engine it shares. If they cannot be shared, the adapter is merged and
    gets its own replicas.
    """
    artifact_id: str | None
    """A ready artifact."""
    config: ConfigParams
    device: str
    """Device that runs the model."""
    dtype: Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"]
    """Precision of the computation. `auto`: on a GPU, half precision if the model's answers
    to examples agree with float32. `tf32`: float32 with rounded products, only on GPUs.
    `int8`: weights and activations, on OpenVINO, except for language models, image
    generators and models with their own loop. Until the model is converted, it runs in
    float32.
    """
    engine: Literal["auto", "openvino", "torch", "vllm", "diffusers"]
    """`auto`: torch at first; on a CPU, OpenVINO once the model has been in use for a while,
    was converted and gave correct answers on this machine; on a GPU, vLLM for text
    generation if it is installed; `openvino`: converts at once, and `failed` if that is
    not possible; `torch`: always torch. A worker reports the engine that runs it. `vllm`:
    text generation on vLLM, if the server's operator has installed it. `diffusers`:
    images and video, which no other engine runs.
    """
    idle_timeout_s: float
    """Idle time after which a `cold` deployment is unloaded, seconds."""
    keep_s: float
    """Time for which a replaced version stays loaded without calls, seconds, if memory
    allows.
    """
    max_queue: int
    """Maximum number of requests that wait or run. More are rejected with 429."""
    model: Required[str]
    """Your own id for the model, unique in the account."""
    pipeline: str | None
    """Task of the model by its name on the hub. Default: the artifact's."""
    readiness: Readiness
    replicas: ReplicasParams
    source: str | None
    """Model folder, instead of an artifact. It must be below a folder that the operator
    allows.
    """


class ReplicasUpdateParams(TypedDict, total=False):
    max: int | None
    """Replicas under load."""
    min: int | None
    """Replicas kept loaded."""


class DeploymentUpdateParams(TypedDict, total=False):
    """Changes of a deployment. Omitted or null fields stay unchanged."""

    config: ConfigParams | None
    """Omitted options stay unchanged. Null resets an option."""
    device: str | None
    dtype: Literal["auto", "float32", "tf32", "bfloat16", "float16", "int8"] | None
    engine: Literal["auto", "openvino", "torch", "vllm", "diffusers"] | None
    idle_timeout_s: float | None
    keep_s: float | None
    max_queue: int | None
    readiness: Readiness | None
    replicas: ReplicasUpdateParams | None


class RollbackParams(TypedDict, total=False):
    version: str | None
    """Default: the previous live version."""


Status: TypeAlias = Literal["starting", "ready", "asleep", "idle", "stopping", "stopped", "failed"]


class TrafficParams(TypedDict, total=False):
    examples: bool
    """True keeps the last ten calls that a mirror answers differently, encrypted. The
    comparison shows them.
    """
    mirror: Mapping[str, int]
    """Versions that get copies of this percentage of the calls while the machine is idle.
    The copies' answers are compared and then dropped.
    """
    sticky: str
    """Value that keeps calls on the same version. `key`: the API key. `user`: the request's
    `user`. `header:<name>`: that header's value. `none`: the version is chosen at random.
    """
    weights: Required[Mapping[str, int]]
    """Share of the calls for each version, in whole percents that add up to 100."""
