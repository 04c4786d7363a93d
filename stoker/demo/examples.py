"""An example call for every task endpoint, answered by the demo models. The docs show all of
them.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MEDIA = "stoker/demo/media"
"""Folder in a checkout with the media files of the calls."""


@dataclass(frozen=True, kw_only=True)
class ExampleRequest:
    """An example request."""

    model: str
    body: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps a field to the name of a file in `MEDIA`. With files, the request is a form."""
    target: str = ""
    """File for the response. If empty, the response is shown."""

    def curl(self, path: str, base_url: str, key: str) -> str:
        """Returns the call as a shell command."""
        lines = [f"curl {base_url}{path}", f'-H "Authorization: Bearer {key}"']
        if self.files:
            fields = {"model": self.model, **self.body}
            lines += [f"-F {name}=@{MEDIA}/{file}" for name, file in self.files.items()]
            lines += [f"-F {shlex.quote(f'{k}={_field(v)}')}" for k, v in fields.items()]
        else:
            body = json.dumps({"model": self.model, **self.body}, ensure_ascii=False)
            lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(body)}"]
        if self.target:
            lines.append(f"-o {self.target}")
        return " \\\n  ".join(lines)


def _field(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


EXAMPLES: Mapping[str, ExampleRequest] = {
    "token-classification": ExampleRequest(
        model="tiny-ner",
        body={
            "inputs": "Maria Schmidt works at Siemens in Berlin.",
            "aggregation_strategy": "simple",
        },
    ),
    "text-classification": ExampleRequest(
        model="tiny-sentiment",
        body={"inputs": "The room was clean and the staff were not rude at all."},
    ),
    "zero-shot-classification": ExampleRequest(
        model="tiny-nli",
        body={
            "inputs": "The striker scored a goal.",
            "candidate_labels": ["sports", "cooking"],
        },
    ),
    "fill-mask": ExampleRequest(
        model="tiny-fill-mask", body={"inputs": "The capital of France is [MASK].", "top_k": 3}
    ),
    "question-answering": ExampleRequest(
        model="tiny-qa",
        body={
            "question": "Where does Anna work?",
            "context": "Anna works at the bakery. Ben lives in Rome.",
        },
    ),
    "table-question-answering": ExampleRequest(
        model="random-table-qa",
        body={
            "query": "How many trees are in Berlin?",
            "table": {"City": ["Paris", "Berlin"], "Trees": ["1200", "900"]},
        },
    ),
    "translation": ExampleRequest(
        model="tiny-translator", body={"inputs": "Today the old man buys a red hat."}
    ),
    "summarization": ExampleRequest(
        model="tiny-summarizer",
        body={"inputs": "Nobody was hurt. On Monday the zoo of Berlin opened a new bridge."},
    ),
    "feature-extraction": ExampleRequest(
        model="tiny-encoder", body={"inputs": "How do I bake bread?"}
    ),
    "moderation": ExampleRequest(
        model="tiny-sentiment", body={"input": "The food was not good at all."}
    ),
    "similarity": ExampleRequest(
        model="tiny-encoder",
        body={
            "source_sentence": "How do I bake bread?",
            "sentences": ["What is the way to bake bread?", "The train is late."],
        },
    ),
    "embeddings": ExampleRequest(
        model="tiny-encoder",
        body={"input": ["How do I bake bread?", "The train is late."]},
    ),
    "rerank": ExampleRequest(
        model="tiny-reranker",
        body={
            "query": "Will it rain tomorrow?",
            "documents": ["The train is late.", "Do I need an umbrella tomorrow?"],
            "return_documents": True,
        },
    ),
    "image-classification": ExampleRequest(
        model="tiny-digits", body={"top_k": 2}, files={"inputs": "seven.png"}
    ),
    "zero-shot-image-classification": ExampleRequest(
        model="tiny-clip",
        body={"candidate_labels": ["a red circle", "a blue square", "a green star"]},
        files={"image": "circle.png"},
    ),
    "image-segmentation": ExampleRequest(
        model="tiny-segmenter", body={}, files={"inputs": "scene.png"}
    ),
    "object-detection": ExampleRequest(
        model="tiny-detector", body={"threshold": 0.5}, files={"inputs": "scene.png"}
    ),
    "zero-shot-object-detection": ExampleRequest(
        model="random-detection-zero-shot",
        body={"candidate_labels": ["a red circle"], "threshold": 0, "top_k": 2},
        files={"image": "scene.png"},
    ),
    "depth-estimation": ExampleRequest(
        model="random-depth", body={}, files={"inputs": "circle.png"}
    ),
    "mask-generation": ExampleRequest(
        model="random-masks",
        body={"points_per_crop": 8, "pred_iou_thresh": 0, "stability_score_thresh": 0},
        files={"inputs": "circle.png"},
    ),
    "image-feature-extraction": ExampleRequest(
        model="tiny-image-encoder", body={}, files={"inputs": "circle.png"}
    ),
    "image-to-text": ExampleRequest(
        model="tiny-captioner", body={"max_new_tokens": 12}, files={"inputs": "scene.png"}
    ),
    "video-classification": ExampleRequest(
        model="tiny-video", body={"top_k": 2}, files={"inputs": "moving.mp4"}
    ),
    "audio-classification": ExampleRequest(
        model="tiny-sounds", body={"top_k": 2}, files={"inputs": "siren.wav"}
    ),
    "zero-shot-audio-classification": ExampleRequest(
        model="random-audio-zero-shot",
        body={"candidate_labels": ["a siren", "a bell"]},
        files={"audio": "siren.wav"},
    ),
    "visual-question-answering": ExampleRequest(
        model="tiny-vqa",
        body={"question": "What colour is the circle?", "top_k": 2},
        files={"image": "scene.png"},
    ),
    "document-question-answering": ExampleRequest(
        model="random-document-qa",
        body={
            "question": "What is the invoice number?",
            "word_boxes": [["Invoice", [40, 30, 180, 60]], ["us-001", [200, 30, 290, 60]]],
        },
        files={"image": "scene.png"},
    ),
}
"""Maps a task to its example call."""

MEDIA_CALLS: Mapping[str, ExampleRequest] = {
    "/v1/images/generations": ExampleRequest(
        model="tiny-draw",
        body={"prompt": "a red circle", "num_inference_steps": 20, "seed": 1},
    ),
    "/v1/images/edits": ExampleRequest(
        model="tiny-draw",
        body={"prompt": "a blue square", "num_inference_steps": 20, "strength": 0.8},
        files={"image": "circle.png"},
    ),
    "/v1/audio/transcriptions": ExampleRequest(
        model="tiny-transcriber", body={}, files={"file": "seven-three-one.wav"}
    ),
    "/v1/audio/translations": ExampleRequest(
        model="tiny-transcriber", body={}, files={"file": "seven-three-one.wav"}
    ),
    "/v1/audio/speech": ExampleRequest(
        model="random-speech",
        body={"input": "The train to Berlin leaves at nine.", "voice": "default"},
        target="speech.mp3",
    ),
    "/v1/videos": ExampleRequest(
        model="random-video-maker",
        body={"prompt": "a red circle moves to the right", "num_inference_steps": 4},
    ),
}
"""Maps the path of an endpoint for media to its example call."""

SHOWN = (
    "token-classification",
    "fill-mask",
    "text-classification",
    "feature-extraction",
    "image-classification",
    "visual-question-answering",
    "audio-classification",
)
"""Tasks with calls that `stoker demo` prints. docs/tasks.md has all of them."""
