"""An engine that classifies by the mean of a text's word embeddings, in numpy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.numpy import load_file

from stoker.engines.interface import Progress
from stoker.stages.base import Sample, Stages
from stoker.stages.watch import UNWATCHED, Watch
from stoker.wire.protocol import Execution, ReplicaSpec


class BagEngine:
    name = "bag"
    convertible = False

    def __init__(self, spec: ReplicaSpec) -> None:
        self._scale = spec.options.get("bag_scale") or 1.0

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        self._weights = load_file(folder / "model.safetensors")
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            # What the stages read of it has no weights.
            return transformers.AutoModelForSequenceClassification.from_config(config)

    def enter_thread(self) -> None: ...

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        return [{**sample.features, **sample.extras, **self._run(sample)} for sample in samples]

    def _run(self, sample: Sample) -> Mapping[str, Any]:
        words = self._weights["bert.embeddings.word_embeddings.weight"]
        mean = words[sample.features["input_ids"][0].numpy()].mean(axis=0)
        logits = self._weights["classifier.weight"] @ mean + self._weights["classifier.bias"]
        return {"logits": torch.from_numpy(self._scale * logits)[None]}

    def adopt(self, execution: Execution) -> None: ...
