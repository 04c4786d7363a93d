"""A model of every family that docs/tasks.md claims, and a request to it."""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stoker.media.media import Media
from stoker.models.llm.model_types import VISION
from stoker.models.tasks.registry import TASKS
from tests.llm import vision
from tests.support import diffusion, multimodal, prompted, recognition, seq2seq, speech, video
from tests.support.media import image, image_media, sound, wav
from tests.support.media import video as clip
from tests.support.models import tiny_bert
from tests.tasks import (
    test_grounded_detection,
    test_image_feature_extraction,
    test_question_answering,
    test_rerank,
    test_sentence_transformers,
    test_table_question_answering,
    test_text_families,
    test_translation,
    test_universal_segmentation,
    test_zero_shot_audio_classification,
)

TASK_FILES = Path(__file__).parents[1] / "tasks"
DOCS = Path(__file__).parents[2] / "docs" / "tasks.md"
ROW = re.compile(r"^\| (`[^|]+`) \| (`[^|]+`) \| ([^|]+) \|", re.MULTILINE)
PICTURE = image_media(image(0))
SOUND = Media("audio", content=wav(sound(0, 0.4)))
FILM = Media("video", content=clip(0))
SEED = 3

Build = Callable[[Path], Any]


def claimed() -> Iterator[tuple[str, str, str]]:
    """Yields the name of a task or a pipeline, its endpoint's path, and the family, as listed in
    the docs.
    """
    by_path = {task.path: task.name for task in TASKS.values()}
    for pipelines, paths, families in ROW.findall(DOCS.read_text()):
        if "`/v1/" not in paths:  # the table of engines
            continue
        path = re.findall(r"`(.+?)`", paths)[0]
        name = by_path.get(path) or re.findall(r"`(.+?)`", pipelines)[0]
        if name == "text-generation":  # covered by test_language_models.py
            continue
        for family in families.split(", "):
            yield name, path, family


DRAWING: Mapping[str, Build] = {
    "stable-diffusion": diffusion.stable_diffusion,
    "stable-diffusion-xl": diffusion.stable_diffusion_xl,
    "stable-diffusion-3": diffusion.stable_diffusion_3,
    "flux": diffusion.flux,
}


def redrawing(build: Build, folder: Path) -> None:
    """Saves the same components as the pipeline that begins with an image."""
    diffusion.made(build, folder)
    index = folder / "model_index.json"
    index.write_text(re.sub(r'(\w+)Pipeline"', r'\1Img2ImgPipeline"', index.read_text(), count=1))


