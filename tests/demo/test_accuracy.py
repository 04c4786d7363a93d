"""The demo models are accurate over HTTP, on held-out examples of the scripts that trained them."""

import base64
import io
import wave
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stoker.demo.examples import EXAMPLES
from stoker.models.tasks.registry import TASKS
from tests.support.media import png
from tests.support.server import Server
from tools.demo_models import (
    clip,
    detector,
    digits,
    image_encoder,
    motion,
    nli,
    reader,
    reranker,
    scenes,
    segmenter,
    speech,
    summarizer,
    transcriber,
    translator,
    waveforms,
)
from tools.demo_models.example_media import SPOKEN

COUNT = 100
BATCH = 50
"""Number of inputs per request."""


@pytest.fixture
def ask(demo: Server, state: Any):
    """Returns a function that sends a body to the demo model of a task."""

    def ask(task: str, **body: Any) -> Any:
        key = state["deployments"][EXAMPLES[task].model]["key"]
        with demo.client(key) as client:
            answer = client.post(TASKS[task].path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

    return ask


@pytest.fixture
def ask_all(ask: Any):
    """Returns a function that sends many inputs in batches and returns their results."""

    def ask_all(task: str, inputs: Sequence[Any], field: str = "inputs", **rest: Any) -> list[Any]:
        parts = [inputs[start : start + BATCH] for start in range(0, len(inputs), BATCH)]
        return [result for part in parts for result in ask(task, **{field: list(part)}, **rest)]

    return ask_all


def pictures(images: Sequence[Image.Image]) -> list[str]:
    return [encoded(png(image)) for image in images]


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def share(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    assert len(found) == len(wanted)
    return float(np.mean([answer == other for answer, other in zip(found, wanted, strict=True)]))


def test_digits(ask_all: Any) -> None:
    images, labels = zip(*digits.held_out(), strict=True)
    answers = ask_all("image-classification", pictures(images), top_k=1)
    assert share([answer[0]["label"] for answer in answers], labels) >= 0.95


def test_zero_shot_images(ask_all: Any) -> None:
    images, names = zip(*clip.held_out(COUNT), strict=True)
    labels = [f"a {name}" for name in clip.NAMES]
    answers = ask_all(
        "zero-shot-image-classification", pictures(images), "image", candidate_labels=labels
    )
    assert share([answer[0]["label"] for answer in answers], [f"a {name}" for name in names]) >= 0.9


def test_drawings(demo: Server, state: Any, ask_all: Any) -> None:
    """Generated images match their prompt, as judged by the demo's classifier."""
    labels = [f"a {name}" for name in clip.NAMES]
    images: list[str] = []
    with demo.client(state["deployments"]["tiny-draw"]["key"]) as client:
        for seed in range(10):
            body = {"prompt": "a red circle", "seed": seed, "num_inference_steps": 20}
            body |= {"response_format": "b64_json"}
            answer = client.post("/v1/images/generations", json=body).raise_for_status().json()
            images.append(answer["data"][0]["b64_json"])
    assert len(set(images)) == len(images)
    answers = ask_all("zero-shot-image-classification", images, "image", candidate_labels=labels)
    assert share([answer[0]["label"] for answer in answers], ["a red circle"] * 10) >= 0.9


def test_spoken_digits(demo: Server, state: Any) -> None:
    """Digits of speakers that are not in the training data are transcribed. A clip's name contains
    its language and digits.
    """
    answers: list[str] = []
    expected: list[str] = []
    with demo.client(state["deployments"]["tiny-transcriber"]["key"]) as client:
        for clip_file in sorted(SPOKEN.glob("*.ogg")):
            language, digits = clip_file.stem.split("-")
            expected.append(" ".join(speech.WORDS[language][int(digit)] for digit in digits))
            files = {"file": (clip_file.name, clip_file.read_bytes(), "audio/ogg")}
            answer = client.post("/v1/audio/transcriptions", files=files).raise_for_status()
            answers.append(answer.json()["text"])
    assert len(answers) >= 20
    assert transcriber.words_right(answers, expected) >= 0.9, list(
        zip(answers, expected, strict=True)
    )


def test_segments(ask_all: Any) -> None:
    images, truth = zip(*segmenter.held_out(COUNT), strict=True)
    numbers = {name: number for number, name in segmenter.LABELS.items()}
    label_maps: list[Any] = []
    for answer in ask_all("image-segmentation", pictures(images)):
        label_map = np.zeros(truth[0].shape, np.uint8)
        for mask, label in zip(answer["masks"], answer["labels"], strict=True):
            picture = Image.open(io.BytesIO(base64.b64decode(mask)))
            label_map[np.asarray(picture) == 255] = numbers[label]
        label_maps.append(label_map)
    assert np.mean(segmenter.ious(label_maps, truth)) >= 0.8


def test_detections(ask_all: Any) -> None:
    images, truth = zip(*detector.held_out(COUNT), strict=True)
    answers = ask_all("object-detection", pictures(images), threshold=0.5)
    detections = [
        [
            detector.Found(
                detection["label"],
                detection["score"],
                tuple(detection["box"][side] for side in ("xmin", "ymin", "xmax", "ymax")),
            )
            for detection in answer
        ]
        for answer in answers
    ]
    hits = [hit for _, hit in detector.matches(detections, truth)]
    assert sum(hits) / sum(map(len, truth)) >= 0.8
    assert sum(hits) / len(hits) >= 0.8


def test_image_features(ask_all: Any) -> None:
    images, names = zip(*image_encoder.held_out(200), strict=True)
    vectors = np.array(ask_all("image-feature-extraction", pictures(images)))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = vectors @ vectors.T
    np.fill_diagonal(alike, -1)
    assert share([names[at] for at in alike.argmax(1)], names) >= 0.85


def test_sounds(ask_all: Any) -> None:
    samples, labels = zip(*waveforms.held_out(COUNT), strict=True)
    answers = ask_all("audio-classification", [encoded(wav(sample)) for sample in samples], top_k=1)
    assert share([answer[0]["label"] for answer in answers], labels) >= 0.95


def wav(samples: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams((1, 2, waveforms.RATE, len(samples), "NONE", ""))
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def test_videos(ask_all: Any) -> None:
    clips, labels = zip(*motion.held_out(COUNT), strict=True)
    files = [encoded(motion.encode(clip)) for clip in clips]
    answers = ask_all("video-classification", files, top_k=1)
    assert share([answer[0]["label"] for answer in answers], labels) >= 0.95


def test_ranking(ask: Any) -> None:
    queries = reranker.held_out(40)
    first = [
        ask("rerank", query=query.text, documents=query.documents, top_n=1)["results"][0]["index"]
        for query in queries
    ]
    assert share(first, [query.right for query in queries]) >= 0.9


def test_zero_shot_texts(ask: Any) -> None:
    questions = nli.held_out(40, names=True)
    answers = [
        ask("zero-shot-classification", inputs=item.text, candidate_labels=item.candidates)
        for item in questions
    ]
    assert share([item["labels"][0] for item in answers], [item.right for item in questions]) >= 0.9


def test_extractive_answers(ask: Any) -> None:
    examples = reader.held_out(COUNT)
    answers = ask(
        "question-answering",
        question=[item.question for item in examples],
        context=[item.passage for item in examples],
    )
    assert share([item["answer"] for item in answers], [item.answer for item in examples]) >= 0.8


def test_visual_answers(ask: Any) -> None:
    examples = scenes.held_out_questions(COUNT)
    answers = ask(
        "visual-question-answering",
        image=pictures([item.image for item in examples]),
        question=[item.question for item in examples],
        top_k=1,
    )
    assert share([item[0]["label"] for item in answers], [item.answer for item in examples]) >= 0.9


def test_captions(ask_all: Any) -> None:
    images, captions = zip(*scenes.held_out_captions(COUNT), strict=True)
    answers = ask_all("image-to-text", pictures(images))
    assert share([answer[0]["generated_text"] for answer in answers], captions) >= 0.9


@pytest.mark.parametrize(
    ("task", "module", "field"),
    [
        ("translation", translator, "translation_text"),
        ("summarization", summarizer, "summary_text"),
    ],
)
def test_written(ask_all: Any, task: str, module: Any, field: str) -> None:
    texts, targets = zip(*module.held_out(COUNT), strict=True)
    answers = ask_all(task, texts)
    assert share([answer[0][field] for answer in answers], targets) >= 0.9
