"""Facts about an engine without importing it. `catalogue` has a record of each engine.

Other packages create such records, too, so this module imports nothing that searches for them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

from pydantic import BaseModel

from stoker.models.stages.kinds import ModelKind

AUTO = "auto"
"""Value of `engine` with which the server chooses the first engine that serves the pipeline."""
Device = Literal["cpu", "cuda"]
DTYPES = ("float32", "bfloat16", "float16")
MAX_DEVICES = 64
"""Maximum number of GPUs of a replica."""
TF32 = "tf32"
"""The `dtype` for float32 weights whose products a GPU computes in TensorFloat-32, with ten bits of
mantissa. A CPU computes them in float32.
"""
TORCH_DTYPES = ("float32", TF32, "bfloat16", "float16")
"""Precisions in which torch computes models."""
INT8 = "int8"
"""The `dtype` for weights and activations in eight bits. Only conversions support it."""


@cache
def _is_importable(module: str) -> bool:
    return find_spec(module) is not None


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Package that an engine, or some of its options or dtypes, needs in the server's own
    environment.
    """

    module: str
    title: str
    install: str
    """Command that installs the package."""

    @property
    def is_installed(self) -> bool:
        return _is_importable(self.module)


@dataclass(frozen=True, kw_only=True)
class Narrower:
    """Value of an option that only some of the models with the option accept."""

    option: str
    value: Any
    kinds: Collection[ModelKind]
    instead: Any
    """Value that the other models may choose."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that an engine accepts in a deployment's `config`."""

    model: type[BaseModel]
    """Model with the options as fields. Each is None if it is not set."""
    kinds: Collection[ModelKind]
    """Kinds of models that have the options."""
    purpose: str
    """Purpose of such models, as in "text generation", for the error if others set the options."""
    narrower: Sequence[Narrower] = ()
    needs: Needs | None = None
    devices: Sequence[Device] = ("cpu", "cuda")
    """Devices on which the options have an effect."""

    def narrowed(self, option: str, value: Any, kind: ModelKind) -> Narrower | None:
        """Returns the restriction that excludes an option's value for models of a kind. None if it
        is accepted.
        """
        meant = (
            narrower
            for narrower in self.narrower
            if (narrower.option, narrower.value) == (option, value)
        )
        return next((narrower for narrower in meant if kind not in narrower.kinds), None)


@dataclass(frozen=True, kw_only=True)
class OwnPython:
    """Separate Python environment of an engine that needs other versions than the server."""

    make: str
    """Dotted name of the function that creates it, as `environments.Make`."""
    python_setting: str | None = None
    """Setting that names the operator's own interpreter instead."""
    gpu_share_setting: str | None = None
    """Setting for the share of a GPU's memory that a replica may use. None means all of it."""


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """Facts about an engine that are known without importing it."""

    name: str
    """Value of the API's field `engine`."""
    title: str
    """Name as its makers write it."""
    meaning: str
    """Text about the engine in the API's description of `engine`."""
    serves: Mapping[ModelKind, Sequence[str]]
    """Maps the kinds of models that it runs to their `dtype`s, in addition to `auto`."""
    pipelines: Collection[str] = ()
    """Pipelines that it serves. Empty means all with models of these kinds."""
    purpose: str = ""
    """Purpose, as in "generates text", for the error if it is requested for something else."""
    devices: Sequence[Device] = ("cpu", "cuda")
    is_torch: bool = False
    """True if it computes with torch in the replica's process. The replica then checks first that
    torch can use its GPU.
    """
    converts: bool = False
    """True if it runs converted models. Until the conversion, and under `auto`, torch runs them."""
    options: Options | None = None
    generation: type[BaseModel] | None = None
    """Further options in the `config` of a language model. Several engines may accept the same
    ones. Each field is None if it is not set.
    """
    dtype_needs: Mapping[str, Needs] = field(default_factory=dict[str, Needs])
    """Maps a `dtype` to the package that it needs."""
    package: Needs | None = None
    """Package of the engine in the server's environment. None if the server always has it."""
    environment: OwnPython | None = None
    """Separate Python environment. None means the server's own."""
    devices_option: str = ""
    """Name of the option with the number of GPUs of a replica. The replica gets exactly that many,
    named `cuda:0` and on. Empty means one GPU.
    """
    for_stages: str = ""
    """Dotted name of the loader for models with stages. It is called with the `ReplicaSpec` and
    returns an `engines.interface.Engine`.
    """
    for_language: str = ""
    """Dotted name of the loader for language models. It is called with the `ReplicaSpec` and a
    `Progress`, and returns a `llm.engines.interface.LanguageEngine`.
    """
    preloads: Sequence[str] = ()
    """Modules that are imported once, before replicas are forked. They must not start threads."""
    probe: str = ""
    """Program that prints the version of its library, or fails. `stoker doctor` runs it."""

    @property
    def is_missing(self) -> bool:
        """True if the engine's package is not in the server's environment."""
        return self.package is not None and not self.package.is_installed

    def runs(self, pipeline: str, kind: ModelKind) -> bool:
        return kind in self.serves and (not self.pipelines or pipeline in self.pipelines)
