"""Feature extraction: one vector a text, pooled as the model itself says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.replica.pooling import SentenceHead
from stoker.replica.stages import Sample
from stoker.replica.text import TextStages
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.inputs import TextInputs, Truncation


class FeatureExtractionRequest(TaskRequest):
    inputs: TextInputs
    truncation: Truncation = False


class FeatureExtractionStages(TextStages):
    auto_class = "AutoModel"
    per_token = ("last_hidden_state",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._head = SentenceHead.of(folder)

    def max_tokens(self) -> int:
        return min(super().max_tokens(), self._head.max_tokens or super().max_tokens())

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return super().preprocess(self._head.prepare(item), parameters)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[float]:
        output = outputs[0]
        hidden = output["last_hidden_state"].float()
        vector: Any = self._head.pool(hidden, output["attention_mask"])
        return vector[0].tolist()


TASK = Task(
    pipeline="feature-extraction",
    path="/v1/feature-extraction",
    summary="Extract features",
    request=FeatureExtractionRequest,
    result=list[float],
    # A bare `…Model` is meant for nothing else; below any head there are hidden states to pool.
    architectures=("*Model", "*For*"),
    example={"inputs": "How do I bake bread?"},
    example_result=[0.021, -0.114, 0.087],
    stages=FeatureExtractionStages,
)
