"""BLIP-2 and Florence-2: captions, answers and detections against their processors and models."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.inspection import inspect
from stoker.inspection.config import find_pipeline
from stoker.models.tasks.registry import PIPELINES
from tests.inspection.builders import FolderFiles
from tests.support.local import Local, RefusedError
from tests.support.media import image, image_media
from tests.support.prompted import POSITIONS, QUERIES, blip2_opt, blip2_t5, florence2

PICTURES = [image(0), image(1, (40, 90)), image(2, (32, 32)), image(3)]
MEDIA = [image_media(picture) for picture in PICTURES]
CAPTIONS, ANSWERS, DETECTIONS = "image-to-text", "visual-question-answering", "object-detection"

Generated = Callable[..., str]


def folder_of(build: Callable[[Path], None], factory: Any) -> Path:
    folder: Path = factory.mktemp(build.__name__)
    transformers.set_seed(0)
    build(folder)
    return folder


@pytest.fixture(scope="module", params=[blip2_opt, blip2_t5], ids=lambda builder: builder.__name__)
def blip2(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Path, Generated]:
    folder = folder_of(request.param, tmp_path_factory)
    model = transformers.Blip2ForConditionalGeneration.from_pretrained(folder).eval()
    processor: Any = transformers.Blip2Processor(
        transformers.AutoImageProcessor.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
        num_query_tokens=QUERIES,
    )

    def generated(picture: Any, text: str | None = None, **options: Any) -> str:
        inputs = processor(picture, text=text, return_tensors="pt")
        prompt_tokens = inputs["input_ids"].shape[1] if text is not None else QUERIES + 1
        most = POSITIONS - prompt_tokens + 1 if request.param is blip2_opt else 256
        with torch.inference_mode():
            tokens = model.generate(**inputs, **{"max_new_tokens": most, **options})
        skipped = prompt_tokens if request.param is blip2_opt else 1
        # The prompt is not part of the answer, although OPT returns it.
        assert (
            request.param is blip2_t5 or (tokens[0, :QUERIES] == model.config.image_token_id).all()
        )
        return processor.decode(tokens[0, skipped:], skip_special_tokens=True).strip()

    return folder, generated


@pytest.fixture(scope="module")
def captioner(blip2: Any) -> Iterator[tuple[Local, Generated]]:
    folder, generated = blip2
    local = Local(CAPTIONS, folder)
    yield local, generated
    local.close()


class TestBlip2Captions:
    def test_alone(self, captioner: Any) -> None:
        local, generated = captioner
        answers = [local.ask({"inputs": media}) for media in MEDIA]
        assert answers == [[{"generated_text": generated(picture)}] for picture in PICTURES]
        # The answers must differ, or this test would show little.
        assert len({str(answer) for answer in answers}) > 1

    def test_in_a_mixed_batch(self, captioner: Any) -> None:
        local, generated = captioner
        prompts = [None, "a photo of the tower", "the model", None, "a"]
        bodies = [
            {"inputs": MEDIA, "max_new_tokens": 9, **({} if prompt is None else {"prompt": prompt})}
            for prompt in prompts
        ]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer == [
                [{"generated_text": generated(picture, prompt, max_new_tokens=9)}]
                for picture in PICTURES
            ]

    @pytest.mark.parametrize(
        "options",
        [{"max_new_tokens": 1}, {"num_beams": 3, "max_new_tokens": 9}, {"min_new_tokens": 9}],
        ids=str,
    )
    def test_parameters(self, captioner: Any, options: dict[str, Any]) -> None:
        local, generated = captioner
        answer = local.ask({"inputs": MEDIA[:2], "generate_kwargs": options})
        assert answer == [
            [{"generated_text": generated(picture, **options)}] for picture in PICTURES[:2]
        ]

    def test_counts_what_was_generated(self, captioner: Any) -> None:
        local, _ = captioner
        (sample,) = local.stages.preprocess(MEDIA[0], {"max_new_tokens": 5, "min_new_tokens": 5})
        (output,) = local.forward([sample])
        counts = local.stages.counts(output)
        assert counts == {"input_tokens": QUERIES + 1, "output_tokens": 5}

    def test_prompt_too_long(self, captioner: Any) -> None:
        local, _ = captioner
        with pytest.raises(RefusedError, match="with an image, this model takes") as refused:
            local.ask({"inputs": MEDIA[0], "prompt": "a " * 200})
        assert refused.value.failure.param == "prompt"

    def test_probe(self, captioner: Any) -> None:
        local, _ = captioner
        assert len(local.forward([local.stages.probe(16)] * 2)) == 2


@pytest.fixture(scope="module")
def answerer(blip2: Any) -> Iterator[tuple[Local, Generated]]:
    folder, generated = blip2
    local = Local(ANSWERS, folder)
    yield local, generated
    local.close()


class TestBlip2Answers:
    QUESTIONS = ("what is the name", "where is the tower", "Question: who lives in paris? Answer:")

    def test_alone_and_together(self, answerer: Any) -> None:
        local, generated = answerer
        bodies = [{"image": MEDIA, "question": question} for question in self.QUESTIONS]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        assert answers == [local.ask(body) for body in bodies]
        for question, answer in zip(self.QUESTIONS, answers, strict=True):
            prompt = question if "Question" in question else f"Question: {question} Answer:"
            assert answer == [
                [{"label": generated(picture, prompt), "score": 1.0}] for picture in PICTURES
            ]

    def test_question_too_long(self, answerer: Any) -> None:
        local, _ = answerer
        with pytest.raises(RefusedError, match="with an image") as refused:
            local.ask({"image": MEDIA[0], "question": ["a", "a " * 200]})
        assert refused.value.failure.param == "question[1]"


@pytest.fixture(scope="module")
def florence(tmp_path_factory: Any) -> tuple[Path, Any, Any]:
    folder = folder_of(florence2, tmp_path_factory)
    model = transformers.Florence2ForConditionalGeneration.from_pretrained(folder).eval()
    return folder, model, transformers.Florence2Processor.from_pretrained(folder)


def written(model: Any, processor: Any, picture: Any, prompt: str, **options: Any) -> str:
    """Generates text like transformers' own example, before the text is parsed."""
    inputs = processor(text=prompt, images=picture, return_tensors="pt")
    with torch.inference_mode():
        tokens = model.generate(**inputs, **{"max_new_tokens": POSITIONS, **options})
    return processor.batch_decode(tokens, skip_special_tokens=False)[0]


