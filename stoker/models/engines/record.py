"""What is to be known of an engine without importing it; `catalogue` has a record of each.

Other packages make such records too, so nothing is imported here that looks for those.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from stoker.models.stages.kinds import ModelKind

AUTO = "auto"
"""The server chooses: of the engines that serve a pipeline, the first."""
Device = Literal["cpu", "cuda"]
DTYPES = ("float32", "bfloat16", "float16")
INT8 = "int8"
"""The `dtype` of who wants weights and activations in eight bits: of conversions alone."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """A package that some of an engine's options or types need, in our own environment."""

    module: str
    title: str
    install: str
    """The command that brings it."""


@dataclass(frozen=True, kw_only=True)
class Narrower:
    """A value of an option that not all models take which have the option."""

    option: str
    value: Any
    kinds: Collection[ModelKind]
    instead: Any
    """What the others may choose."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an engine takes in a deployment's `config`."""

    model: type[BaseModel]
    """Its fields are the options; each is None where it is not given."""
    kinds: Collection[ModelKind]
    """Only models of these kinds have them."""
    purpose: str
    """What such models do, as in "text generation": for who gives them to others."""
    narrower: Sequence[Narrower] = ()
    needs: Needs | None = None

    def narrowed(self, option: str, value: Any, kind: ModelKind) -> Narrower | None:
        """Why models of a kind that has the option do not take a value of it; None: they do."""
        meant = (one for one in self.narrower if (one.option, one.value) == (option, value))
        return next((one for one in meant if kind not in one.kinds), None)


@dataclass(frozen=True, kw_only=True)
class OwnPython:
    """A Python environment that an engine has for itself, as it wants other versions than we."""

    make: str
    """Makes it: the dotted name of a function as `environments.Make`."""
    python_setting: str | None = None
    """The setting that names an interpreter of the operator's own instead."""
    gpu_share_setting: str | None = None
    """The setting that says which part of a GPU's memory a replica may take; None: all of it."""


@dataclass(frozen=True, kw_only=True)
class EngineRecord:
    """What is to be known of an engine without importing it."""

    name: str
    """Of the API's field `engine`."""
    title: str
    """As its makers write it."""
    meaning: str
    """What the API's description of `engine` says of it."""
    serves: Mapping[ModelKind, Sequence[str]]
    """The kinds of models that it runs → the `dtype`s that it runs them in, beside `auto`."""
    pipelines: Collection[str] = ()
    """The pipelines that it serves; none: all whose models are of these kinds."""
    purpose: str = ""
    """What it does, as in "generates text": for who wants it for something else."""
    devices: Sequence[Device] = ("cpu", "cuda")
    converts: bool = False
    """Whether it runs models as they were converted; until then, and under `auto`, torch does."""
    options: Options | None = None
    generation: type[BaseModel] | None = None
    """What it takes in the `config` of a language model beside these. Several engines may take the
    same; each field is None where it is not given."""
    dtype_needs: Mapping[str, Needs] = field(default_factory=dict[str, Needs])
    """`dtype` → what it needs."""
    environment: OwnPython | None = None
    """None: it lives in ours."""
    devices_option: str = ""
    """The one of its `options` that says over how many GPUs a replica is spread, which then gets so
    many, and no others: `cuda:0` and on. None: it takes one."""
    for_stages: str = ""
    """Loads it where models have stages: the dotted name of what is called with the `ReplicaSpec`
    and returns an `engines.interface.Engine`."""
    for_language: str = ""
    """Loads a language model: the dotted name of what is called with the `ReplicaSpec` and a
    `Progress`, and returns a `llm.engines.interface.LanguageEngine`."""
    preloads: Sequence[str] = ()
    """Modules that are imported once, before replicas are forked: they must start no threads."""
    probe: str = ""
    """A program that prints the version of its library, or fails: `stoker doctor` runs it."""

    def runs(self, pipeline: str, kind: ModelKind) -> bool:
        return kind in self.serves and (not self.pipelines or pipeline in self.pipelines)
