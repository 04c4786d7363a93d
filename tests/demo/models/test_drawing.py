"""Tests of `tiny-draw` as packaged, judged by `tiny-clip`."""

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stoker.demo.setup import MODELS as SHIPPED
from tests.demo.models.folders import check
from tools.demo_models import clip, drawing, drawing_measure

FOLDER = SHIPPED / "tiny-draw"
NAMES = ("red circle", "green square", "blue triangle", "yellow star")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return drawing_measure.loaded(FOLDER)


@pytest.fixture(scope="module")
def critic() -> clip.Clip:
    return drawing_measure.judge()


class TestFolder:
    def test_is_plain_and_small(self) -> None:
        check("tiny-draw", "text-to-image", largest=drawing.LARGEST_FOLDER)

    def test_is_what_the_build_makes(self, tmp_path: Path) -> None:
        drawing.save(drawing.autoencoder(), drawing.artist(), tmp_path)
        made = {file.relative_to(tmp_path) for file in tmp_path.rglob("*") if file.is_file()}
        shipped = {file.relative_to(FOLDER) for file in FOLDER.rglob("*") if file.is_file()}
        assert shipped == made | {Path("README.md")}
        for file in made:
            if file.suffix == ".json":
                assert self.settings(FOLDER / file) == self.settings(tmp_path / file)
            else:
                assert self.tensors(FOLDER / file) == self.tensors(tmp_path / file)

    def settings(self, file: Path) -> dict[str, Any]:
        # Values that training measures and the versions of the libraries that wrote the file may
        # differ.
        measured = {"scaling_factor", "_diffusers_version", "transformers_version"}
        # A tokenizer stores the settings of its last call.
        measured |= {"padding", "truncation"}
        return {k: v for k, v in json.loads(file.read_text()).items() if k not in measured}

    def tensors(self, file: Path) -> dict[str, tuple[torch.dtype, torch.Size]]:
        return {name: (each.dtype, each.shape) for name, each in load_file(file).items()}

    def test_names_no_checker_and_no_foreign_class(self) -> None:
        parts = json.loads((FOLDER / "model_index.json").read_text())
        assert parts["safety_checker"] == [None, None]
        named = [value for value in parts.values() if isinstance(value, list)]
        assert {library for library, _ in named} == {"diffusers", "transformers", None}


class TestTraining:
    def test_draws_the_same_pictures_again(self) -> None:
        first, again = (drawing.scenes(Random(3), 4) for _ in range(2))
        assert torch.equal(drawing.pixels(first), drawing.pixels(again))

    def test_words_fit_the_picture(self) -> None:
        rng = Random(1)
        pictures = drawing.scenes(rng, 20)
        prompts = [drawing.prompt(rng, pictures[at % 20]) for at in range(1000)]
        assert 0.08 < np.mean([not words for words in prompts]) < 0.16
        for at, words in enumerate(prompts):
            shape = pictures[at % 20].shapes[0]
            absent = {*clip.COLOURS, *clip.KINDS} - {shape.colour, shape.kind}
            assert not absent & set(words.strip(".").split())
            assert not words or shape.colour in words or shape.kind in words


class TestPictures:
    def test_show_what_was_asked_for(self, pipeline: Any, critic: clip.Clip) -> None:
        prompts = [name for name in NAMES for _ in range(8)]
        options: dict[str, Any] = {"num_inference_steps": 20, "guidance_scale": 3.0}
        assert drawing_measure.accuracy(pipeline, critic, prompts, **options) >= 0.9

    def test_are_of_its_own_size(self, pipeline: Any) -> None:
        assert pipeline("a star", num_inference_steps=2).images[0].size == (64, 64)

    def test_depend_on_the_seed_alone(self, pipeline: Any) -> None:
        def draw(seed: int) -> bytes:
            generator = torch.Generator().manual_seed(seed)
            options: dict[str, Any] = {"num_inference_steps": 4, "generator": generator}
            return pipeline("a red circle", **options).images[0].tobytes()

        assert draw(1) == draw(1) != draw(2)

    def test_avoid_what_is_unwanted(self, pipeline: Any, critic: clip.Clip) -> None:
        options: dict[str, Any] = {
            "num_inference_steps": 20,
            "negative_prompt": ["a circle"] * 10,
        }
        images = drawing_measure.drawn(pipeline, ["something red"] * 10, **options)
        names = drawing_measure.names_of(critic, images)
        assert "red circle" not in names
        assert np.mean([name.startswith("red ") for name in names]) >= 0.9
