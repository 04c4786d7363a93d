"""The OpenVINO engine: torch until the model is converted, then OpenVINO for batches that fit.

On a CPU it runs encoders faster than torch, especially with short inputs. `conversion` creates the
model that is adopted here. `trial` has compared it with torch.
"""

import functools
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt
import torch

from stoker.models.adapters import graph
from stoker.models.adapters.stored import StoredWeights
from stoker.models.engines import packed_rows
from stoker.models.engines.layout import PaddedLayout
from stoker.models.engines.packed_rows import RowPlan
from stoker.models.engines.probing import tensors
from stoker.models.engines.record import INT8
from stoker.models.engines.torch import TorchEngine
from stoker.models.stages.base import Sample, Stages, Steps
from stoker.wire.conversions import VERDICT
from stoker.wire.protocol import Execution, Sharing

if TYPE_CHECKING:
    from openvino import CompiledModel

    from stoker.models.adapters.applying import LoadedAdapter

IN_STEPS = "steps"
"""Value of `call` in the form of a model that runs in many steps."""


@dataclass(frozen=True)
class ConvertedForm:
    """Converted way of calling the model: the work of `Stages.run` for one `call`."""

    call: str
    """The samples' `call`, as `repr` writes it, or `IN_STEPS`."""
    file: str
    """Name of the OpenVINO IR in the folder."""
    inputs: dict[str, list[int | None]]
    """Maps each input to its shape, in the order of the IR's inputs. None means any size.

    These are the features and, if the layers compute packed rows, `packed_rows.NAMES`.
    """
    outputs: list[str]
    layers: dict[str, str] = field(default_factory=dict[str, str])
    """Maps the IR's linear layers, by the beginning of their nodes' names, to the model's
    modules.
    """

    @property
    def is_packed(self) -> bool:
        """True if the layers compute packed rows: see `packed_rows`."""
        return packed_rows.TOKENS in self.inputs

    def fits(self, batch: Mapping[str, torch.Tensor]) -> bool:
        shapes = {k: shape for k, shape in self.inputs.items() if k not in packed_rows.NAMES}
        return list(batch) == list(shapes) and all(
            len(shape) == value.dim()
            and all(size in (None, actual) for size, actual in zip(shape, value.shape, strict=True))
            for shape, value in zip(shapes.values(), batch.values(), strict=True)
        )

    def arrays(
        self, batch: Mapping[str, torch.Tensor], *, is_shared: bool = True
    ) -> list[npt.NDArray[Any]]:
        """Returns the IR's inputs for a padded batch that fits.

        Args:
            is_shared: if False, no packed row holds more than one sample.
        """
        arrays: list[npt.NDArray[Any]] = [value.contiguous().numpy() for value in batch.values()]
        if not self.is_packed:
            return arrays
        mask = batch[packed_rows.MASK].numpy()
        plan = None if is_shared else RowPlan.separate(*mask.shape)
        return [*arrays, *packed_rows.row_inputs(mask, plan)]


@dataclass(frozen=True)
class ConversionVerdict:
    """Result of a conversion. Without forms the model stays with torch, and `reason` explains
    why.
    """

    forms: list[ConvertedForm]
    reason: str = ""
    is_rounded: bool = False
    """True if the result has fewer bits than the original model, and other answers."""
    stored: str = ""
    """Stored precision of the model's weights, as a `dtype`. Empty for any other type."""

    def write(self, folder: Path) -> None:
        part = folder / f"{VERDICT}.part"
        part.write_text(json.dumps(asdict(self), indent=1))
        part.replace(folder / VERDICT)

    @classmethod
    def read(cls, folder: Path) -> "ConversionVerdict":
        fields = json.loads((folder / VERDICT).read_text())
        return cls([ConvertedForm(**form) for form in fields.pop("forms")], **fields)