@pytest.fixture(scope="module")
def florence_texts(florence: Any) -> Iterator[tuple[Local, Generated]]:
    folder, model, processor = florence
    local = Local(CAPTIONS, folder)

    def generated(picture: Any, prompt: str = "<CAPTION>", **options: Any) -> str:
        text = written(model, processor, picture, prompt, **options)
        read = processor.post_process_generation(text, task="<CAPTION>")["<CAPTION>"]
        return read.replace("<pad>", "").strip()

    yield local, generated
    local.close()


class TestFlorenceTexts:
    PROMPTS = (
        "<DETAILED_CAPTION>",
        "<OCR>",
        "<CAPTION_TO_PHRASE_GROUNDING>the tower in paris",
        "<REGION_TO_CATEGORY><loc_52><loc_332><loc_932><loc_774>",
        "what is the name",
    )

    def test_alone(self, florence_texts: Any) -> None:
        local, generated = florence_texts
        answers = [local.ask({"inputs": media}) for media in MEDIA]
        assert answers == [[{"generated_text": generated(picture)}] for picture in PICTURES]
        assert len({str(answer) for answer in answers}) > 1

    def test_in_a_mixed_batch(self, florence_texts: Any) -> None:
        local, generated = florence_texts
        bodies = [{"inputs": MEDIA, "prompt": prompt} for prompt in self.PROMPTS]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert max(local.batches) > 1
        for prompt, answer in zip(self.PROMPTS, answers, strict=True):
            assert answer == [
                [{"generated_text": generated(picture, prompt)}] for picture in PICTURES
            ]
        assert "<loc_" in str(answers)

    def test_parameters(self, florence_texts: Any) -> None:
        local, generated = florence_texts
        answer = local.ask({"inputs": MEDIA[0], "num_beams": 1, "max_new_tokens": 4})
        assert answer == [{"generated_text": generated(PICTURES[0], num_beams=1, max_new_tokens=4)}]

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ("<OCR> of the tower", "must be <OCR> and nothing else"),
            ("the tower " * 40, "this model takes at most 64"),
        ],
        ids=["task", "length"],
    )
    def test_refused(self, florence_texts: Any, prompt: str, message: str) -> None:
        local, _ = florence_texts
        with pytest.raises(RefusedError, match=message) as refused:
            local.ask({"inputs": MEDIA[0], "prompt": prompt})
        assert refused.value.failure.param == "prompt"

    def test_probe(self, florence_texts: Any) -> None:
        local, _ = florence_texts
        assert len(local.forward([local.stages.probe(16)] * 2)) == 2


