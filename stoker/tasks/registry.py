"""Every pipeline task, by name. A new task is a new file in this folder and a line here."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.llm.model_types import IMAGE_TEXT_TO_TEXT, VISION
from stoker.stages.base import Stages
from stoker.tasks import (
    audio_classification,
    automatic_speech_recognition,
    depth_estimation,
    document_question_answering,
    embeddings,
    feature_extraction,
    fill_mask,
    image_classification,
    image_feature_extraction,
    image_segmentation,
    image_to_image,
    image_to_text,
    image_to_video,
    mask_generation,
    object_detection,
    question_answering,
    rerank,
    similarity,
    summarization,
    table_question_answering,
    text_classification,
    text_to_image,
    text_to_speech,
    text_to_video,
    token_classification,
    translation,
    unconditional_image_generation,
    video_classification,
    visual_question_answering,
    zero_shot_audio_classification,
    zero_shot_classification,
    zero_shot_image_classification,
    zero_shot_object_detection,
)
from stoker.tasks.base import MediaPipeline, Task

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        token_classification.TASK,
        text_classification.TASK,
        zero_shot_classification.TASK,
        fill_mask.TASK,
        question_answering.TASK,
        table_question_answering.TASK,
        translation.TASK,
        summarization.TASK,
        feature_extraction.TASK,
        embeddings.TASK,
        similarity.TASK,
        rerank.TASK,
        image_classification.TASK,
        zero_shot_image_classification.TASK,
        image_segmentation.TASK,
        object_detection.TASK,
        zero_shot_object_detection.TASK,
        depth_estimation.TASK,
        mask_generation.TASK,
        image_feature_extraction.TASK,
        image_to_text.TASK,
        video_classification.TASK,
        audio_classification.TASK,
        zero_shot_audio_classification.TASK,
        visual_question_answering.TASK,
        document_question_answering.TASK,
    )
}

MEDIA: Mapping[str, MediaPipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        text_to_image.PIPELINE,
        image_to_image.PIPELINE,
        unconditional_image_generation.PIPELINE,
        automatic_speech_recognition.PIPELINE,
        text_to_speech.PIPELINE,
        text_to_video.PIPELINE,
        image_to_video.PIPELINE,
    )
}
"""Pipelines that make or transcribe media, by name."""

IMAGE_TO_VIDEO = image_to_video.PIPELINE.name
VIDEO = (text_to_video.PIPELINE.name, IMAGE_TO_VIDEO)
"""Pipelines whose answers are jobs: they take too long for one request."""

WORKS: Mapping[str, Task | MediaPipeline] = {**TASKS, **MEDIA}
"""All that a replica's stages can be asked for, by the name that stands in `Work`."""

STAGES: Mapping[str, Callable[[Path], Stages]] = {
    **{task.pipeline: task.stages for task in TASKS.values() if task.stages},
    **{pipeline.name: pipeline.stages for pipeline in MEDIA.values()},
}
"""Pipeline → what builds the replica side of its deployments."""

TEXT_GENERATION = "text-generation"
_GENERATED = (
    *("/v1/chat/completions", "/v1/completions"),
    *("/v1/responses", "/v1/responses/input_tokens"),
)
GENERATING: Mapping[str, Sequence[str]] = {
    TEXT_GENERATION: _GENERATED,
    IMAGE_TEXT_TO_TEXT: _GENERATED,
}
"""Pipelines of language models, which are no tasks (answers may be streamed) → the paths."""

PIPELINES: Mapping[str, Sequence[str]] = {
    **{task.pipeline: task.architectures for task in TASKS.values() if task.stages},
    **{pipeline.name: pipeline.architectures for pipeline in MEDIA.values()},
    TEXT_GENERATION: ("*ForCausalLM", "*LMHeadModel"),
    IMAGE_TEXT_TO_TEXT: tuple(VISION),
}
"""Pipeline → patterns of the architectures that can serve it."""


def endpoints(pipeline: str) -> list[str]:
    """The paths that serve a pipeline."""
    media = MEDIA.get(pipeline)
    return [
        *(task.path for task in TASKS.values() if pipeline in task.pipelines),
        *(media.paths if media else ()),
        *GENERATING.get(pipeline, ()),
    ]


def engines(pipeline: str) -> tuple[str, ...]:
    """The engines that can run a pipeline's models, the preferred one first."""
    if pipeline in GENERATING:
        ours = ("openvino", "torch")
        return (*ours, "vllm") if pipeline == TEXT_GENERATION else ours
    # Where the stages are chosen by the model, all choices run where the others do.
    return getattr(STAGES[pipeline], "engines", Stages.engines)
