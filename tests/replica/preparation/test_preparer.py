"""Requests whose inputs are prepared in processes have the same answers, with real tiny models."""

import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from stoker.media.media import Media
from stoker.replica.preparation.permits import Permits
from stoker.replica.preparation.preparer import shares_media
from stoker.replica.preparation.stages_copy import StagesCopy, same_samples
from stoker.replica.task_request import RequestState
from stoker.wire.protocol import Cancelled, RequestFailure, RequestResult, Work
from tests.replica.preparation.support import TIMEOUT_S, Bench, forked
from tests.support.media import image, sound, wav
from tests.support.models import tiny_bert, tiny_vit
from tests.support.vision import SQUARE, VISION, clip_text, clip_tokenizer

MOST = 2


def _jpeg(seed: int) -> Media:
    output = io.BytesIO()
    image(seed, (900, 700)).save(output, "JPEG")
    return Media("image", content=output.getvalue())


def _recording(seed: int) -> Media:
    return Media("audio", content=wav(sound(seed, 1 + seed % 3)))


def _tiny_ast(folder: Path) -> Path:
    config = transformers.ASTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_mel_bins=32,
        max_length=300,
        num_labels=7,
    )
    transformers.set_seed(0)
    transformers.ASTForAudioClassification(config).eval().save_pretrained(folder)
    transformers.ASTFeatureExtractor(num_mel_bins=32, max_length=300).save_pretrained(folder)
    return folder


def _tiny_clip(folder: Path) -> Path:
    tokenizer = clip_tokenizer(77)
    config = transformers.CLIPConfig(
        text_config=clip_text(tokenizer, 77), vision_config=VISION, projection_dim=24
    )
    transformers.set_seed(0)
    transformers.CLIPModel(config).eval().save_pretrained(folder)
    transformers.CLIPImageProcessorPil(size=SQUARE, crop_size=SQUARE).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


MODELS: dict[str, tuple[Callable[[Path], Path], Callable[[int], Media]]] = {
    "image-classification": (tiny_vit, _jpeg),
    "audio-classification": (_tiny_ast, _recording),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: save(root / name) for name, (save, _) in MODELS.items()}