class Converted(Protocol):
    """Form that is ready to run."""

    is_packed: bool
    """True if samples of any length share a pass, and its layers compute no padding."""
    layers: Mapping[str, graph.Layer]
    """Layers that adapters may be added to, by the model's names of them."""

    def adapt(self, given: "Sequence[LoadedAdapter | None]") -> None:
        """Sets the adapters of the next batch's rows."""
        ...

    def fits(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> bool:
        """True if the form can run a batch of samples with this `call`."""
        ...

    def __call__(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        """Returns the result of `Stages.run` for a batch that fits."""
        ...

    def beside(
        self, engine: TorchEngine, call: Hashable, batch: Mapping[str, torch.Tensor]
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        """Returns the form's and torch's outputs for a batch that fits, both with the same
        decisions.
        """
        ...


class WholeGraph:
    """The model's whole run as one graph."""

    def __init__(
        self,
        form: ConvertedForm,
        model: "CompiledModel",
        layers: Mapping[str, graph.Layer] | None = None,
    ) -> None:
        self._form = form
        self._request = model.create_infer_request()
        self.layers = layers or {}
        self.is_packed = form.is_packed and not layers
        self._stack = graph.Stack(self._request, self.layers) if layers else None
        self._given: Sequence[LoadedAdapter | None] = ()

    def adapt(self, given: "Sequence[LoadedAdapter | None]") -> None:
        self._given = given

    def fits(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> bool:
        return repr(call) == self._form.call and self._form.fits(batch)

    def __call__(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        from openvino import Tensor

        # Inputs are set by position. `infer` would look them up, which takes longer than a small
        # model.
        request = self._request
        # The request reads these arrays, so they must exist until it ends. With adapters, a row
        # holds one sample, because each row has one adapter.
        arrays = self._form.arrays(batch, is_shared=self._stack is None)
        for place, array in enumerate(arrays):
            request.set_input_tensor(place, Tensor(array, shared_memory=True))
        if self._stack:
            rows = len(next(iter(batch.values())))
            row_adapters, self._given = self._given or [None] * rows, ()
            request.set_tensor(graph.SLOTS, Tensor(self._stack.slots(row_adapters)))
        request.infer()
        # Copies, because the request reuses its memory.
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
    """The stages' own run, with steps computed by the converted model."""

    def __init__(self, stages: Stages, steps: Steps, model: Any) -> None:
        self._stages = stages
        self._steps = steps
        self._model = model
        self.layers: Mapping[str, graph.Layer] = {}
        self.is_packed = False

    def adapt(self, given: "Sequence[LoadedAdapter | None]") -> None:
        """Does nothing: models in steps have no adapters."""

    def fits(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> bool:
        return self._steps.takes(call)

    def __call__(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        return self._stages.run(self._model, call, batch)

    def beside(
        self, engine: TorchEngine, call: Hashable, batch: Mapping[str, torch.Tensor]
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        torch_outputs = engine.run(call, batch)
        ours, theirs = (
            self._steps.retold(model, batch, torch_outputs) for model in (self._model, engine.model)
        )
        return ours, theirs


def opened(
    execution: Execution, stages: Stages, threads: int, *, is_open: bool = False
) -> list[Converted]:
    """Returns the compiled forms of a converted model. Empty if it could not be converted.

    Args:
        is_open: True if its linear layers get inputs for adapters.
    """
    steps = stages.steps
    forms = ConversionVerdict.read(Path(execution.folder)).forms
    if steps is None:
        return [_whole(execution, form, threads, is_open=is_open) for form in forms]

    def compiled(file: str) -> "CompiledModel":
        return _compiled(execution, Path(execution.folder) / file, threads)

    return [InSteps(stages, steps, steps.opened(compiled)) for _ in forms]


def _whole(execution: Execution, form: ConvertedForm, threads: int, *, is_open: bool) -> WholeGraph:
    path = Path(execution.folder) / form.file
    if not is_open:
        return WholeGraph(form, _compiled(execution, path, threads))
    model = _core().read_model(path)
    layers = graph.open_layers(model, graph.modules_by(model, form.layers), by_row=True)
    return WholeGraph(form, _compiled(execution, model, threads), layers)


def _compiled(execution: Execution, model: Any, threads: int) -> "CompiledModel":
    """Compiles an IR or a changed model of it. A second time, it comes from the cache."""
    # Layers in eight bits state it themselves; this is for the others.
    precision = "f32" if execution.precision == "i8" else execution.precision
    return _core().compile_model(
        model,
        "CPU",
        {
            "CACHE_DIR": execution.cache_dir,
            "INFERENCE_NUM_THREADS": threads,
            # By default OpenVINO would use bfloat16 if the processor supports it.
            "INFERENCE_PRECISION_HINT": precision,
            # By default OpenVINO would keep keys and values in eight bits.
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
        # torch serves only until the model is converted, which happens for a CPU.
        super().__init__("cpu" if dtype == INT8 else device, dtype, threads)
        self._converted: list[Converted] = []
        self._given: Sequence[LoadedAdapter | None] = ()

    @property
    def convertible(self) -> bool:
        is_able = self.device.type == "cpu" and self.dtype in (torch.float32, torch.bfloat16)
        return is_able and (self.adapters is None or self.stages.steps is None)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        adapters = self.adapters
        forms = opened(execution, self.stages, self.threads, is_open=adapters is not None)
        stored, places = StoredWeights(self.folder), _places(forms)
        if adapters and forms:
            # An adapter that the graph has no place for keeps the model as it is.
            adapters.check_all(self.model, stored, places)

        def take_over() -> None:
            if forms:
                self._converted = forms
                self.name = "openvino"
                if self.stages.sharing is Sharing.PADDED and all(form.is_packed for form in forms):
                    # The forms pack padded batches.
                    self.layout = PaddedLayout(self.stages)
                    self.stages.sharing = Sharing.PACKED
                if adapters:
                    adapters.rebase(self.model, stored, places)
                # The weights would be in memory twice. A batch that fits no form reads them again.
                self.model = self.model.to("meta")

        return take_over

    def _adapted(self, samples: Sequence[Sample]) -> AbstractContextManager[None]:
        # Only the batch decides which form or engine runs the samples.
        self._given = [sample.adapter for sample in samples] if self.adapters else ()
        return nullcontext()

    def run(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        row_adapters, self._given = self._given, ()
        for converted in self._converted:
            if converted.fits(call, batch):
                converted.adapt([self._anew(adapter) for adapter in row_adapters])
                return converted(call, batch)
        if self.model.device.type == "meta":
            self.model = self.read()
        place = super()._placed
        with self.adapters.rows(self.model, row_adapters) if self.adapters else nullcontext():
            return super().run(call, {name: place(value) for name, value in batch.items()})

    def _anew(self, one: "LoadedAdapter | None") -> "LoadedAdapter | None":
        """Returns an adapter for a graph in place of one that was just loaded for torch."""
        return self.adapters.get(one.name) if one and one.saved and self.adapters else one

    def _placed(self, value: torch.Tensor) -> torch.Tensor:
        if not self._converted:
            return super()._placed(value)
        # A conversion has inputs and outputs in single precision, even if it computes in another
        # one.
        return value.float() if value.is_floating_point() else value


def _places(found: Sequence[Converted]) -> set[str]:
    """Returns the modules that all forms can add adapters to."""
    names = [set(form.layers) for form in found]
    return set[str].intersection(*names) if names else set()
