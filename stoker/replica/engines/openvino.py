"""The OpenVINO engine: torch until the model was converted, then OpenVINO where a batch fits.

On a CPU it runs encoders faster than torch, short inputs above all. `stoker.replica.conversion`
makes what is adopted here, and has compared it with torch.
"""

import functools
import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stoker.replica.engines.torch import TorchEngine
from stoker.replica.protocol import VERDICT

if TYPE_CHECKING:
    from openvino import CompiledModel


@dataclass(frozen=True)
class Form:
    """A converted way of calling the model: what `Stages.run` does for one `call`."""

    call: str
    """The samples' `call`, as `repr` writes it."""
    file: str
    """Name of the OpenVINO IR in the folder."""
    inputs: dict[str, list[int | None]]
    """Feature → its shape, in the order of the IR's inputs; None: any size."""
    outputs: list[str]
    difference: float
    """The largest from torch that was seen, as a share of torch's largest output."""
    speedup: float
    """Over torch, for one sample and for a batch: the geometric mean."""

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

    def write(self, folder: Path) -> None:
        part = folder / f"{VERDICT}.part"
        part.write_text(json.dumps(asdict(self), indent=1))
        part.replace(folder / VERDICT)

    @classmethod
    def read(cls, folder: Path) -> "Verdict":
        found = json.loads((folder / VERDICT).read_text())
        return cls([Form(**form) for form in found["forms"]], found["reason"])


class Compiled:
    """A form, ready to run."""

    def __init__(self, form: Form, model: "CompiledModel") -> None:
        self.form = form
        self._request = model.create_infer_request()

    def __call__(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        given = [value.numpy() for value in batch.values()]
        # Inputs are shared, outputs are copies: the request uses its memory again.
        found = self._request.infer(given, share_inputs=True)
        return {name: torch.as_tensor(found[place]) for place, name in enumerate(self.form.outputs)}


def compiled(folder: Path, form: Form, threads: int) -> Compiled:
    """Compile a form; a second time it comes from the cache in the folder."""
    model = _core().compile_model(
        folder / form.file,
        "CPU",
        {
            "CACHE_DIR": str(folder / "compiled"),
            "INFERENCE_NUM_THREADS": threads,
            # It would take bfloat16 by itself where the processor has it.
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    return Compiled(form, model)


@functools.cache
def _core() -> Any:
    import openvino

    return openvino.Core()


class OpenVinoEngine(TorchEngine):
    def __init__(self, device: str, dtype: str, threads: int) -> None:
        super().__init__(device, dtype, threads)
        self._forms: dict[str, Compiled] = {}

    @property
    def convertible(self) -> bool:
        return self.device.type == "cpu" and self.dtype == torch.float32

    def adopt(self, folder: Path) -> None:
        verdict = Verdict.read(folder)
        forms = {one.call: compiled(folder, one, self.threads) for one in verdict.forms}
        if not forms:
            return
        self._forms = forms
        self.name = "openvino"
        # Its weights would lie in memory twice. A batch that fits no form reads them again.
        self.model = self.model.to("meta")

    def run(self, call: Hashable, batch: Mapping[str, torch.Tensor]) -> Mapping[str, Any]:
        form = self._forms.get(repr(call))
        if form and form.form.fits(batch):
            return form(batch)
        if self.model.device.type == "meta":
            self.model = self.read()
        return super().run(call, batch)
