"""LayoutLMv3 against its own processor and the model called directly."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import pre_tokenizers

from stoker.inspection import inspect
from stoker.media.media import Media
from stoker.models.tasks.registry import PIPELINES
from tests.inspection.builders import FolderFiles
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.multimodal import SMALL

PIPELINE = "document-question-answering"
SIDE, POSITIONS = 32, 96
PICTURES = [image(seed) for seed in range(3)]
MEDIA = [image_media(picture) for picture in PICTURES]
QUESTIONS = ["the name", "my team lives", "a"]


def layoutlmv3(folder: Path) -> None:
    """Saves a model that tokenizes letters and divides an image into four patches."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters]
    words = transformers.LayoutLMv3Tokenizer(
        vocab={name: at for at, name in enumerate(names)}, merges=[], model_max_length=POSITIONS
    )
    config = transformers.LayoutLMv3Config(
        **SMALL,
        vocab_size=len(names),
        max_position_embeddings=POSITIONS + 2,
        coordinate_size=5,
        shape_size=6,
        input_size=SIDE,
        patch_size=16,
        initializer_range=0.3,
        type_vocab_size=1,
    )
    transformers.LayoutLMv3ForQuestionAnswering(config).save_pretrained(folder)
    # As in published models, the processor would read the words itself, with a package that is not
    # installed.
    transformers.LayoutLMv3ImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, apply_ocr=True
    ).save_pretrained(folder)
    words.save_pretrained(folder)


def page(words: str, left: int = 0) -> list[Any]:
    return [
        [word, [left + 10 * i, 5 * i, left + 10 * i + 9, 5 * i + 20]]
        for i, word in enumerate(words.split())
    ]


PAGES = [
    page("my name is clara and i live in berkeley"),
    page("the team keeps a hot model there", 300),
    page("california"),
]


@pytest.fixture(scope="module")
def case(tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    folder: Path = tmp_path_factory.mktemp("layoutlmv3")
    transformers.set_seed(0)
    layoutlmv3(folder)
    local = Local(PIPELINE, folder)
    model = transformers.LayoutLMv3ForQuestionAnswering.from_pretrained(folder).eval()
    pixels: Any = transformers.AutoImageProcessor.from_pretrained(folder, apply_ocr=False)
    words = transformers.LayoutLMv3Tokenizer.from_pretrained(folder)
    processor = transformers.LayoutLMv3Processor(pixels, words)

    def answers(index: int, question: str = "", top_k: int = 1) -> list[dict[str, Any]]:
        """Returns the best of all spans of at most 15 tokens, by the product of both
        probabilities.
        """
        page_words = [word for word, _ in PAGES[index]]
        inputs = processor(
            PICTURES[index],
            question or QUESTIONS[index],
            page_words,
            boxes=[box for _, box in PAGES[index]],
            return_tensors="pt",
        )
        with torch.inference_mode():
            outputs = model(**inputs)
        sides, ids = inputs.sequence_ids(0), inputs.word_ids(0)
        # The positions after the text's tokens are image patches. The first token, <s>, is
        # included.
        on_page = torch.tensor([side == 1 or at == 0 for at, side in enumerate(sides)])
        start, end = (
            logits[0, : len(sides)].masked_fill(~on_page, -10000.0).softmax(-1)
            for logits in (outputs.start_logits, outputs.end_logits)
        )
        spans = [
            (float(start[first] * end[last]), ids[first], ids[last])
            for first in range(1, len(sides))
            for last in range(first, min(first + 15, len(sides)))
            if on_page[first] and on_page[last]
        ]
        best = sorted(spans, reverse=True)[:top_k]
        return [
            {
                "score": score,
                "answer": " ".join(page_words[first : last + 1]),
                "start": first,
                "end": last,
            }
            for score, first, last in best
        ]

    yield local, answers
    local.close()


def asked(index: int, **parameters: Any) -> dict[str, Any]:
    return {
        "image": MEDIA[index],
        "question": QUESTIONS[index],
        "word_boxes": PAGES[index],
        **parameters,
    }


def test_alone(case: Any) -> None:
    local, answers = case
    for index in range(3):
        equal(local.ask(asked(index)), answers(index))
        equal(local.ask(asked(index, top_k=4)), answers(index, top_k=4))


def test_in_a_mixed_batch(case: Any) -> None:
    local, answers = case
    many = {"image": MEDIA, "question": QUESTIONS, "word_boxes": PAGES}
    local.batches.clear()
    for answer in local.ask_together([many] * 3):
        equal(answer, [answers(index) for index in range(3)])
    assert max(local.batches) > 1


def test_it_sees_the_image(case: Any) -> None:
    local, answers = case
    other = local.ask(asked(0) | {"image": MEDIA[1]})
    assert abs(other[0]["score"] - answers(0)[0]["score"]) > 1e-4


def test_it_sees_the_places(case: Any) -> None:
    local, answers = case
    moved = [[word, [500, 600, 510, 650]] for word, _ in PAGES[0]]
    other = local.ask(asked(0) | {"word_boxes": moved})
    assert abs(other[0]["score"] - answers(0)[0]["score"]) > 1e-4


def test_a_page_in_parts(case: Any) -> None:
    """A long page is read in parts. The best answer comes from one part, so it is no longer than
    the model's input.
    """
    local, _ = case
    long = page("my name is clara and i live in berkeley " * 4)
    (answer,) = local.ask(asked(0) | {"word_boxes": long})
    assert answer["answer"] == " ".join(
        word for word, _ in long[answer["start"] : answer["end"] + 1]
    )


def test_refusals(case: Any) -> None:
    local, _ = case
    with pytest.raises(RefusedError, match="Send the page's words") as refused:
        local.ask({"image": MEDIA[0], "question": "a"})
    assert refused.value.failure.param == "word_boxes"
    with pytest.raises(RefusedError, match="which leaves none of the 96") as refused:
        local.ask(asked(0, question="a " * 60))
    assert refused.value.failure.param == "question"
    with pytest.raises(RefusedError) as refused:
        local.ask(asked(0, image=Media("image", content=b"no image")))
    assert refused.value.failure.code == "invalid_media"


def test_probe(case: Any) -> None:
    local, _ = case
    assert len(local.forward([local.stages.probe(32)] * 2)) == 2


def test_pushed_without_a_pipeline(tmp_path: Path) -> None:
    layoutlmv3(tmp_path)
    assert inspect(FolderFiles(tmp_path), None, PIPELINES).pipeline == PIPELINE


def test_a_tokenizer_without_a_length(tmp_path: Path) -> None:
    """A tokenizer without a length works, although transformers assigns a length that no tokenizer
    accepts.
    """
    layoutlmv3(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in settings.items() if k != "model_max_length"}))
    local = Local(PIPELINE, tmp_path)
    try:
        assert local.stages.probe(21)
        assert local.ask({"image": MEDIA[0], "question": "a", "word_boxes": page("the name is a")})
    finally:
        local.close()
