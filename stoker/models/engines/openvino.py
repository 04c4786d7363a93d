"""The OpenVINO engine: torch until the model was converted, then OpenVINO where a batch fits.

On a CPU it runs encoders faster than torch, short inputs above all. `conversion` makes what is
adopted here, `trial` has compared it with torch.
"""

import functools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from stoker.models.adapters import graph
from stoker.models.adapters.stored import StoredWeights
from stoker.models.engines.probing import tensors
from stoker.models.engines.record import INT8
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample, Stages, Steps
from stoker.wire.protocol import VERDICT, Execution

if TYPE_CHECKING:
    from openvino import CompiledModel

    from stoker.models.adapters.applying import Adapter

IN_STEPS = "steps"
"""The `call` of the form of a model that runs in many steps."""


@dataclass(frozen=True)
class Form:
    """A converted way of calling the model: what `Stages.run` does for one `call`."""

    call: str
    """The samples' `call`, as `repr` writes it; or `IN_STEPS`."""
    file: str
    """Name of the OpenVINO IR in the folder."""
    inputs: dict[str, list[int | None]]
    """Feature → its shape, in the order of the IR's inputs; None: any size."""
    outputs: list[str]
    layers: dict[str, str] = field(default_factory=dict[str, str])
    """The IR's linear layers, by what their nodes' names begin with → the model's modules."""

    def fits(self, batch: Mapping[str, torch.Tensor]) -> bool:
        return list(batch) == list(self.inputs) and all(
            len(shape) == value.dim()
            and all(size in (None, given) for size, given in zip(shape, value.shape, strict=True))
            for shape, value in zip(self.inputs.values(), batch.values(), strict=True)
        )


@dataclass(frozen=True)
class Verdict:
    """What a conversion came to. Without forms the model stays with torch; `reason` tells why."""

    forms: list[Form]
    reason: str = ""
    is_rounded: bool = False
    """It has fewer bits than the model that was converted, and other answers."""
    stored: str = ""
    """What the model's weights are stored in, as a `dtype`; empty: something else."""

    def write(self, folder: Path) -> None:
        part = folder / f"{VERDICT}.part"
        part.write_text(json.dumps(asdict(self), indent=1))
        part.replace(folder / VERDICT)

    @classmethod
    def read(cls, folder: Path) -> "Verdict":
        found = json.loads((folder / VERDICT).read_text())
        return cls([Form(**form) for form in found.pop("forms")], **found)


