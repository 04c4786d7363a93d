"""A task with stages that run the attack in each input: an attacker's code in a serving replica.

The folder has the layout of an installed package in site-packages. A server finds it through its
PYTHONPATH.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from stoker.models.stages.base import Sample
from stoker.models.stages.text import TextStages
from stoker.models.tasks.base import Task, TaskRequest
from stoker.models.tasks.inputs import TextInputs


class Intrusion(TaskRequest):
    inputs: TextInputs


class Said(BaseModel):
    said: str


class IntruderStages(TextStages):
    auto_class = "AutoModel"
    _said = ""

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        import attacks

        self._said = attacks.said(item)
        return super().preprocess("a", parameters)

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        return {"said": self._said}


TASK = Task(
    pipeline="intrusion",
    path="/v1/toys/intrusion",
    summary="Break out",
    request=Intrusion,
    result=Said,
    architectures=("BertModel",),
    families=("bert",),
    example={"inputs": "{}"},
    example_result={"said": ""},
    stages=IntruderStages,
)
