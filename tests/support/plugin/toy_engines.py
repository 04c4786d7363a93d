"""Two toy engines. One classifies by the mean of a text's word embeddings, in numpy. The other
counts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.numpy import load_file

from stoker.plugin_api import (
    UNWATCHED,
    Chunk,
    Execution,
    LanguageModel,
    Progress,
    ReplicaSpec,
    Sample,
    Scheduler,
    Stages,
    Watch,
)


class BagEngine:
    name = "bag"
    convertible = False

    def __init__(self, spec: ReplicaSpec) -> None:
        self._scale = spec.options.get("bag_scale") or 1.0

    def load(self, folder: Path, stages: Stages, progress: Progress) -> Any:
        self._weights = load_file(folder / "model.safetensors")
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            # The stages read no weights of this model.
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

    def prepare(self, execution: Execution) -> Callable[[], None]:
        return lambda: None


class _Successors:
    """A `Runner` that follows each token with the next one of the vocabulary."""

    name = "successor"
    sharing = None
    usage = 0.0

    def __init__(self, vocabulary: int) -> None:
        self.max_length = 64
        self.vocabulary = vocabulary

    def enter_thread(self) -> None: ...

    def admit(
        self, identifier: int, tokens: Sequence[int], media: Any = None, *, fresh: bool = False
    ) -> int | None:
        return 0

    def reserve(self, identifier: int, length: int) -> bool:
        return True

    def outgrown(self, identifier: int, length: int) -> bool:
        return False

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        rows = [
            token for chunk in chunks for token in chunk.tokens[len(chunk.tokens) - chunk.rows :]
        ]
        logits = torch.full((len(rows), self.vocabulary), -100.0)
        for row, token in enumerate(rows):
            logits[row, (token + 1) % self.vocabulary] = 0.0
        return logits

    def release(self, identifier: int) -> None: ...


class SuccessorEngine:
    """Engine for language models that uses Stoker's scheduler."""

    sharing = None
    convertible = False

    def __init__(self, spec: ReplicaSpec, progress: Progress) -> None:
        config = transformers.AutoConfig.from_pretrained(spec.model_dir, local_files_only=True)
        self._runner = _Successors(config.vocab_size)
        self.max_length = self._runner.max_length
        self.vocabulary = self._runner.vocabulary

    def begin(self, ends: Iterable[int]) -> LanguageModel:
        return Scheduler(self._runner, ends)

    def prepare(self, execution: Execution) -> Callable[[], None]:
        return lambda: None