@pytest.fixture
def make_bench(folders: dict[str, Path], tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(pipeline: str, *, has_processes: bool = True, permits: Permits | None = None) -> Bench:
        parent = forked(MOST, permits) if has_processes else None
        flight = tmp_path / f"flight{len(made)}"
        made.append(Bench(pipeline, folders[pipeline], flight, parent))
        return made[-1]

    yield make
    for bench in made:
        processes = bench.worker._preparer.processes
        bench.worker.stop()
        for process in processes:
            if psutil.pid_exists(process):
                psutil.Process(process).wait(TIMEOUT_S)


@pytest.mark.parametrize("pipeline", MODELS)
def test_answers_are_equal(pipeline: str, make_bench: Callable[..., Bench]) -> None:
    _, make = MODELS[pipeline]
    items = [make(seed) for seed in range(16)]
    expected = make_bench(pipeline, has_processes=False).answers(items)
    bench = make_bench(pipeline)
    bench.warm_up(items)
    before = bench.elsewhere
    assert bench.answers(items) == expected
    assert bench.elsewhere - before == len(items)
    assert 1 <= len(bench.processes) <= MOST


def test_labels_stay_in_the_replica(tmp_path: Path) -> None:
    """Processes prepare images. The replica caches the embeddings of labels."""
    folder = _tiny_clip(tmp_path / "clip")
    template = {"hypothesis_template": "a photo of a {}."}
    labels = [["cat", "dog"], ["dog", "bird", "tree"], ["house", "cat"], ["car", "road"]]
    parameters = [{"candidate_labels": names, **template} for names in labels]
    items = [_jpeg(seed) for seed in range(16)]
    name = "zero-shot-image-classification"
    plain = Bench(name, folder, tmp_path / "plain", None)
    expected = plain.answers(items, parameters)
    plain.worker.stop()
    bench = Bench(name, folder, tmp_path / "flight", forked(MOST))
    bench.warm_up(items, parameters[:2])
    before = bench.elsewhere
    assert bench.answers(items, parameters) == expected
    assert bench.elsewhere - before == len(items)
    assert bench.answers(items, parameters) == expected
    bench.worker.stop()


@pytest.mark.parametrize("pipeline", MODELS)
def test_samples_are_equal_bit_for_bit(pipeline: str, make_bench: Callable[..., Bench]) -> None:
    _, make = MODELS[pipeline]
    bench = make_bench(pipeline)
    items = [make(seed) for seed in range(16)]
    bench.warm_up(items)
    preparer = bench.worker._preparer
    outcomes: list[Any] = []
    for item in items:
        request = RequestState(Work(1, pipeline, [item], {}, True))
        assert preparer.take(request, 0, lambda outcome: outcomes.append(outcome()))
    bench.worker.stop()
    expected = [bench.stages.preprocess(item, {}) for item in items]
    for samples in (outcomes, expected):
        samples.sort(key=lambda each: next(iter(each[0].features.values())).sum().item())
    assert len(outcomes) == len(expected)
    assert all(map(same_samples, outcomes, expected))


def test_a_bad_image_has_the_same_error(make_bench: Callable[..., Bench]) -> None:
    bad = Media("image", content=b"GIF89a and nothing else")
    plain = make_bench("image-classification", has_processes=False)
    number = plain.submit(bad)
    expected, _ = plain.receive([number])[number]
    assert isinstance(expected, RequestFailure)
    bench = make_bench("image-classification")
    bench.warm_up([_jpeg(seed) for seed in range(16)])
    before = bench.elsewhere
    number = bench.submit(bad)
    failure, _ = bench.receive([number])[number]
    assert bench.elsewhere == before + 1
    assert isinstance(failure, RequestFailure)
    assert (failure.code, failure.message, failure.param) == (
        expected.code,
        expected.message,
        expected.param,
    )


def test_answers_stay_right_if_processes_are_killed(make_bench: Callable[..., Bench]) -> None:
    items = [_jpeg(seed) for seed in range(24)]
    expected = make_bench("image-classification", has_processes=False).answers(items)
    bench = make_bench("image-classification")
    bench.warm_up(items)
    numbers = [bench.submit(item) for item in items]
    killed = bench.processes[0]
    os.kill(killed, 9)
    received = bench.receive(numbers)
    assert [received[number][1] for number in numbers] == expected
    assert killed not in bench.processes


def test_cancelled_requests_have_no_answer_and_others_keep_theirs(
    make_bench: Callable[..., Bench],
) -> None:
    items = [_jpeg(seed) for seed in range(24)]
    expected = make_bench("image-classification", has_processes=False).answers(items)
    bench = make_bench("image-classification")
    bench.warm_up(items)
    numbers = [bench.submit(item, key=f"key {at % 3}") for at, item in enumerate(items)]
    cancelled = random.Random(7).sample(numbers, 8)
    for number in cancelled:
        bench.worker.cancel(number)
    received = bench.receive(numbers)
    for number, answer in zip(numbers, expected, strict=True):
        message, content = received[number]
        assert isinstance(message, RequestResult | Cancelled)
        if number not in cancelled:
            assert content == answer
        elif isinstance(message, RequestResult):
            assert content == answer, "it was answered before it was cancelled"
    assert bench.worker.accepted == 0


def test_all_requests_are_answered_before_the_end(make_bench: Callable[..., Bench]) -> None:
    items = [_jpeg(seed) for seed in range(16)]
    bench = make_bench("image-classification")
    bench.warm_up(items)
    numbers = [bench.submit(item) for item in items]
    bench.worker.stop()
    assert all(isinstance(message, RequestResult) for message, _ in bench.receive(numbers).values())


def test_one_client_needs_no_process(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench("image-classification")
    for seed in range(24):
        bench.answers([_jpeg(seed)])
    assert bench.elsewhere == 0
    assert bench.processes == []


def test_another_precision_needs_another_copy(make_bench: Callable[..., Bench]) -> None:
    """The dtype of an image's pixels is the model's."""
    bench = make_bench("image-classification")
    items = [_jpeg(seed) for seed in range(16)]
    bench.warm_up(items)
    bench.stages.attach(bench.worker._engine.model.to(torch.float64))  # type: ignore[attr-defined]
    before = bench.elsewhere
    bench.answers(items[:1])
    assert bench.elsewhere == before, "the processes still know the former model"


def test_texts_are_quick_enough(tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bert")
    bench = Bench("token-classification", folder, tmp_path / "flight", forked(MOST))
    bench.answers(["my name is clara"] * 64)
    assert bench.processes == []
    bench.worker.stop()


def test_a_copy_is_refused_while_preparation_changes_the_stages(folders: dict[str, Path]) -> None:
    from stoker.models.tasks.registry import STAGES

    stages: Any = STAGES["image-classification"](folders["image-classification"])
    copy = StagesCopy()
    assert not copy.take(stages)[1]
    assert copy.take(stages)[1]
    stages.image(_jpeg(0))
    assert copy.take(stages)[1], "the last decoded image belongs to no copy"
    stages.seen = 1
    assert not copy.take(stages)[1]
    assert copy.take(stages)[1]


def test_neighbours_with_the_same_media_stay_together() -> None:
    first, second = _jpeg(0), _jpeg(1)
    items = [{"image": first, "question": "who?"}, {"image": first, "question": "where?"}, second]
    assert [shares_media(items, index) for index in range(3)] == [True, True, False]
    assert not shares_media([first], 0)
