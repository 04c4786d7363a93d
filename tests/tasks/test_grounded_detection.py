"""Grounding DINO: zero-shot object detection by one text of all labels, against transformers."""

import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from stoker.inspection.config import find_pipeline
from stoker.models.tasks.registry import PIPELINES
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.vision import SIZE

PIPELINE = "zero-shot-object-detection"
# The first and the last have the same shape.
IMAGES = [image(0), image(1, (40, 90)), image(2)]
LABELS = ["cat", "Tall dog", "a bird "]
MOST_TOKENS = 24
BERT_IDS = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, ".": 1012}
"""Token ids by which the model's code finds the end of a label."""


def tokenizer() -> Any:
    vocabulary = {**BERT_IDS, "?": 1029}
    letters = string.ascii_lowercase
    words = ["cat", "dog", "bird", "tall", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary |= {word: 1030 + number for number, word in enumerate(words)}
    free = iter(sorted(set(range(1030)) - set(vocabulary.values())))
    vocabulary |= {f"[unused{number}]": number for number in free}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )


def grounding_dino(folder: Path, name: str = "GroundingDino") -> None:
    words = tokenizer()
    text = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    backbone = transformers.SwinConfig(
        image_size=SIZE,
        patch_size=4,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        window_size=2,
        out_indices=[2, 3, 4],
    )
    config = getattr(transformers, f"{name}Config")(
        backbone_config=backbone,
        text_config=text,
        d_model=64,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=16,
        max_text_len=MOST_TOKENS,
    )
    model = getattr(transformers, f"{name}ForObjectDetection")(config)
    with torch.no_grad():
        # Without scaling, all scores would be similar and low.
        for weight in model.parameters():
            weight.mul_(2 if weight.dim() > 1 else 1)
        for head in model.class_embed:
            getattr(head, "bias", torch.zeros(())).zero_()
    model.save_pretrained(folder)
    size = {"shortest_edge": SIZE, "longest_edge": 2 * SIZE}
    transformers.GroundingDinoImageProcessorPil(size=size).save_pretrained(folder)
    words.save_pretrained(folder)


def mm_grounding_dino(folder: Path) -> None:
    grounding_dino(folder, "MMGroundingDino")


Expected = Callable[..., list[dict[str, Any]]]


@pytest.fixture(
    scope="module", params=[grounding_dino, mm_grounding_dino], ids=lambda builder: builder.__name__
)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Expected]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local(PIPELINE, folder)
    yield local, reference(folder)
    local.close()


def reference(folder: Path) -> Expected:
    """Returns a detector like transformers' own example, with boxes in whole pixels and the best
    first.
    """
    model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(folder).eval()
    processor: Any = transformers.GroundingDinoProcessor(
        transformers.AutoImageProcessor.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )

    def detect(picture: Any, labels: list[str], **thresholds: float) -> list[dict[str, Any]]:
        inputs = processor(images=picture, text=[labels], return_tensors="pt")
        with torch.inference_mode():
            outputs = model(**inputs)
        (result,) = processor.post_process_grounded_object_detection(
            outputs, **thresholds, target_sizes=[(picture.height, picture.width)]
        )
        names = ("xmin", "ymin", "xmax", "ymax")
        detections = [
            {
                "score": score.item(),
                "label": label,
                "box": dict(zip(names, box.int().tolist(), strict=True)),
            }
            # Without boxes, transformers returns one empty label.
            for score, label, box in zip(
                result["scores"], result["text_labels"], result["boxes"], strict=False
            )
        ]
        return sorted(detections, key=lambda detection: -detection["score"])

    return detect


def body(picture: Any, labels: Any = LABELS, **more: Any) -> dict[str, Any]:
    return {"image": image_media(picture), "candidate_labels": labels, **more}


