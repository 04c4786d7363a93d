"""The sleeping engine, which runs in a replica."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from stoker.models.engines.interface import Progress
from stoker.models.stages.base import Sample, Stages
from stoker.models.stages.watch import UNWATCHED, Watch
from stoker.wire.protocol import Execution, ReplicaSpec

SLEEP_S = 0.04
"""Seconds per sample of a batch, as for a model with a time proportional to its batch."""


class SleepingEngine:
    name = "sleeper"
    convertible = False

    def __init__(self, spec: ReplicaSpec) -> None: ...

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        self._labels = config.num_labels
        with torch.device("meta"):
            # The stages read only parts of the model that have no weights.
            return transformers.AutoModelForTokenClassification.from_config(config)

    def enter_thread(self) -> None: ...

    def forward(
        self, samples: Sequence[Sample], watch: Watch = UNWATCHED
    ) -> list[Mapping[str, Any]]:
        time.sleep(SLEEP_S * len(samples))
        return [{**sample.features, **sample.extras, **self._none(sample)} for sample in samples]

    def _none(self, sample: Sample) -> Mapping[str, Any]:
        """Returns meaningless logits."""
        words = sample.features["input_ids"].shape[1]
        return {"logits": torch.zeros(1, words, self._labels)}

    def prepare(self, execution: Execution) -> Callable[[], None]:
        return lambda: None