class Converted(Protocol):
    """A form, ready to run."""

    layers: Mapping[str, graph.Layer]
    """Those that adapters may be added to, by the model's names of them."""

    def adapt(self, given: "Sequence[Adapter | None]") -> None:
        """Have the next batch be one of rows with these adapters."""
        ...

    def fits(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> bool:
        """Whether it can run a batch of samples with this `call`."""
        ...

    def __call__(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """What `Stages.run` gives for a batch that fits."""
        ...

    def beside(
        self, engine: TorchEngine, call: Hashable, batch: Mapping[str, torch.Tensor]
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        """What it gives for a batch that fits, and what torch gives: the same decisions taken."""
        ...


class Whole:
    """The model's whole run, as one graph."""

    def __init__(
        self, form: Form, model: "CompiledModel", layers: Mapping[str, graph.Layer] | None = None
    ) -> None:
        self._form = form
        self._request = model.create_infer_request()
        self.layers = layers or {}
        self._stack = graph.Stack(self._request, self.layers) if layers else None
        self._given: Sequence[Adapter | None] = ()

    def adapt(self, given: "Sequence[Adapter | None]") -> None:
        self._given = given

    def fits(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> bool:
        return repr(call) == self._form.call and self._form.fits(batch)

    def __call__(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        from openvino import Tensor

        # By place, not as `infer` would find out for itself, which takes longer than a small model.
        request = self._request
        for place, value in enumerate(batch.values()):
            given = value.contiguous().numpy()
            request.set_input_tensor(place, Tensor(given, shared_memory=True))
        if self._stack:
            rows = len(next(iter(batch.values())))
            whose, self._given = self._given or [None] * rows, ()
            request.set_tensor(graph.SLOTS, Tensor(self._stack.slots(whose)))
        request.infer()
        # Copies: the request uses its memory again.
        names = enumerate(self._form.outputs)
        return {
            name: torch.as_tensor(request.get_output_tensor(place).data.copy())
            for place, name in names
        }

    def beside(
        self, engine: TorchEngine, call: Hashable, batch: Mapping[str, torch.Tensor]
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        return tensors(self(call, batch)), tensors(engine.run(call, batch))


class InSteps:
    """The stages' own run, its steps taken by what was converted."""

    def __init__(self, stages: Stages, steps: Steps, model: Any) -> None:
        self._stages = stages
        self._steps = steps
        self._model = model
        self.layers: Mapping[str, graph.Layer] = {}

    def adapt(self, given: "Sequence[Adapter | None]") -> None:
        """Nobody has adapters here."""

    def fits(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> bool:
        return self._steps.takes(call)

    def __call__(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        return self._stages.run(self._model, call, batch)

    def beside(
        self, engine: TorchEngine, call: Hashable, batch: Mapping[str, torch.Tensor]
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        found = engine.run(call, batch)
        ours, theirs = (
            self._steps.retold(model, batch, found) for model in (self._model, engine.model)
        )
        return ours, theirs


def opened(
    execution: Execution, stages: Stages, threads: int, *, is_open: bool = False
) -> list[Converted]:
    """The forms of a converted model, compiled. None where it could not be converted.

    Args:
        is_open: whether its linear layers get a place for adapters.
    """
    steps = stages.steps
    forms = Verdict.read(Path(execution.folder)).forms
    if steps is None:
        return [_whole(execution, form, threads, is_open=is_open) for form in forms]

    def compiled(file: str) -> "CompiledModel":
        return _compiled(execution, Path(execution.folder) / file, threads)

    return [InSteps(stages, steps, steps.opened(compiled)) for _ in forms]


def _whole(execution: Execution, form: Form, threads: int, *, is_open: bool) -> Whole:
    path = Path(execution.folder) / form.file
    if not is_open:
        return Whole(form, _compiled(execution, path, threads))
    model = _core().read_model(path)
    layers = graph.open_layers(model, graph.modules_by(model, form.layers), by_row=True)
    return Whole(form, _compiled(execution, model, threads), layers)


def _compiled(execution: Execution, model: Any, threads: int) -> "CompiledModel":
    """Compile an IR, or what was made of one; a second time it comes from the cache."""
    # What has eight bits says so itself; this is for the rest.
    precision = "f32" if execution.precision == "i8" else execution.precision
    return _core().compile_model(
        model,
        "CPU",
        {
            "CACHE_DIR": execution.cache_dir,
            "INFERENCE_NUM_THREADS": threads,
            # It would take bfloat16 by itself where the processor has it.
            "INFERENCE_PRECISION_HINT": precision,
            # By itself it would keep keys and values in eight bits.
            "KV_CACHE_PRECISION": precision,
            "PERFORMANCE_HINT": "LATENCY",
        },
    )


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


class OpenVinoEngine(TorchEngine):
    def __init__(self, device: str, dtype: str, threads: int) -> None:
        # torch is only to serve until the model was converted, which it is for a CPU.
        super().__init__("cpu" if dtype == INT8 else device, dtype, threads)
        self._converted: list[Converted] = []
        self._given: Sequence[Adapter | None] = ()

    @property
    def convertible(self) -> bool:
        is_able = self.device.type == "cpu" and self.dtype in (torch.float32, torch.bfloat16)
        return is_able and (self.adapters is None or self.stages.steps is None)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        adapters = self.adapters
        found = opened(execution, self.stages, self.threads, is_open=adapters is not None)
        stored, places = StoredWeights(self.folder), _places(found)
        if adapters and found:
            # One that has no place there has the model stay as it is.
            adapters.check_all(self.model, stored, places)

        def take_over() -> None:
            if found:
                self._converted = found
                self.name = "openvino"
                if adapters:
                    adapters.rebase(self.model, stored, places)
                # Its weights would lie in memory twice. A batch that fits no form reads them again.
                self.model = self.model.to("meta")

        return take_over

    def _adapted(self, samples: Sequence[Sample]) -> AbstractContextManager[None]:
        # What runs them is known only where the batch is.
        self._given = [one.adapter for one in samples] if self.adapters else ()
        return nullcontext()

    def run(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        given, self._given = self._given, ()
        for converted in self._converted:
            if converted.fits(call, batch):
                converted.adapt([self._anew(one) for one in given])
                return converted(call, batch)
        if self.model.device.type == "meta":
            self.model = self.read()
        place = super()._placed
        with self.adapters.rows(self.model, given) if self.adapters else nullcontext():
            return super().run(call, {name: place(value) for name, value in batch.items()})

    def _anew(self, one: "Adapter | None") -> "Adapter | None":
        """One that was loaded for torch a moment ago, as it is added to a graph."""
        return self.adapters.get(one.name) if one and one.saved and self.adapters else one

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        if not self._converted:
            return super()._placed(value)
        # A conversion takes and gives single precision, whatever it computes in.
        return value.float() if value.is_floating_point() else value


def _places(found: Sequence[Converted]) -> set[str]:
    """The modules that all of them can have something added to."""
    names = [set(one.layers) for one in found]
    return set[str].intersection(*names) if names else set()
