"""The torch engine: any architecture that transformers knows. The reference for correctness."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from stoker.replica.batching import bucket
from stoker.replica.engines.interface import Progress
from stoker.replica.stages import Sample, Stages

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TorchEngine:
    def __init__(self, device: str, dtype: str, threads: int) -> None:
        self.threads = threads
        self.device = torch.device(_pick_device(device))
        # Half precision halves memory on a GPU; on a CPU float32 is the reference.
        automatic = torch.float16 if self.device.type == "cuda" else torch.float32
        self.dtype = _DTYPES.get(dtype, automatic)

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        auto_class: Any = getattr(transformers, stages.auto_class)
        progress(0.1, "reading weights")
        model = auto_class.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, dtype=self.dtype
        )
        progress(0.9, "moving to device")
        self.model: Any = model.to(self.device).eval()
        self.stages = stages
        return self.model

    def enter_thread(self) -> None:
        # OpenMP keeps the number for each thread that opens parallel regions.
        torch.set_num_threads(self.threads)

    @torch.inference_mode()
    def forward(self, samples: Sequence[Sample]) -> list[Mapping[str, Any]]:
        longest = max(sample.length for sample in samples)
        length = bucket(longest) if self.stages.pads else longest
        batch = {
            name: torch.cat([self._padded(name, sample, length) for sample in samples])
            for name in samples[0].features
        }
        outputs = self.model(**{name: value.to(self.device) for name, value in batch.items()})
        tensors = {name: value.cpu() for name, value in outputs.items() if torch.is_tensor(value)}
        return [
            {**sample.features, **sample.extras, **self._row(tensors, row, sample, length)}
            for row, sample in enumerate(samples)
        ]

    def _padded(self, name: str, sample: Sample, length: int) -> torch.Tensor:
        value = sample.features[name]
        missing = length - sample.length
        if not missing:
            return value
        sides = (0, missing) if self.stages.padding_side == "right" else (missing, 0)
        fill = self.stages.padding.get(name, 0)
        return torch.nn.functional.pad(value, sides, value=fill)

    def _row(
        self, tensors: Mapping[str, torch.Tensor], row: int, sample: Sample, length: int
    ) -> dict[str, torch.Tensor]:
        """One sample's share of the outputs, without the rows that padding made."""
        right = self.stages.padding_side == "right"
        own = slice(0, sample.length) if right else slice(length - sample.length, length)
        return {
            name: value[row : row + 1, own]
            if name in self.stages.per_token
            else value[row : row + 1]
            for name, value in tensors.items()
        }


def _pick_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return wanted
