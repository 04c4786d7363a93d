"""Images of every family equal those of diffusers called directly, pixel by pixel."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import msgspec
import numpy
import pytest
import torch
from PIL import Image

from stoker.media.media import Media
from stoker.models.engines.diffusers import DiffusersEngine
from stoker.models.stages.base import InputError
from stoker.models.stages.watch import AbandonedError, Watch
from stoker.models.tasks.registry import STAGES
from stoker.runtime.interface import Call
from stoker.wire.image_answer import Images
from tests.support import diffusion
from tests.support.local import Local
from tests.support.media import image, png

PROMPT, OTHER = "a red circle", "two blue squares, on white"
STEPS = 3
PICTURE = image(0, (32, 32))
SIZE = {"width": 32, "height": 32}


class Drawer:
    """Pipeline of a model folder with the real stages and the real engine, but without the
    worker.
    """

    def __init__(self, pipeline: str, folder: Path) -> None:
        self.folder = folder
        self.stages: Any = STAGES[pipeline](folder)
        self.engine = DiffusersEngine("cpu", "float32", 1)
        self.stages.attach(self.engine.load(folder, self.stages, lambda *_: None))
        self.engine.enter_thread()

    def samples(self, item: Mapping[str, Any], **parameters: Any) -> list[Any]:
        return self.stages.preprocess(item, {"steps": STEPS, "size": [32, 32], **parameters})

    def draw(self, item: Mapping[str, Any], **parameters: Any) -> list[Image.Image]:
        """Draws each image in a separate forward pass, as images with a seed are."""
        outputs = [self.engine.forward([sample])[0] for sample in self.samples(item, **parameters)]
        return self.opened(self.stages.postprocess(outputs, parameters))

    def together(self, samples: Sequence[Any]) -> list[Image.Image]:
        assert len({self.stages.batch_key(sample) for sample in samples}) == 1
        outputs = self.engine.forward(samples)
        return self.opened(self.stages.postprocess(outputs, {}))

    def opened(self, images: Images) -> list[Image.Image]:
        pictures = [Image.open(io.BytesIO(file)) for file in images.files]
        assert all(picture.size == (images.width, images.height) for picture in pictures)
        return pictures

    def direct(self, maker: str, seed: int, prompt: str = PROMPT, **options: Any) -> Image.Image:
        """Draws an image by diffusers directly."""
        pipe = getattr(diffusers, maker).from_pretrained(self.folder)
        pipe.set_progress_bar_config(disable=True)
        generator = torch.Generator("cpu").manual_seed(seed)
        return pipe(prompt, num_inference_steps=STEPS, generator=generator, **options).images[0]


FAMILIES = {
    "stable-diffusion": diffusion.stable_diffusion,
    "stable-diffusion-xl": diffusion.stable_diffusion_xl,
    "stable-diffusion-3": diffusion.stable_diffusion_3,
    "flux": diffusion.flux,
}


@pytest.fixture(scope="module", params=FAMILIES)
def drawer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Drawer:
    folder = tmp_path_factory.mktemp(request.param)
    return Drawer("text-to-image", diffusion.made(FAMILIES[request.param], folder))


def same(found: Image.Image, wanted: Image.Image) -> None:
    assert numpy.array_equal(numpy.asarray(found), numpy.asarray(wanted))


def near(found: Image.Image, wanted: Image.Image) -> None:
    """Checks that two images are nearly equal. Batching changes the last bits, which may round to a
    neighbouring value of 256.
    """
    difference = numpy.asarray(found).astype(int) - numpy.asarray(wanted).astype(int)
    assert abs(difference).max() <= 2
    # A nearly uniform image would prove little.
    assert numpy.asarray(wanted).std() > 5


def media(picture: Image.Image) -> Media:
    return Media("image", content=png(picture))


def mask(size: tuple[int, int] = (32, 32)) -> Image.Image:
    """Returns a mask with a transparent left half, which is redrawn."""
    picture = Image.new("RGBA", size, "black")
    picture.paste((0, 0, 0, 0), (0, 0, size[0] // 2, size[1]))
    return picture


class TestParity:
    def test_seeds(self, drawer: Drawer) -> None:
        drawn = drawer.draw({"prompt": PROMPT}, seed=7, n=2)
        expected = [drawer.direct("DiffusionPipeline", seed, **SIZE) for seed in (7, 8)]
        for actual, other in zip(drawn, expected, strict=True):
            same(actual, other)
        assert not numpy.array_equal(numpy.asarray(drawn[0]), numpy.asarray(drawn[1]))

    def test_options(self, drawer: Drawer) -> None:
        drawn = drawer.draw({"prompt": OTHER}, seed=1, size=[48, 16], guidance_scale=2.5)
        options = {"width": 48, "height": 16, "guidance_scale": 2.5}
        same(drawn[0], drawer.direct("DiffusionPipeline", 1, OTHER, **options))

    def test_negative_prompt(self, drawer: Drawer) -> None:
        item = {"prompt": PROMPT, "negative_prompt": "blue"}
        if not drawer.stages.family.takes_negative:
            with pytest.raises(InputError) as refused:
                drawer.samples(item)
            assert refused.value.field == "negative_prompt"
            return
        drawn = drawer.draw(item, seed=3)
        same(drawn[0], drawer.direct("DiffusionPipeline", 3, negative_prompt="blue", **SIZE))
        plain = drawer.draw({"prompt": PROMPT}, seed=3)
        assert not numpy.array_equal(numpy.asarray(drawn[0]), numpy.asarray(plain[0]))
        with pytest.raises(InputError, match="guidance scale of 1"):
            drawer.samples(item, guidance_scale=1)

    def test_in_a_batch_of_other_prompts(self, drawer: Drawer) -> None:
        samples = [drawer.samples({"prompt": prompt})[0] for prompt in (PROMPT, OTHER, PROMPT)]
        assert not any(sample.alone for sample in samples)
        for seed, sample in enumerate(samples):
            sample.extras["seed"] = seed
        drawn = drawer.together(samples)
        for sample, picture in zip(samples, drawn, strict=True):
            near(picture, drawer.together([sample])[0])

    def test_image_to_image(self, drawer: Drawer) -> None:
        item = {"prompt": PROMPT, "image": media(PICTURE)}
        drawn = drawer.draw(item, seed=5, strength=0.7)
        options = {"image": PICTURE, "strength": 0.7}
        same(drawn[0], drawer.direct("AutoPipelineForImage2Image", 5, **sized(drawer, options)))

    def test_inpainting(self, drawer: Drawer) -> None:
        item = {"prompt": PROMPT, "image": media(PICTURE), "mask": media(mask())}
        drawn = numpy.asarray(drawer.draw(item, seed=5, strength=1.0)[0])
        black_and_white = Image.new("L", (32, 32), "black")
        black_and_white.paste("white", (0, 0, 16, 32))
        options = {"image": PICTURE, "mask_image": black_and_white, "strength": 1.0, **SIZE}
        expected = numpy.asarray(drawer.direct("AutoPipelineForInpainting", 5, **options))
        assert numpy.array_equal(drawn[:, :16], expected[:, :16])
        assert numpy.array_equal(drawn[:, 16:], numpy.asarray(PICTURE)[:, 16:])
        assert not numpy.array_equal(drawn[:, :16], numpy.asarray(PICTURE)[:, :16])

    def test_edits_in_a_batch(self, drawer: Drawer) -> None:
        items = [
            {"prompt": prompt, "image": media(image(seed, (32, 32))), "mask": media(mask())}
            for seed, prompt in enumerate((PROMPT, OTHER))
        ]
        for without in ((), ("mask",)):
            samples = [
                drawer.samples({k: v for k, v in item.items() if k not in without}, strength=0.9)[0]
                for item in items
            ]
            drawn = drawer.together(samples)
            for sample, picture in zip(samples, drawn, strict=True):
                near(picture, drawer.together([sample])[0])

    def test_weights_are_held_once(self, drawer: Drawer) -> None:
        stages = drawer.stages
        for kind in ("image", "mask"):
            pipe = stages._pipe(kind)
            assert pipe.vae is stages.pipe.vae
            assert type(pipe).__name__ == stages.family.classes[kind]


def sized(drawer: Drawer, options: dict[str, Any]) -> dict[str, Any]:
    """Adds the size to the options of an edit for SD 3 and Flux, which do not derive it from the
    image.
    """
    return options | (SIZE if hasattr(drawer.stages.pipe, "transformer") else {})


class Noting(Watch):
    def __init__(self, end_after: int = 1000) -> None:
        self.fractions: list[float] = []
        self.parts: list[tuple[int, Any]] = []
        self._end_after = end_after

    def step(self, fraction: float) -> None:
        self.fractions.append(fraction)
        if len(self.fractions) >= self._end_after:
            raise AbandonedError

    def part(self, row: int, output: Mapping[str, Any]) -> None:
        self.parts.append((row, output["pixels"]))


class TestSteps:
    def test_progress_and_partial_images(self, drawer: Drawer) -> None:
        watch = Noting()
        samples = drawer.samples({"prompt": PROMPT}, seed=2, partial_images=2, steps=6)
        output = drawer.engine.forward(samples, watch)[0]
        assert watch.fractions == sorted(watch.fractions)
        assert watch.fractions[-1] == 1
        assert [row for row, _ in watch.parts] == [0, 0]
        first, second = (pixels for _, pixels in watch.parts)
        assert first.shape == second.shape == output["pixels"].shape == (3, 32, 32)
        assert (first != second).any()
        # Partial images do not change the result.
        plain = drawer.samples({"prompt": PROMPT}, seed=2, steps=6)
        assert torch.equal(drawer.engine.forward(plain)[0]["pixels"], output["pixels"])

    def test_abandoned_between_steps(self, drawer: Drawer) -> None:
        before = drawer.draw({"prompt": PROMPT}, seed=9)
        watch = Noting(end_after=2)
        with pytest.raises(AbandonedError):
            drawer.engine.forward(drawer.samples({"prompt": PROMPT}, steps=50), watch)
        assert len(watch.fractions) == 2
        # Leftover state of the scheduler does not change the next image.
        same(drawer.draw({"prompt": PROMPT}, seed=9)[0], before[0])


class TestRefusals:
    @pytest.mark.parametrize(
        ("item", "parameters", "field", "message"),
        [
            ({"prompt": " "}, {}, "prompt", "must not be empty"),
            ({"prompt": None}, {}, "prompt", "must not be empty"),
            ({"prompt": PROMPT}, {"size": [33, 32]}, "size", "The nearest are 32x32 or "),
            ({"prompt": "a b " * 300}, {}, "prompt", "has 6?[0-9]+ tokens; this model reads at"),
            (
                {"prompt": PROMPT, "image": media(PICTURE)},
                {"strength": 0.1, "steps": 5},
                "strength",
                "less than one step",
            ),
            (
                {"prompt": PROMPT, "image": media(PICTURE), "mask": media(mask((16, 32)))},
                {},
                "mask",
                "has 16 by 32 pixels, but the image has 32 by 32",
            ),
            (
                {
                    "prompt": PROMPT,
                    "image": media(PICTURE),
                    "mask": media(Image.new("L", (32, 32))),
                },
                {},
                "mask",
                "selects no pixels",
            ),
            (
                {"prompt": PROMPT, "image": Media("image", content=b"\x89PNG damaged")},
                {},
                "image",
                "is not one of PNG",
            ),
        ],
    )
    def test_text(
        self, drawer: Drawer, item: Any, parameters: Any, field: str, message: str
    ) -> None:
        with pytest.raises(InputError, match=message) as refused:
            drawer.samples(item, **parameters)
        assert refused.value.field == field


class TestSizes:
    def test_the_models_own(self, drawer: Drawer) -> None:
        [sample] = drawer.samples({"prompt": PROMPT}, size=None)
        assert (sample.call.width, sample.call.height) == drawer.stages.native

    def test_of_an_edit(self, drawer: Drawer) -> None:
        multiple = drawer.stages.family.multiple(drawer.stages.pipe)
        item = {"prompt": PROMPT, "image": media(image(0, (800, 400)))}
        [sample] = drawer.samples(item, size=None, strength=1.0)
        width, height = sample.call.width, sample.call.height
        assert sample.extras["image"].size == (width, height)
        assert width % multiple == height % multiple == 0
        native = drawer.stages.native[0] * drawer.stages.native[1]
        assert width * height == pytest.approx(min(native, 320_000), rel=0.3)
        assert width / height == pytest.approx(2, rel=0.3)


class TestProbe:
    def test_can_be_drawn(self, drawer: Drawer) -> None:
        sample = drawer.stages.probe(32)
        assert drawer.stages.fixed_cost(sample) <= 128 * 128 / 512
        assert len(drawer.engine.forward([sample] * 2)) == 2


UNCONDITIONAL = {"ddpm": diffusion.ddpm, "ddim": diffusion.ddim}


@pytest.fixture(scope="module", params=UNCONDITIONAL)
def dreamer(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Drawer:
    folder = tmp_path_factory.mktemp(request.param)
    diffusion.made(UNCONDITIONAL[request.param], folder)
    return Drawer("unconditional-image-generation", folder)


class TestUnconditional:
    def test_seeds(self, dreamer: Drawer) -> None:
        drawn = dreamer.draw({"prompt": None}, seed=4, n=2, size=None)
        pipe = diffusers.DiffusionPipeline.from_pretrained(dreamer.folder)
        for seed, picture in zip((4, 5), drawn, strict=True):
            generator = torch.Generator("cpu").manual_seed(seed)
            expected = pipe(num_inference_steps=STEPS, generator=generator).images[0]
            assert picture.size == (16, 8)
            same(picture, expected)

    def test_abandoned_between_steps(self, dreamer: Drawer) -> None:
        watch = Noting(end_after=3)
        samples = dreamer.samples({}, size=None, steps=None)
        with pytest.raises(AbandonedError):
            dreamer.engine.forward(samples, watch)
        assert len(watch.fractions) == 3

    @pytest.mark.parametrize(
        ("item", "parameters", "field"),
        [
            ({"prompt": PROMPT}, {"size": None}, "prompt"),
            ({"negative_prompt": "red"}, {"size": None}, "negative_prompt"),
            ({}, {"size": None, "guidance_scale": 3.0}, "guidance_scale"),
            ({}, {"size": [32, 32]}, "size"),
        ],
    )
    def test_refused(self, dreamer: Drawer, item: Any, parameters: Any, field: str) -> None:
        with pytest.raises(InputError) as refused:
            dreamer.samples(item, **parameters)
        assert refused.value.field == field


@pytest.mark.parametrize(
    "scheduler",
    [
        diffusers.LMSDiscreteScheduler(steps_offset=1),
        diffusers.EulerDiscreteScheduler(steps_offset=1, use_beta_sigmas=True),
    ],
    ids=lambda one: type(one).__name__,
)
def test_schedulers_that_compute_with_scipy(tmp_path: Path, scheduler: Any) -> None:
    diffusion.made(diffusion.stable_diffusion, tmp_path)
    pipe: Any = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path)
    pipe.scheduler = scheduler
    pipe.save_pretrained(tmp_path)
    drawer = Drawer("text-to-image", tmp_path)
    samples = [drawer.samples({"prompt": text}, seed=4)[0] for text in (PROMPT, OTHER)]
    for drawn, prompt in zip(drawer.together(samples), (PROMPT, OTHER), strict=True):
        near(drawn, drawer.direct("DiffusionPipeline", 4, prompt, **SIZE))
    drawn = drawer.draw({"prompt": PROMPT}, seed=7)
    same(drawn[0], drawer.direct("DiffusionPipeline", 7, **SIZE))


class TestInpaintingModels:
    def test_a_mask_is_needed(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        diffusion.stable_diffusion(tmp_path, "StableDiffusionInpaintPipeline", in_channels=9)
        drawer = Drawer("image-to-image", tmp_path)
        item = {"prompt": PROMPT, "image": media(PICTURE)}
        with pytest.raises(InputError, match="accepts an image with a mask") as refused:
            drawer.samples(item)
        assert refused.value.field == "mask"
        with pytest.raises(InputError):
            drawer.samples({"prompt": PROMPT})
        drawn = drawer.draw({**item, "mask": media(mask())}, seed=5)
        assert drawn[0].size == (32, 32)
        assert len(drawer.engine.forward([drawer.stages.probe(32)])) == 1


class TestWorker:
    def test_requests_share_a_batch_but_not_those_with_a_seed(self, tmp_path: Path) -> None:
        local = Local("text-to-image", diffusion.made(diffusion.stable_diffusion, tmp_path))
        calls = [
            Call(
                task="text-to-image",
                items=[{"prompt": prompt}],
                parameters={"steps": 2, "n": n, **({} if seed is None else {"seed": seed})},
                single=True,
            )
            # The engine accepts the first request on arrival, mostly before the next ones arrive.
            for prompt, n, seed in [
                (PROMPT, 1, None),
                (PROMPT, 1, None),
                (OTHER, 2, None),
                (PROMPT, 2, 5),
            ]
        ]
        try:
            answers = [msgspec.msgpack.decode(raw, type=Images) for raw in local.answers(calls)]
        finally:
            local.close()
        assert [len(answer.files) for answer in answers] == [1, 1, 2, 2]
        assert sorted(local.batches) in ([1, 1, 1, 3], [1, 1, 4])
        assert len({file for answer in answers for file in answer.files}) == 6


class TestSafetyChecker:
    def test_flagged_images_are_withheld(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        diffusion.stable_diffusion(tmp_path, checks=True)
        with pytest.raises(InputError, match="safety checker"):
            Drawer("text-to-image", tmp_path).draw({"prompt": PROMPT}, seed=1)


class TestFiles:
    @pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
    def test_formats(self, dreamer: Drawer, output_format: str) -> None:
        drawn = dreamer.draw({}, size=None, output_format=output_format, quality=30)
        assert drawn[0].format == output_format.upper()
