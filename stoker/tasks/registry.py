"""Every pipeline task, by name. A new task is a new file in this folder and a line here."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.replica.stages import Stages
from stoker.tasks import (
    feature_extraction,
    fill_mask,
    image_classification,
    text_classification,
    token_classification,
)
from stoker.tasks.base import Task

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        token_classification.TASK,
        text_classification.TASK,
        fill_mask.TASK,
        feature_extraction.TASK,
        image_classification.TASK,
    )
}

STAGES: Mapping[str, Callable[[Path], Stages]] = {
    task.pipeline: task.stages for task in TASKS.values() if task.stages
}
"""Pipeline → what builds the replica side of its deployments."""

PIPELINES: Mapping[str, Sequence[str]] = {
    task.pipeline: task.architectures for task in TASKS.values() if task.stages
}
"""Pipeline → patterns of the architectures that can serve it."""


def endpoints(pipeline: str) -> list[str]:
    """The paths that serve a pipeline."""
    return [task.path for task in TASKS.values() if pipeline in task.pipelines]
