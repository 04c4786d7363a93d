"""Prompts with images, and the answers of each kind of vision model, compared with transformers."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from stoker.base.media_limits import MediaLimits
from stoker.media.media import Media
from stoker.models.chat.prompts.prompts import Prepared, Prompts
from stoker.models.llm import scheduler as scheduling
from stoker.models.llm.checkpoint import UnservedModelError, architecture
from stoker.models.llm.engines.openvino import OpenVinoRunner
from stoker.models.llm.engines.paged.captured import EagerCapturing
from stoker.models.llm.engines.paged.runner import PagedRunner
from stoker.models.llm.engines.torch import TorchRunner, load
from stoker.models.llm.model_types import VISION
from stoker.models.llm.runner import Runner
from stoker.models.llm.scheduler import Scheduler
from stoker.models.stages.base import InputError
from stoker.wire.generation_request import Conversation, Sampling, text_part
from tests.llm.support import VOCABULARY, Answers, foretold, measured, submission
from tests.llm.vision import KINDS, POSITIONS, TEMPLATE, generated, llava, messages
from tests.support.media import image, png

library: Any = transformers
COUNT = 8
FIELD = "messages[0].content[{}].image_url"


@dataclass
class Served:
    folder: Path
    prompts: Prompts
    model: Any

    def prepared(self, text: str, *pictures: Image.Image) -> Prepared:
        return self.prompts.prepare(talk(text, *map(png, pictures)), "messages")

    @cached_property
    def paged_model(self) -> Any:
        """A separate copy of the model, because paged runners change its attention."""
        return load(self.folder, torch.float32, torch.device("cpu"), architecture(self.folder))

    def expected(self, prepared: Prepared, count: int = COUNT) -> list[int]:
        features = {
            "input_ids": torch.tensor([prepared.tokens]),
            "attention_mask": torch.ones(1, len(prepared.tokens), dtype=torch.long),
            **(prepared.media or {}),
        }
        return generated(self.model, features, count)


def talk(text: str, *files: bytes) -> Conversation:
    """Returns a question about images, as the gateway sends it."""
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": Media("image", content=content), "field": FIELD.format(number)}
        for number, content in enumerate(files)
    ]
    return Conversation(messages=[{"role": "user", "content": [*parts, text_part(text)]}])


def prompts_of(folder: Path, **limits: int) -> Prompts:
    return Prompts(
        folder, max_length=POSITIONS, vocabulary=VOCABULARY, images=MediaLimits(**limits)
    )


@pytest.fixture(scope="module", params=sorted(KINDS))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    transformers.set_seed(1)
    folder = KINDS[request.param](tmp_path_factory.mktemp(request.param))
    model = load(folder, torch.float32, torch.device("cpu"), architecture(folder))
    return Served(folder, prompts_of(folder), model)


Make = Callable[..., Runner]


@pytest.fixture(params=["torch", "paged", "captured"])
def make(request: pytest.FixtureRequest, served: Served) -> Iterator[Make]:
    """Yields a function that makes a runner of the model with a cache of some size."""
    paged: list[PagedRunner] = []

    def made(cache_bytes: int = 1 << 20) -> Runner:
        if request.param == "torch":
            return TorchRunner(served.model, threads=1, cache_bytes=cache_bytes)
        capturing = EagerCapturing() if request.param == "captured" else None
        runner = PagedRunner(
            served.paged_model, threads=1, cache_bytes=cache_bytes, capturing=capturing
        )
        paged.append(runner)
        while runner.rest():
            pass
        return runner

    yield made
    for runner in paged:
        runner.restore()


@pytest.fixture(scope="module")
def prepared(served: Served) -> list[Prepared]:
    """Returns texts and images of many sizes. The first two differ only in the contents of their
    images.
    """
    return [
        served.prepared("hi", image(1)),
        served.prepared("hi", image(2)),
        served.prepared("what is the river in Paris"),
        served.prepared("two of them", image(3, (100, 60)), image(4, (33, 80))),
        served.prepared("x"),
        served.prepared("one that is larger", image(5, (64, 64))),
    ]


@pytest.fixture(scope="module")
def expected(served: Served, prepared: list[Prepared]) -> list[list[int]]:
    return [served.expected(prompt) for prompt in prepared]


def wishes(count: int = COUNT) -> Sampling:
    return Sampling(
        temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, max_tokens=count
    )


def answered(runner: Runner, prompts: Sequence[Prepared], count: int = COUNT) -> Answers:
    answers = Answers(Scheduler(runner, ()))
    for number, prompt in enumerate(prompts):
        answers.scheduler.submit(
            submission(number, prompt.tokens, wishes(count), media=prompt.media)
        )
    return answers.drain()


def listed(answers: Answers) -> list[list[int]]:
    assert not answers.errors
    return [answers.tokens[number] for number in sorted(answers.tokens)]


class TestAnswers:
    def test_all_kinds_are_here(self) -> None:
        assert len(KINDS) == len(VISION)

    def test_depend_on_the_images(
        self, expected: list[list[int]], prepared: list[Prepared]
    ) -> None:
        """Answers depend on the images. Otherwise the other tests would show nothing."""
        assert prepared[0].tokens == prepared[1].tokens
        assert len({tuple(answer) for answer in expected}) == len(expected)
        assert sum(len(set(answer)) > COUNT // 2 for answer in expected) >= len(expected) - 1

    def test_one_at_a_time(
        self, make: Make, prepared: list[Prepared], expected: list[list[int]]
    ) -> None:
        runner = make()
        assert [listed(answered(runner, [prompt]))[0] for prompt in prepared] == expected

    def test_together(
        self, make: Make, prepared: list[Prepared], expected: list[list[int]]
    ) -> None:
        assert listed(answered(make(), prepared)) == expected

    def test_with_guesses(
        self,
        make: Make,
        prepared: list[Prepared],
        expected: list[list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Guessed tokens have the positions of answer tokens: after images, on as many axes."""
        texts = [
            [*prompt.tokens, *answer] for prompt, answer in zip(prepared, expected, strict=True)
        ]
        foretold(monkeypatch, texts, 1)
        runner = make()
        scheduler = Scheduler(runner, (), speculation=measured(), clock=lambda: 0.0)
        answers = Answers(scheduler)
        for number, prompt in enumerate(prepared):
            scheduler.submit(submission(number, prompt.tokens, wishes(), media=prompt.media))
        assert listed(answers.drain()) == expected
        drafted, accepted = scheduler.speculated
        assert (accepted > 0) is (drafted > 0) is runner.can_retract

    def test_texts_in_pieces_and_images_whole(
        self,
        make: Make,
        prepared: list[Prepared],
        expected: list[list[int]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(scheduling, "STEP_TOKENS", 7)
        assert listed(answered(make(), prepared)) == expected

    def test_those_that_give_way_are_computed_again(
        self,
        served: Served,
        make: Make,
        prepared: list[Prepared],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Room for one sequence of full length, and requests for more than that."""
        runner = make(0)
        admitted: list[int] = []
        admit = runner.admit

        def noted(identifier: int, *rest: Any, **more: Any) -> int | None:
            cached = admit(identifier, *rest, **more)
            admitted.extend([] if cached is None else [identifier])
            return cached

        monkeypatch.setattr(runner, "admit", noted)
        requests = [prepared[number % 2] for number in range(14)]
        count = 30
        answers = listed(answered(runner, requests, count))
        assert len(admitted) > len(requests), "somebody gave way"
        expected_answers = [served.expected(prompt, count) for prompt in prepared[:2]]
        assert answers == [expected_answers[number % 2] for number in range(14)]
        assert runner.usage == 0

    def test_several_answers_to_one_prompt(
        self, make: Make, prepared: list[Prepared], expected: list[list[int]]
    ) -> None:
        answers = Answers(Scheduler(make(), ()))
        for number in range(3):
            prompt, after = prepared[0], None if number == 0 else 0
            request = submission(number, prompt.tokens, wishes(), media=prompt.media, after=after)
            answers.scheduler.submit(request)
        assert listed(answers.drain()) == [expected[0]] * 3

    def test_images_that_do_not_fit_hurt_nobody_else(
        self, make: Make, prepared: list[Prepared], expected: list[list[int]]
    ) -> None:
        first = prepared[0]
        wrong = Prepared([*first.tokens, *first.tokens], first.text, first.media)
        answers = answered(make(), [prepared[2], wrong, prepared[1]])
        assert list(answers.errors) == [1]
        assert answers.tokens[0] == expected[2]
        assert answers.tokens[2] == expected[1]


class TestPrompts:
    @pytest.mark.parametrize("kind", ["gemma3", "idefics3", "llava"])
    def test_are_those_of_the_processor(self, kind: str, tmp_path: Path) -> None:
        """Prompts match the processor's, for kinds with processors that load without further
        libraries.
        """
        folder = KINDS[kind](tmp_path)
        processor = library.AutoProcessor.from_pretrained(folder)
        pictures = image(1, (100, 60)), image(2, (33, 80))
        theirs = processor.apply_chat_template(
            list(messages("What is this?", *pictures)),
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        ours = prompts_of(folder).prepare(talk("What is this?", *map(png, pictures)), "messages")
        assert ours.tokens == theirs["input_ids"][0].tolist()
        assert ours.media is not None
        assert set(ours.media) | {"input_ids", "attention_mask"} == set(theirs)
        for name, value in ours.media.items():
            assert torch.equal(value, theirs[name]), name

    def test_smolvlm_has_a_processor_like_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """SmolVLM's own processor requires a library that spells out numbers, for videos."""
        from transformers.models.smolvlm import processing_smolvlm as own

        folder = KINDS["smolvlm"](tmp_path)
        monkeypatch.setattr(own, "num2words", str)
        kind: Any = type("ImagesOnly", (own.SmolVLMProcessor,), {})
        kind.check_argument_for_proper_class = lambda *_: None
        processor = kind(
            library.AutoImageProcessor.from_pretrained(folder),
            library.AutoTokenizer.from_pretrained(folder),
            None,
            image_seq_len=4,
        )
        pictures = [image(1, (100, 60)), image(2, (33, 80))]
        text = processor.tokenizer.apply_chat_template(
            list(messages("What is this?", *pictures)), tokenize=False, add_generation_prompt=True
        )
        theirs = processor(text=[text], images=[pictures], return_tensors="pt")
        ours = prompts_of(folder).prepare(talk("What is this?", *map(png, pictures)), "messages")
        assert ours.tokens == theirs["input_ids"][0].tolist()
        assert ours.media is not None
        for name, value in ours.media.items():
            assert torch.equal(value, theirs[name]), name

    def test_a_template_of_texts(self, tmp_path: Path) -> None:
        """Placeholders are at the positions of the images."""
        folder = llava(tmp_path)
        plain = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"
        (folder / "chat_template.jinja").write_text(plain)
        prompts = prompts_of(folder)
        prompt = prompts.prepare(talk("What is this?", png(image(1))), "messages")
        written = prompts.tokenizer.decode(prompt.tokens)
        assert written == "<|endoftext|>user: " + "<image>" * 16 + "\nWhat is this? "

    def test_the_processors_own_template(self, tmp_path: Path) -> None:
        """The processor's own template is used, as stored in older repositories."""
        folder = llava(tmp_path)
        (folder / "chat_template.jinja").unlink()
        template = TEMPLATE.replace("IMAGE", "<image>")
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
        prompt = prompts_of(folder).prepare(talk("hi", png(image(1))), "messages")
        assert prompt.media is not None and prompt.text.endswith("assistant\n")

    def test_placeholders_among_the_words(self, served: Served) -> None:
        """Placeholders in the text are refused. They would be taken for images, or shift the real
        ones.
        """
        special = served.prompts.tokenizer.added_tokens_decoder.values()
        marks = [
            mark_token.content
            for mark_token in special
            if "image" in mark_token.content or "pad" in mark_token.content
        ]
        marks = [
            mark_token
            for mark_token in marks
            if "fake" not in mark_token and "end" not in mark_token
        ]
        assert marks
        for mark in marks:
            for pictures in ((), (image(1),)):
                with pytest.raises(InputError, match="reserve for media") as caught:
                    served.prepared(f"What is {mark}?", *pictures)
                assert caught.value.field == "messages"

    @pytest.mark.parametrize("place", [0, 1])
    @pytest.mark.parametrize("file", [b"", b"no image", png(image(1))[:60]])
    def test_a_broken_image(self, served: Served, file: bytes, place: int) -> None:
        files = [png(image(2))] * 2
        files[place] = file
        with pytest.raises(InputError) as caught:
            served.prompts.prepare(talk("hi", *files), "messages")
        assert (caught.value.field, caught.value.code) == (FIELD.format(place), "invalid_media")

    def test_too_many_pixels(self, served: Served) -> None:
        three = talk("hi", *[png(image(1, (20, 20)))] * 3)
        for limits, place in (({"image_pixels": 399}, 0), ({"video_pixels": 1199}, 2)):
            with pytest.raises(InputError, match="pixels") as caught:
                prompts_of(served.folder, **limits).prepare(three, "messages")
            assert (caught.value.field, caught.value.code) == (FIELD.format(place), "invalid_media")

    def test_an_image_that_the_processor_refuses(self, tmp_path: Path) -> None:
        prompts = prompts_of(KINDS["qwen2_vl"](tmp_path))
        with pytest.raises(InputError, match="cannot process the image") as caught:
            prompts.prepare(talk("hi", png(image(1, (2000, 2)))), "messages")
        assert (caught.value.field, caught.value.code) == (FIELD.format(0), "invalid_media")


class TestUnserved:
    def test_kinds_that_were_not_compared(self, tmp_path: Path) -> None:
        config = {"architectures": ["MllamaForConditionalGeneration"], "model_type": "mllama"}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnservedModelError, match="Mllama"):
            architecture(tmp_path)

    def test_images_on_a_converted_model(self, converted: Path) -> None:
        runner = OpenVinoRunner(converted, threads=1, precision="f32", cache_bytes=1 << 20)
        with pytest.raises(ValueError, match="no images"):
            runner.admit(1, [1, 2, 3], {"pixel_values": torch.zeros(1)})