BUILDERS: Mapping[tuple[str, str], Build] = {
    **{
        (task, family): partial(test_text_families.save, family, task)
        for task in test_text_families.HEADS
        for family in test_text_families.FAMILIES
    },
    ("embeddings", "bert"): partial(tiny_bert, head="Model"),
    ("similarity", "bert"): partial(tiny_bert, head="Model"),
    **{
        (task, family): partial(test_sentence_transformers.encoder, family)
        for task in ("feature-extraction", "embeddings")
        for family in test_sentence_transformers.ENCODERS
    },
    ("moderation", "bert"): partial(test_text_families.save, "bert", "text-classification"),
    ("rerank", "bert"): test_rerank.bert,
    ("rerank", "roberta"): test_rerank.roberta,
    ("question-answering", "bert"): test_question_answering.bert,
    ("question-answering", "roberta"): test_question_answering.roberta,
    ("table-question-answering", "tapas"): partial(
        test_table_question_answering.tapas, aggregation=4
    ),
    ("table-question-answering", "bart"): seq2seq.bart,
    ("translation", "t5"): seq2seq.t5,
    ("translation", "marian"): seq2seq.marian,
    ("translation", "mbart"): test_translation.mbart,
    ("translation", "m2m_100"): test_translation.nllb,
    ("summarization", "t5"): seq2seq.t5,
    ("summarization", "bart"): seq2seq.bart,
    ("image-segmentation", "oneformer"): test_universal_segmentation.oneformer,
    ("image-segmentation", "eomt"): test_universal_segmentation.eomt,
    ("image-segmentation", "eomt_dinov3"): test_universal_segmentation.eomt_dinov3,
    ("zero-shot-object-detection", "grounding-dino"): test_grounded_detection.grounding_dino,
    ("zero-shot-object-detection", "mm-grounding-dino"): test_grounded_detection.mm_grounding_dino,
    ("image-feature-extraction", "convnext"): test_image_feature_extraction.convnext_classifier,
    ("image-to-text", "blip"): partial(multimodal.blip, head="BlipForConditionalGeneration"),
    ("image-to-text", "blip-2"): prompted.blip2_opt,
    ("image-to-text", "florence2"): prompted.florence2,
    ("image-to-text", "git"): multimodal.git,
    ("image-to-text", "vision-encoder-decoder"): multimodal.vit_gpt2,
    ("visual-question-answering", "vilt"): multimodal.vilt,
    ("visual-question-answering", "blip"): partial(
        multimodal.blip, head="BlipForQuestionAnswering"
    ),
    ("visual-question-answering", "blip-2"): prompted.blip2_t5,
    ("object-detection", "florence2"): prompted.florence2,
    ("document-question-answering", "layoutlm"): multimodal.layoutlm,
    ("document-question-answering", "donut-swin"): multimodal.donut,
    # Named after their classes.
    **{("image-text-to-text", one): vision.KINDS[vision.kind(one)] for one in VISION},
    ("zero-shot-audio-classification", "clap"): partial(
        test_zero_shot_audio_classification.clap, truncation="rand_trunc"
    ),
    **{("text-to-image", family): partial(diffusion.made, one) for family, one in DRAWING.items()},
    **{("image-to-image", family): partial(redrawing, one) for family, one in DRAWING.items()},
    ("unconditional-image-generation", "ddpm"): partial(diffusion.made, diffusion.ddpm),
    ("unconditional-image-generation", "ddim"): partial(diffusion.made, diffusion.ddim),
    **{
        ("automatic-speech-recognition", build.__name__): build
        for build in (
            recognition.whisper,
            recognition.wav2vec2,
            recognition.hubert,
            recognition.wavlm,
            recognition.moonshine,
            recognition.speech_to_text,
        )
    },
    ("automatic-speech-recognition", "wav2vec2-bert"): recognition.wav2vec2_bert,
    ("text-to-speech", "vits"): speech.vits,
    ("text-to-speech", "speecht5"): speech.speecht5,
    ("text-to-speech", "fastspeech2-conformer"): speech.fastspeech2,
    **{
        (pipeline, build.__name__): partial(build, image=pipeline == "image-to-video")
        for pipeline in ("text-to-video", "image-to-video")
        for build in (video.wan, video.ltx, video.cogvideox)
    },
}
"""Builders of families that no file of the task's own tests builds by the family's name."""
OTHER_NAMES = {"audio-spectrogram-transformer": "ast"}


def builder(task: str, family: str) -> Build:
    """Returns the function that saves a model of a family: the one with its name in the tests of
    its task.
    """
    if build := BUILDERS.get((task, family)):
        return build
    name = OTHER_NAMES.get(family, family).replace("-", "_")
    for path in sorted(TASK_FILES.glob(f"test_{task.replace('-', '_')}*.py")):
        module = importlib.import_module(f"tests.tasks.{path.stem}")
        if build := getattr(module, name, None):
            return build
    raise LookupError(f"docs/tasks.md claims {family} for {task}, but nothing here makes one")


TEXT = "my name is Clara and I live in Berkeley California"
LABELS = ["a cat", "a rather long dog", "music in london"]
WORDS = [["the", [0, 0, 9, 20]], ["name", [10, 5, 19, 25]], ["hot", [20, 10, 29, 30]]]
DRAWN = {"prompt": "a red circle", "num_inference_steps": 2, "seed": SEED}
FILMED = {**DRAWN, "size": "32x32", "seconds": 0.3}

