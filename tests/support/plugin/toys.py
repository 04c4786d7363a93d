"""Two engines and a task of another package, as if it were installed next to Stoker.

The folder has the layout of an installed package in site-packages. A server finds it through its
PYTHONPATH.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from stoker.plugin_api import (
    EngineRecord,
    ModelKind,
    Options,
    Strict,
    Task,
    TaskRequest,
    TextInputs,
    TextStages,
)


class BagOptions(Strict):
    bag_scale: float | None = Field(default=None, gt=0, le=100, description="Multiplies logits.")


BAG = EngineRecord(
    name="bag",
    title="Bag",
    meaning="`bag`: a bag of words.",
    serves={ModelKind.PASSES: ("float32",)},
    pipelines=("text-classification",),
    devices=("cpu",),
    options=Options(model=BagOptions, kinds=[ModelKind.PASSES], purpose="classification"),
    for_stages="toy_engines:BagEngine",
    probe="import numpy; print(numpy.__version__)",
)

SUCCESSOR = EngineRecord(
    name="successor",
    title="Successor",
    meaning="`successor`: it counts.",
    serves={ModelKind.TEXT: ("float32",)},
    for_language="toy_engines:SuccessorEngine",
)


class LengthRequest(TaskRequest):
    inputs: TextInputs


class Length(BaseModel):
    length: float


class LengthStages(TextStages):
    auto_class = "AutoModel"

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        (output,) = outputs
        return {"length": float(output["last_hidden_state"][0, 0].norm())}


TASK = Task(
    pipeline="sentence-length",
    path="/v1/toys/sentence-length",
    summary="Measure sentences",
    request=LengthRequest,
    result=Length,
    architectures=("BertModel",),
    families=("bert",),
    example={"inputs": "Long is the way."},
    example_result={"length": 7.5},
    stages=LengthStages,
)
