"""Every engine by name, with the models that it runs, its requirements and its loaders.

A new engine is a module and a record in `OURS`. Another package adds one by an entry point of the
group `stoker.engines`; see docs/guide/plugins.md. The gateway and the command line import this
module, so it imports nothing heavy: records name their classes by dotted names.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import Field

from stoker.base import plugins
from stoker.base.extras import install_command, install_package_command
from stoker.base.plugins import PluginError
from stoker.base.strict_json import Strict
from stoker.models.engines.record import (
    AUTO,
    DTYPES,
    INT8,
    MAX_DEVICES,
    TORCH_DTYPES,
    EngineRecord,
    Narrower,
    Needs,
    Options,
    OwnPython,
)
from stoker.models.stages.kinds import LANGUAGE, ModelKind
from stoker.wire.conversions import WeightFormat
from stoker.wire.protocol import Speculation


class OpenVinoOptions(Strict):
    weight_format: WeightFormat | None = Field(
        default=None,
        description="How a model's weights are stored on OpenVINO: rounded to eight bits, or "
        "for a language model to eight or four bits. Rounded weights take less "
        "memory and time, and change the model's answers. Until the model is "
        "converted, or if it cannot be converted, it runs with its original "
        "weights.",
    )


class SchedulingOptions(Strict):
    speculation: Speculation | None = Field(
        default=None,
        description="How a language model on torch or OpenVINO writes several tokens in one "
        "pass. `prompt_lookup`, the default: guesses the next tokens from the text "
        "so far, while that is faster. `off`: one token at a time.",
    )


def _of_server(name: str, title: str) -> Needs:
    return Needs(module=name, title=title, install=install_package_command(name))


class VllmOptions(Strict):
    devices: int | None = Field(
        default=None,
        ge=1,
        le=MAX_DEVICES,
        description="Number of GPUs that a replica on vLLM is spread over (tensor parallelism).",
    )
    quantization: Literal["fp8"] | None = Field(
        default=None,
        description="`fp8`: vLLM rounds the weights to eight bits when it loads them on a GPU. "
        "That halves their memory and changes the answers.",
    )
    kv_cache_dtype: Literal["fp8"] | None = Field(
        default=None,
        description="`fp8`: vLLM keeps keys and values in eight bits on a GPU, so that twice as "
        "many tokens have room. That changes the answers.",
    )


_NNCF = Needs(module="nncf", title="NNCF", install=install_command("compression"))

OURS = (
    EngineRecord(
        name="openvino",
        title="OpenVINO",
        meaning="`openvino`: converts at once, and `failed` if that is not possible;",
        serves={
            ModelKind.PASSES: ("float32", "bfloat16", INT8),
            ModelKind.TEXT: ("float32", "bfloat16"),
            ModelKind.VISION: ("float32",),
        },
        devices=("cpu",),
        is_torch=True,
        converts=True,
        options=Options(
            model=OpenVinoOptions,
            kinds=(ModelKind.TEXT, ModelKind.PASSES),
            purpose="models that are converted",
            narrower=(
                Narrower(
                    option="weight_format", value="int4", kinds=(ModelKind.TEXT,), instead="int8"
                ),
            ),
            needs=_NNCF,
        ),
        generation=SchedulingOptions,
        dtype_needs={INT8: _NNCF},
        package=_of_server("openvino", "OpenVINO"),
        for_stages="stoker.models.engines.openvino:OpenVinoEngine.of",
        for_language="stoker.models.llm.loading:ScheduledEngine",
    ),
    EngineRecord(
        name="torch",
        title="torch",
        meaning="`torch`: always torch. A worker reports the engine that runs it.",
        serves=dict.fromkeys(
            (ModelKind.PASSES, ModelKind.LOOPS, ModelKind.TEXT, ModelKind.VISION),
            TORCH_DTYPES,
        ),
        is_torch=True,
        generation=SchedulingOptions,
        for_stages="stoker.models.engines.torch:TorchEngine.of",
        for_language="stoker.models.llm.loading:ScheduledEngine",
        preloads=("stoker.models.engines.torch", "stoker.models.llm.loading"),
        probe="import torch; print(torch.__version__)",
    ),
    EngineRecord(
        name="vllm",
        title="vLLM",
        meaning="`vllm`: text generation on vLLM, if the server's operator has installed it.",
        serves={ModelKind.TEXT: DTYPES},
        purpose="generates text",
        environment=OwnPython(
            make="stoker.models.llm.engines.vllm.recipe:make",
            python_setting="vllm_python",
            gpu_share_setting="vllm_gpu_share",
        ),
        options=Options(
            model=VllmOptions, kinds=(ModelKind.TEXT,), purpose="text generation", devices=("cuda",)
        ),
        devices_option="devices",
        for_language="stoker.models.llm.engines.vllm.model:VllmEngine",
        preloads=("stoker.models.llm.engines.vllm.model",),
    ),
    EngineRecord(
        name="diffusers",
        title="diffusers",
        meaning="`diffusers`: images and video, which no other engine runs.",
        serves={ModelKind.DRAWING: TORCH_DTYPES},
        is_torch=True,
        package=_of_server("diffusers", "diffusers"),
        for_stages="stoker.models.engines.diffusers:DiffusersEngine.of",
    ),
)
"""The built-in engines, preferred ones first."""


def _by_name(records: Iterable[EngineRecord]) -> Mapping[str, EngineRecord]:
    by_name: dict[str, EngineRecord] = {}
    for record in records:
        if record.name in (AUTO, *by_name):
            raise PluginError(f"two engines are called '{record.name}'")
        _check_loaders(record)
        by_name[record.name] = record
    _check_options(by_name.values())
    return by_name


def _check_loaders(record: EngineRecord) -> None:
    kinds = set(record.serves)
    if (kinds & LANGUAGE and not record.for_language) or (
        kinds - LANGUAGE and not record.for_stages
    ):
        raise PluginError(f"the engine '{record.name}' does not name its loader")


def _check_options(records: Iterable[EngineRecord]) -> None:
    owners: dict[str, str] = {}
    for record in records:
        for option in record.options.model.model_fields if record.options else ():
            if option in owners:
                raise PluginError(
                    f"the engines '{owners[option]}' and '{record.name}' both have the option "
                    f"'{option}'"
                )
            owners[option] = record.name


ENGINES = _by_name([*OURS, *plugins.added("stoker.engines", EngineRecord)])


class UnknownEngineError(LookupError):
    """The server has no engine of this name, or none for this pipeline. The message says which."""


def serving(pipeline: str, kind: ModelKind) -> Sequence[str]:
    """Returns the installed engines that can run a pipeline's models of a kind, the preferred one
    first. Engines with a separate environment are listed even if that is missing.
    """
    records = [record for record in ENGINES.values() if record.runs(pipeline, kind)]
    return [record.name for record in records if not record.is_missing]


def served_dtypes(pipeline: str, kind: ModelKind) -> Collection[str]:
    """Returns the `dtype`s that the installed engines support for a pipeline's models."""
    return {dtype for name in serving(pipeline, kind) for dtype in ENGINES[name].serves[kind]}