@pytest.fixture(scope="module")
def florence_detections(florence: Any) -> Iterator[tuple[Local, Callable[[Any], Any]]]:
    folder, model, processor = florence
    local = Local(DETECTIONS, folder)

    def detections(picture: Any) -> list[dict[str, Any]]:
        text = written(model, processor, picture, "<OD>")
        parsed = processor.post_process_generation(text, task="<OD>", image_size=picture.size)
        names = ("xmin", "ymin", "xmax", "ymax")
        return [
            {"score": 1.0, "label": label, "box": dict(zip(names, box, strict=True))}
            for label, box in zip(parsed["<OD>"]["labels"], parsed["<OD>"]["bboxes"], strict=True)
        ]

    yield local, detections
    local.close()


class TestFlorenceDetections:
    def test_alone_and_together(self, florence_detections: Any) -> None:
        local, detections = florence_detections
        expected = [detections(picture) for picture in PICTURES]
        assert [local.ask({"inputs": media}) for media in MEDIA] == expected
        local.batches.clear()
        assert local.ask_together([{"inputs": MEDIA}] * 2) == [expected] * 2
        assert max(local.batches) > 1
        assert any(expected)

    def test_nothing_scores_above_1(self, florence_detections: Any) -> None:
        local, _ = florence_detections
        assert local.ask({"inputs": MEDIA[0], "threshold": 1}) == []

    def test_reads_boxes(self, florence_detections: Any) -> None:
        local, _ = florence_detections
        text = "</s><s>tower<loc_0><loc_250><loc_500><loc_999>river<loc_1><loc_2><loc_3><loc_4></s>"
        tokens = local.stages.tokenizer(text, add_special_tokens=False)["input_ids"]
        output = {"sequences": torch.tensor([tokens]), "size": (200, 100)}
        assert local.stages.postprocess([output], {"threshold": 0.5}) == [
            {
                "score": 1.0,
                "label": "tower",
                "box": {"xmin": 0, "ymin": 25, "xmax": 100, "ymax": 99},
            },
            {"score": 1.0, "label": "river", "box": {"xmin": 0, "ymin": 0, "xmax": 0, "ymax": 0}},
        ]


class TestPush:
    @pytest.mark.parametrize("build", [blip2_opt, florence2], ids=lambda builder: builder.__name__)
    def test_without_a_pipeline(self, build: Any, tmp_path: Path) -> None:
        build(tmp_path)
        assert inspect(FolderFiles(tmp_path), None, PIPELINES).pipeline == CAPTIONS

    @pytest.mark.parametrize(
        ("architecture", "pipeline"),
        [
            ("Blip2ForConditionalGeneration", ANSWERS),
            ("Florence2ForConditionalGeneration", DETECTIONS),
        ],
    )
    def test_on_request(self, architecture: str, pipeline: str) -> None:
        assert find_pipeline(architecture, pipeline, (), PIPELINES) == pipeline


def test_other_models_take_no_prompt(tmp_path: Path) -> None:
    from tests.support.multimodal import vit_gpt2

    vit_gpt2(tmp_path)
    local = Local(CAPTIONS, tmp_path)
    with pytest.raises(RefusedError, match="takes no prompt") as refused:
        local.ask({"inputs": MEDIA[0], "prompt": "a photo of"})
    assert refused.value.failure.param == "prompt"
    local.close()
