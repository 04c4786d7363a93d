"""Every pipeline and its tasks, by name. A new task is a new file in this folder and a line here.

Another package adds one by an entry point of the group `stoker.tasks`; see docs/guide/plugins.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TypeVar

from stoker.base import plugins
from stoker.base.plugins import PluginError
from stoker.models.engines import catalogue
from stoker.models.stages.base import Stages
from stoker.models.stages.kinds import LANGUAGE, ModelKind
from stoker.models.tasks.base import LanguagePipeline, MediaPipeline, Task

Listed = Task | MediaPipeline | LanguagePipeline
T = TypeVar("T", Task, MediaPipeline)

FILES = (
    "stoker.models.tasks.token_classification:TASK",
    "stoker.models.tasks.text_classification:TASK",
    "stoker.models.tasks.zero_shot_classification:TASK",
    "stoker.models.tasks.fill_mask:TASK",
    "stoker.models.tasks.question_answering:TASK",
    "stoker.models.tasks.table_question_answering:TASK",
    "stoker.models.tasks.translation:TASK",
    "stoker.models.tasks.summarization:TASK",
    "stoker.models.tasks.feature_extraction:TASK",
    "stoker.models.tasks.embeddings:TASK",
    "stoker.models.tasks.similarity:TASK",
    "stoker.models.tasks.rerank:TASK",
    "stoker.models.tasks.image_classification:TASK",
    "stoker.models.tasks.zero_shot_image_classification:TASK",
    "stoker.models.tasks.image_segmentation:TASK",
    "stoker.models.tasks.object_detection:TASK",
    "stoker.models.tasks.zero_shot_object_detection:TASK",
    "stoker.models.tasks.depth_estimation:TASK",
    "stoker.models.tasks.mask_generation:TASK",
    "stoker.models.tasks.image_feature_extraction:TASK",
    "stoker.models.tasks.image_to_text:TASK",
    "stoker.models.tasks.video_classification:TASK",
    "stoker.models.tasks.audio_classification:TASK",
    "stoker.models.tasks.zero_shot_audio_classification:TASK",
    "stoker.models.tasks.visual_question_answering:TASK",
    "stoker.models.tasks.document_question_answering:TASK",
    "stoker.models.tasks.text_to_image:PIPELINE",
    "stoker.models.tasks.image_to_image:PIPELINE",
    "stoker.models.tasks.unconditional_image_generation:PIPELINE",
    "stoker.models.tasks.automatic_speech_recognition:PIPELINE",
    "stoker.models.tasks.text_to_speech:PIPELINE",
    "stoker.models.tasks.text_to_video:PIPELINE",
    "stoker.models.tasks.image_to_video:PIPELINE",
    "stoker.models.tasks.text_generation:PIPELINE",
    "stoker.models.tasks.image_text_to_text:PIPELINE",
)
"""In the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """All that deployments of a pipeline have in common."""

    name: str
    """The hub's name of the task, such as `token-classification`."""
    kind: ModelKind
    """How its models compute, which decides the engines."""
    architectures: Sequence[str]
    """Patterns of the architectures that can serve it; see `architectures.matching`."""
    paths: Sequence[str]
    """The endpoints that its deployments serve."""
    stages: Callable[[Path], Stages] | None = field(default=None, repr=False)
    """Builds the replica side of its deployments; None: a language model has none."""


def _known() -> Sequence[Listed]:
    ours: list[Listed] = [resolve_name(name) for name in FILES]
    return [*ours, *plugins.added("stoker.tasks", Task, MediaPipeline, LanguagePipeline)]


def _by_name(records: Iterable[T], what: str) -> Mapping[str, T]:
    found: dict[str, T] = {}
    for record in records:
        if record.name in found:
            raise PluginError(f"two {what} are called '{record.name}'")
        found[record.name] = record
    return found


_KNOWN = _known()

TASKS = _by_name((one for one in _KNOWN if isinstance(one, Task)), "tasks")
MEDIA = _by_name((one for one in _KNOWN if isinstance(one, MediaPipeline)), "pipelines")
"""Pipelines that make or transcribe media, by name."""


def _pipelines() -> Mapping[str, Pipeline]:
    found: dict[str, Pipeline] = {}
    for one in _KNOWN:
        if isinstance(one, Task) and one.stages is None:
            # Another task of the pipeline says how it is served.
            continue
        name = one.pipeline if isinstance(one, Task) else one.name
        if name in found:
            raise PluginError(f"two pipelines are called '{name}'")
        found[name] = Pipeline(
            name=name,
            kind=one.kind,
            architectures=one.architectures,
            paths=(
                *(task.path for task in TASKS.values() if name == task.pipeline),
                *(task.path for task in TASKS.values() if name in task.also),
                *(() if isinstance(one, Task) else one.paths),
            ),
            stages=None if isinstance(one, LanguagePipeline) else one.stages,
        )
    if unserved := {name for task in TASKS.values() for name in task.pipelines} - set(found):
        raise PluginError(f"no task says how '{min(unserved)}' is served")
    return found


SERVED = _pipelines()
"""Every pipeline that is served, by name: the tables below are views of it."""

PIPELINES: Mapping[str, Sequence[str]] = {
    name: pipeline.architectures for name, pipeline in SERVED.items()
}
"""Pipeline → patterns of the architectures that can serve it."""

STAGES: Mapping[str, Callable[[Path], Stages]] = {
    name: pipeline.stages for name, pipeline in SERVED.items() if pipeline.stages
}
"""Pipeline → what builds the replica side of its deployments."""

GENERATING: Mapping[str, Sequence[str]] = {
    name: pipeline.paths for name, pipeline in SERVED.items() if pipeline.kind in LANGUAGE
}
"""Pipelines of language models, which are no tasks (answers may be streamed) → the paths."""

IMAGE_TO_VIDEO = "image-to-video"
VIDEO = tuple(name for name, pipeline in SERVED.items() if "/v1/videos" in pipeline.paths)
"""Pipelines whose answers are jobs: they take too long for one request."""

WORKS: Mapping[str, Task | MediaPipeline] = {**TASKS, **MEDIA}
"""All that a replica's stages can be asked for, by the name that stands in `Work`."""


def endpoints(pipeline: str) -> list[str]:
    """The paths that serve a pipeline; none of one that is not served here any more."""
    return list(SERVED[pipeline].paths) if pipeline in SERVED else []


def engines(pipeline: str) -> Sequence[str]:
    """The engines that can run a pipeline's models, the preferred one first."""
    return catalogue.serving(pipeline, SERVED[pipeline].kind) if pipeline in SERVED else ()
