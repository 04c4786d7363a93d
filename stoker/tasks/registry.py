"""Every pipeline task, by name. A new task is a new file in this folder and a line here."""

from collections.abc import Mapping, Sequence

from stoker.tasks import (
    feature_extraction,
    fill_mask,
    text_classification,
    token_classification,
)
from stoker.tasks.base import Task

TASKS: Mapping[str, Task] = {
    task.pipeline: task
    for task in (
        token_classification.TASK,
        text_classification.TASK,
        fill_mask.TASK,
        feature_extraction.TASK,
    )
}

PIPELINES: Mapping[str, Sequence[str]] = {
    task.pipeline: task.architectures for task in TASKS.values()
}
"""Pipeline → patterns of the architectures that can serve it."""


def endpoints(pipeline: str) -> list[str]:
    """The paths that serve a pipeline."""
    return [task.path for task in TASKS.values() if task.pipeline == pipeline]