def chosen(engine: str, pipeline: str, kind: ModelKind) -> EngineRecord:
    """Returns the engine that a deployment's `engine` means for models of a kind.

    Raises `UnknownEngineError`.
    """
    name = engine if engine != AUTO else next(iter(serving(pipeline, kind)), AUTO)
    if name not in ENGINES or ENGINES[name].is_missing:
        message = f"No engine here serves '{pipeline}'" if name == AUTO else missing(name, pipeline)
        raise UnknownEngineError(message)
    return ENGINES[name]


def missing(engine: str, pipeline: str) -> str:
    """Returns the message for a deployment with an engine that is removed or does not serve it
    now.
    """
    record = ENGINES.get(engine)
    if record and record.package and record.is_missing:
        return not_installed(record.name, record.package)
    return f"This server no longer has an engine '{engine}' that serves '{pipeline}'."


def not_installed(engine: str, package: Needs) -> str:
    """Returns the message for a request for an engine without its package."""
    return (
        f"The engine '{engine}' is not installed on this server. Its operator installs "
        f"{package.title} ('stoker engines install {engine}' shows the command) and restarts the "
        "server."
    )


def may_convert(engine: str) -> bool:
    """True if a deployment with this `engine` continues with its model once it is converted."""
    return any(
        record.converts and not record.is_missing and engine in (AUTO, record.name)
        for record in ENGINES.values()
    )


def is_conversion(engine: str) -> bool:
    """True if `engine` requests a converted model, rather than using one only if that is better."""
    return engine in ENGINES and ENGINES[engine].converts


def loaded(name: str) -> Any:
    """Imports and returns the object that a record's dotted name refers to."""
    return resolve_name(name)