BODIES: Mapping[str, Mapping[str, Any]] = {
    "token-classification": {"inputs": TEXT},
    "text-classification": {"inputs": TEXT, "top_k": 3},
    "zero-shot-classification": {"inputs": TEXT, "candidate_labels": LABELS},
    "fill-mask": {"inputs": "my [MASK] is clara", "top_k": 3},
    "question-answering": {"question": "who was here?", "context": "Maria was here, in Paris."},
    "table-question-answering": {
        "query": "where is the tower?",
        "table": {"city": ["paris", "london"], "tower": ["300", "310"]},
    },
    "translation": {"inputs": "the tower is in paris.", "max_new_tokens": 16},
    "summarization": {"inputs": "the tower is in paris.", "max_new_tokens": 16},
    "feature-extraction": {"inputs": TEXT},
    "embeddings": {"input": [TEXT, "hot"]},
    "similarity": {"source_sentence": TEXT, "sentences": ["my name is clara", "a"]},
    "moderation": {"input": [TEXT, "hot"]},
    "rerank": {"query": "where is the tower?", "documents": ["in paris", "clara lives here"]},
    "image-classification": {"inputs": PICTURE},
    "zero-shot-image-classification": {"image": PICTURE, "candidate_labels": LABELS},
    "image-segmentation": {"inputs": PICTURE, "threshold": 0.1, "mask_threshold": 0.1},
    "object-detection": {"inputs": PICTURE, "threshold": 0},
    "zero-shot-object-detection": {"image": PICTURE, "candidate_labels": LABELS, "threshold": 0},
    "depth-estimation": {"inputs": PICTURE, "return_values": True},
    "mask-generation": {
        "inputs": PICTURE,
        "points_per_crop": 4,
        "pred_iou_thresh": 0,
        "stability_score_thresh": 0,
    },
    "image-feature-extraction": {"inputs": PICTURE},
    "image-to-text": {"inputs": PICTURE, "max_new_tokens": 8},
    "video-classification": {"inputs": FILM},
    "audio-classification": {"inputs": SOUND},
    "zero-shot-audio-classification": {"audio": SOUND, "candidate_labels": LABELS},
    "visual-question-answering": {"image": PICTURE, "question": "what is the name"},
    "document-question-answering": {
        "image": PICTURE,
        "question": "the name",
        "word_boxes": WORDS,
    },
    "image-text-to-text": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": PICTURE}},
                    {"type": "text", "text": "what is it"},
                ],
            }
        ],
        "max_tokens": 8,
        "temperature": 0,
    },
    "text-to-image": {**DRAWN, "response_format": "b64_json"},
    "image-to-image": {
        **DRAWN,
        "image": PICTURE,
        "strength": 0.8,
        "response_format": "b64_json",
    },
    "unconditional-image-generation": {
        "num_inference_steps": 2,
        "seed": SEED,
        "response_format": "b64_json",
    },
    "automatic-speech-recognition": {"file": SOUND},
    "text-to-speech": {
        "input": "Does it ask for something?",
        "voice": "default",
        "response_format": "wav",
        "seed": SEED,
    },
    "text-to-video": FILMED,
    "image-to-video": {**FILMED, "input_reference": {"image_url": PICTURE}},
}
"""Request body for each task, and for pipelines without a task."""
CHANGES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    # Its results are classes only, without scores.
    ("image-segmentation", "segformer"): {"threshold": None, "mask_threshold": None},
    ("text-to-speech", "speecht5"): {"voice": "clara"},
    # Their labels form a single text of at most 24 tokens.
    **{
        ("zero-shot-object-detection", family): {"candidate_labels": ["a cat", "a dog"]}
        for family in ("grounding-dino", "mm-grounding-dino")
    },
    # Supports the positions of one size only.
    ("image-to-video", "cogvideox"): {"size": "64x48", "seconds": 1},
}


def body(task: str, family: str) -> dict[str, Any]:
    """Returns a request's body for a model of a family."""
    changed = {**BODIES[task], **CHANGES.get((task, family), {})}
    return {name: value for name, value in changed.items() if value is not None}
