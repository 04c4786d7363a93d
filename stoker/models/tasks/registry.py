"""Registry of all pipelines and tasks, by name. A new task is a new file in this folder and a line
here.

Other packages add tasks by an entry point of the group `stoker.tasks`; see docs/guide/plugins.md.
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
from stoker.models.tasks.other_servers.registry import FORMS

Listed = Task | MediaPipeline | LanguagePipeline
T = TypeVar("T", Task, MediaPipeline)

FILES = (
    "stoker.models.tasks.token_classification:TASK",
    "stoker.models.tasks.text_classification:TASK",
    "stoker.models.tasks.moderations:TASK",
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
"""Files of the tasks and pipelines, in display order."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Common properties of all deployments of a pipeline."""

    name: str
    """The hub's name of the task, such as `token-classification`."""
    kind: ModelKind
    """Kind of computation of its models, which decides the engines."""
    architectures: Sequence[str]
    """Patterns of the architectures that can serve it; see `architectures.matching`."""
    paths: Sequence[str]
    """The endpoints that its deployments serve."""
    stages: Callable[[Path], Stages] | None = field(default=None, repr=False)
    """Builds the stages of its deployments. None for language models, which have none."""


def _known() -> Sequence[Listed]:
    ours: list[Listed] = [resolve_name(name) for name in FILES]
    return [*ours, *plugins.added("stoker.tasks", Task, MediaPipeline, LanguagePipeline)]


def _by_name(records: Iterable[T], what: str) -> Mapping[str, T]:
    records_by_name: dict[str, T] = {}
    for record in records:
        if record.name in records_by_name:
            raise PluginError(f"two {what} are called '{record.name}'")
        records_by_name[record.name] = record
    return records_by_name


_KNOWN = _known()

TASKS = _by_name((entry for entry in _KNOWN if isinstance(entry, Task)), "tasks")
MEDIA = _by_name((entry for entry in _KNOWN if isinstance(entry, MediaPipeline)), "pipelines")
"""Pipelines that make or transcribe media, by name."""


def _pipelines() -> Mapping[str, Pipeline]:
    pipelines: dict[str, Pipeline] = {}
    for entry in _KNOWN:
        if isinstance(entry, Task) and entry.stages is None:
            # Another task of the pipeline has its stages.
            continue
        name = entry.pipeline if isinstance(entry, Task) else entry.name
        if name in pipelines:
            raise PluginError(f"two pipelines are called '{name}'")
        pipelines[name] = Pipeline(
            name=name,
            kind=entry.kind,
            architectures=entry.architectures,
            paths=(
                *(task.path for task in TASKS.values() if name == task.pipeline),
                *(task.path for task in TASKS.values() if name in task.also),
                *(() if isinstance(entry, Task) else entry.paths),
            ),
            stages=None if isinstance(entry, LanguagePipeline) else entry.stages,
        )
    if unserved := {name for task in TASKS.values() for name in task.pipelines} - set(pipelines):
        raise PluginError(f"no task defines how '{min(unserved)}' is served")
    return pipelines


SERVED = _pipelines()
"""All served pipelines by name. The tables below are views of it."""

PIPELINES: Mapping[str, Sequence[str]] = {
    name: pipeline.architectures for name, pipeline in SERVED.items()
}
"""Maps a pipeline to patterns of the architectures that can serve it."""

STAGES: Mapping[str, Callable[[Path], Stages]] = {
    name: pipeline.stages for name, pipeline in SERVED.items() if pipeline.stages
}
"""Maps a pipeline to the builder of its deployments' stages."""

GENERATING: Mapping[str, Sequence[str]] = {
    name: pipeline.paths for name, pipeline in SERVED.items() if pipeline.kind in LANGUAGE
}
"""Maps each pipeline of language models to its paths. They are no tasks, because answers may be
streamed.
"""

IMAGE_TO_VIDEO = "image-to-video"
VIDEO = tuple(name for name, pipeline in SERVED.items() if "/v1/videos" in pipeline.paths)
"""Pipelines that answer with jobs, because they take too long for one request."""

WORKS: Mapping[str, Task | MediaPipeline] = {**FORMS, **TASKS, **MEDIA}
"""All tasks, their forms for clients of other servers, and media pipelines of a replica's stages,
by the name in `Work`.
"""


def endpoints(pipeline: str) -> list[str]:
    """Returns the paths that serve a pipeline, or none if the pipeline is no longer served."""
    return list(SERVED[pipeline].paths) if pipeline in SERVED else []


def engines(pipeline: str) -> Sequence[str]:
    """Returns the engines that can run a pipeline's models, the preferred one first."""
    return catalogue.serving(pipeline, SERVED[pipeline].kind) if pipeline in SERVED else ()
