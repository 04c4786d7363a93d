"""Feature extraction: one vector a text, pooled as the model itself says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from stoker.replica.pooling import SentenceHead, cosines
from stoker.replica.stages import InputError, Sample
from stoker.replica.text import TextStages
from stoker.tasks.base import Task, TaskRequest
from stoker.tasks.inputs import TextInputs, Truncation


class FeatureExtractionRequest(TaskRequest):
    inputs: TextInputs
    truncation: Truncation = False


class FeatureExtractionStages(TextStages):
    """Items of the rerank endpoint are objects with `query` and `document`."""

    auto_class = "AutoModel"
    per_token = ("last_hidden_state",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._head = SentenceHead.of(folder)

    def max_tokens(self) -> int:
        return min(super().max_tokens(), self._head.max_tokens or super().max_tokens())

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if not isinstance(item, dict):
            return self._text(item, parameters)
        pair = cast("dict[str, Any]", item)
        return [
            *self._text(pair["query"], parameters, "query", of_item=False),
            *self._text(pair["document"], parameters, "documents"),
        ]

    def _text(
        self,
        text: str,
        parameters: Mapping[str, Any],
        field: str = "inputs",
        *,
        of_item: bool = True,
    ) -> list[Sample]:
        try:
            return super().preprocess(self._head.prepare(text), parameters)
        except InputError as error:
            raise InputError(error.message, field=field, of_item=of_item) from error

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """The vector of a text; the cosine of a query's and a document's."""
        vectors = [self._vector(output) for output in outputs]
        return vectors[0] if len(vectors) == 1 else cosines(vectors[0], vectors[1:])[0]

    def _vector(self, output: Mapping[str, Any]) -> list[float]:
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
    families=("bert", "distilbert", "electra", "roberta"),
    example={"inputs": "How do I bake bread?"},
    example_result=[0.021, -0.114, 0.087],
    stages=FeatureExtractionStages,
)