class TestParity:
    @pytest.mark.parametrize("thresholds", [(0.25, 0.25), (0.4, 0.3), (0.0, 0.5)], ids=str)
    def test_alone(self, case: Any, thresholds: tuple[float, float]) -> None:
        local, detect = case
        detections: list[Any] = []
        for picture in IMAGES:
            threshold, named = thresholds
            answer = local.ask(body(picture, threshold=threshold, text_threshold=named))
            equal(answer, detect(picture, LABELS, threshold=threshold, text_threshold=named))
            detections += answer
        assert detections
        # The labels must differ, or this test would show little.
        assert len({detection["label"] for detection in detections}) > 1

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, detect = case
        label_lists = [LABELS, ["dog"], LABELS, ["a", "b", "c", "d", "e"]]
        bodies = [
            body(picture, labels, threshold=0, text_threshold=0.2)
            for picture in IMAGES
            for labels in label_lists
        ]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        expected = [
            detect(picture, labels, threshold=0, text_threshold=0.2)
            for picture in IMAGES
            for labels in label_lists
        ]
        for answer, detections in zip(answers, expected, strict=True):
            equal(answer, detections)

    def test_several_images(self, case: Any) -> None:
        local, detect = case
        images = [image_media(picture) for picture in IMAGES]
        answer = local.ask({"image": images, "candidate_labels": LABELS})
        # The tokens in a box's label must reach the same threshold as the box.
        expected = [detect(photo, LABELS, threshold=0.1, text_threshold=0.1) for photo in IMAGES]
        equal(answer, expected)

    def test_default_text_threshold(self, case: Any) -> None:
        local, detect = case
        equal(
            local.ask(body(IMAGES[0], threshold=0.3)),
            detect(IMAGES[0], LABELS, threshold=0.3, text_threshold=0.25),
        )

    def test_best_first(self, case: Any) -> None:
        local, detect = case
        expected = detect(IMAGES[0], LABELS, threshold=0, text_threshold=0)
        assert len(expected) == 16
        equal(local.ask(body(IMAGES[0], threshold=0, top_k=3)), expected[:3])

    def test_nothing_found(self, case: Any) -> None:
        local, _ = case
        assert local.ask(body(IMAGES[0], threshold=1)) == []


class TestRefused:
    def test_a_label_with_a_stop(self, case: Any) -> None:
        """A label with a period is rejected, because the processor would treat the labels as a
        batch of texts.
        """
        local, _ = case
        with pytest.raises(
            RefusedError, match=r"must not contain a '\.', which ends a label"
        ) as refused:
            local.ask(body(IMAGES[0], ["cat", "St. Bernard"]))
        assert refused.value.failure.param == "candidate_labels"

    def test_more_tokens_than_the_model_reads(self, case: Any) -> None:
        """Labels with more tokens than the model's limit are rejected. They would otherwise be
        truncated silently.
        """
        local, detect = case
        most = ["a"] * ((MOST_TOKENS - 2) // 2)
        equal(
            local.ask(body(IMAGES[0], most, threshold=0, text_threshold=0.5)),
            detect(IMAGES[0], most, threshold=0, text_threshold=0.5),
        )
        with pytest.raises(
            RefusedError, match=r"have 26 tokens in total; .* at most 24"
        ) as refused:
            local.ask(body(IMAGES[0], [*most, "b"]))
        assert refused.value.failure.param == "candidate_labels"

    def test_an_image_too_narrow_to_choose_places(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError, match="too narrow") as refused:
            local.ask({"image": [image_media(image(0, (300, 5)))], "candidate_labels": ["cat"]})
        assert refused.value.failure.param == "image[0]"

    def test_narrow_enough(self, case: Any) -> None:
        local, detect = case
        for size in ((300, 12), (9, 200)):
            picture = image(0, size)
            try:
                answer = local.ask(body(picture, threshold=0, text_threshold=0.2))
            except RefusedError as refused:
                assert "too narrow" in refused.failure.message
            else:
                equal(answer, detect(picture, LABELS, threshold=0, text_threshold=0.2))


@pytest.mark.parametrize("name", ["GroundingDino", "MMGroundingDino"])
def test_pushed_without_a_pipeline(name: str) -> None:
    assert find_pipeline(f"{name}ForObjectDetection", None, (), PIPELINES) == PIPELINE
