"""Videos of tiny models of every family equal those of diffusers called directly."""

import io
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import msgspec
import numpy
import pytest
from PIL import Image

from stoker.demo.setup import MODELS as SHIPPED
from stoker.inspection import inspect
from stoker.media import encode
from stoker.media.media import Media
from stoker.models.stages.watch import AbandonedError, Watch
from stoker.models.tasks.registry import PIPELINES
from stoker.replica.calibration import Calibration
from stoker.replica.worker import TaskWorker
from stoker.wire.flight import FlightRecord
from stoker.wire.protocol import Progress, RequestFailure, RequestResult, Work, pack, unpack
from stoker.wire.video_request import VideoAnswer, VideoSpec
from tests.inspection.builders import MemoryFiles
from tests.support import video
from tests.support.video import Maker, directly

PROMPT = "a red ball rolls"
STEPS = {"num_inference_steps": 2}
TEXT: dict[str, tuple[Callable[[Path], Path], dict[str, int]]] = {
    "wan": (video.wan, {"width": 64, "height": 48, "num_frames": 5}),
    "ltx": (video.ltx, {"width": 64, "height": 32, "num_frames": 9}),
    "cogvideox": (video.cogvideox, {"width": 64, "height": 48, "num_frames": 9}),
    "cogvideox-1.5": (
        lambda folder: video.cogvideox(folder, newer=True),
        {"width": 64, "height": 48, "num_frames": 9},
    ),
}
IMAGE: dict[str, tuple[Callable[[Path], Path], dict[str, int]]] = {
    "wan-2.1": (
        lambda folder: video.wan(folder, image=True, clip=True),
        {"width": 32, "height": 48, "num_frames": 5},
    ),
    "wan-2.2-small": (
        lambda folder: video.wan(folder, image=True, expand=True),
        {"width": 64, "height": 32, "num_frames": 5},
    ),
    "ltx": (
        lambda folder: video.ltx(folder, image=True),
        {"width": 64, "height": 32, "num_frames": 9},
    ),
    "cogvideox": (
        lambda folder: video.cogvideox(folder, image=True),
        {"width": 64, "height": 48, "num_frames": 9},
    ),
}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Maker]:
    """Returns a function that returns the maker of a family and pipeline. Each maker is loaded
    once.
    """
    known: dict[tuple[str, str], Maker] = {}

    def make(family: str, pipeline: str = "text-to-video") -> Maker:
        if (pipeline, family) not in known:
            make_folder, _ = (TEXT if pipeline == "text-to-video" else IMAGE)[family]
            folder = make_folder(tmp_path_factory.mktemp("video") / family)
            known[pipeline, family] = Maker(pipeline, folder)
        return known[pipeline, family]

    return make


def picture(size: tuple[int, int] = (90, 60), kind: str = "PNG") -> Media:
    """Returns a wide picture with a colour gradient."""
    across = numpy.linspace(0, 255, size[0])[None, :, None]
    down = numpy.linspace(0, 255, size[1])[:, None, None]
    pixels = numpy.concatenate(numpy.broadcast_arrays(across, down, 255 - across), axis=2)
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(numpy.uint8)).save(buffer, kind)
    return Media("image", content=buffer.getvalue())


class TestText:
    @pytest.mark.parametrize("family", TEXT)
    def test_frames_are_those_of_diffusers(self, maker: Callable[..., Maker], family: str) -> None:
        made, shape = maker(family), TEXT[family][1]
        spec = shape | STEPS | {"guidance_scale": 3.0, "negative_prompt": "blurred"}
        frames = made.frames(PROMPT, **spec, seed=7)
        assert frames.shape == (shape["num_frames"], shape["height"], shape["width"], 3)
        assert (frames == directly(made.pipe, PROMPT, 7, **spec)).all()
        assert (frames == made.frames(PROMPT, **spec, seed=7)).all()

    def test_what_a_request_says_shows(self, maker: Callable[..., Maker]) -> None:
        made = maker("ltx")
        spec: dict[str, Any] = {**TEXT["ltx"][1], **STEPS, "guidance_scale": 3.0, "seed": 7}
        frames = made.frames(PROMPT, **spec)
        assert (frames != made.frames("music", **spec)).any()
        for change in ({"seed": 8}, {"guidance_scale": 9.0}, {"negative_prompt": "music"}):
            assert (frames != made.frames(PROMPT, **spec | change)).any()

    def test_without_a_seed_every_video_is_another(self, maker: Callable[..., Maker]) -> None:
        made, shape = maker("ltx"), TEXT["ltx"][1]
        assert (
            made.frames(PROMPT, **shape, **STEPS) != made.frames(PROMPT, **shape, **STEPS)
        ).any()

    def test_ltx_draws_for_the_rate(self, maker: Callable[..., Maker]) -> None:
        made, spec = maker("ltx"), TEXT["ltx"][1] | STEPS
        frames = made.frames(PROMPT, **spec, fps=10, seed=1)
        assert (frames == directly(made.pipe, PROMPT, 1, **spec, frame_rate=10)).all()
        assert (frames != made.frames(PROMPT, **spec, fps=50, seed=1)).any()

    def test_what_is_left_out_is_the_models_own(self, maker: Callable[..., Maker]) -> None:
        made = maker("cogvideox")
        frames = made.frames(PROMPT, **STEPS, seed=1)
        assert frames.shape == (9, 48, 64, 3)
        assert (frames == directly(made.pipe, PROMPT, 1, **STEPS)).all()


class TestImage:
    @pytest.mark.parametrize("family", IMAGE)
    def test_frames_are_those_of_diffusers(self, maker: Callable[..., Maker], family: str) -> None:
        made, shape = maker(family, "image-to-video"), IMAGE[family][1]
        spec = shape | STEPS
        frames = made.frames(PROMPT, picture(), **spec, seed=7)
        # The 90 by 60 picture is scaled to cover each size. The excess is cropped on both sides.
        scale = max(shape["width"] / 90, shape["height"] / 60)
        left, upper = 45 - shape["width"] / scale / 2, 30 - shape["height"] / scale / 2
        image = Image.open(io.BytesIO(bytes(picture().content or b""))).resize(
            (shape["width"], shape["height"]),
            Image.Resampling.BICUBIC,
            box=(left, upper, 90 - left, 60 - upper),
        )
        assert (frames == directly(made.pipe, PROMPT, 7, image=image, **spec)).all()
        black = Media("image", content=_black())
        assert (frames != made.frames(PROMPT, black, **spec, seed=7)).any()

    def test_the_first_frame_of_a_video(self, maker: Callable[..., Maker]) -> None:
        made, spec = maker("ltx", "image-to-video"), IMAGE["ltx"][1] | STEPS | {"seed": 7}
        shades = numpy.stack([numpy.full((32, 64, 3), shade, numpy.uint8) for shade in (0, 200)])
        clip = Media("image", content=encode.mp4(shades, 8))
        black = Media("image", content=_black())
        assert (made.frames(PROMPT, clip, **spec) == made.frames(PROMPT, black, **spec)).all()

    def test_refusals(self, maker: Callable[..., Maker]) -> None:
        spec = {"width": 64, "height": 32, "num_frames": 9}
        field, message = maker("ltx", "image-to-video").refused(PROMPT, **spec)
        assert field == "input_reference" and "send one" in message
        field, message = maker("ltx").refused(PROMPT, picture(), **spec)
        assert field == "input_reference" and "leave the image out" in message
        broken = Media("image", content=b"no image")
        field, _ = maker("ltx", "image-to-video").refused(PROMPT, broken, **spec)
        assert field == "input_reference"


def _black() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 32)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("pipeline", ["text-to-video", "image-to-video"])
def test_folders_are_recognised(maker: Callable[..., Maker], pipeline: str) -> None:
    for family in TEXT if pipeline == "text-to-video" else IMAGE:
        assert recognised(maker(family, pipeline).stages.folder) == pipeline


def recognised(folder: Path) -> str:
    """Returns the pipeline that inspection assigns to an upload of the folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    contents = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    return inspect(MemoryFiles(contents), None, PIPELINES).pipeline


class TestSteps:
    def test_progress_leaves_room_for_decoding(self, maker: Callable[..., Maker]) -> None:
        fractions: list[float] = []

        class Listening(Watch):
            def step(self, fraction: float) -> None:
                fractions.append(fraction)

        shape = TEXT["ltx"][1]
        maker("ltx").draw(PROMPT, watch=Listening(), **shape, num_inference_steps=4)
        assert fractions == pytest.approx([0.2375, 0.475, 0.7125, 0.95])

    @pytest.mark.parametrize("family", TEXT)
    def test_is_cancelled_between_steps(self, maker: Callable[..., Maker], family: str) -> None:
        made, spec = maker(family), TEXT[family][1] | {"num_inference_steps": 3, "seed": 5}
        before = made.frames(PROMPT, **spec)
        fractions: list[float] = []

        class Leaving(Watch):
            def step(self, fraction: float) -> None:
                fractions.append(fraction)
                if len(fractions) == 2:
                    raise AbandonedError

        with pytest.raises(AbandonedError):
            made.draw(PROMPT, watch=Leaving(), **spec)
        assert len(fractions) == 2
        # The cancelled call leaves no state in the pipeline.
        assert (made.frames(PROMPT, **spec) == before).all()


def test_answer_through_the_worker(maker: Callable[..., Maker], tmp_path: Path) -> None:
    made = maker("ltx", "image-to-video")
    sent: queue.Queue[tuple[Any, bytes | None]] = queue.Queue()
    flight = FlightRecord(tmp_path / "flight")
    worker = TaskWorker(
        made.engine, made.stages, lambda *one: sent.put(one), flight, Calibration({"diffusers": 1})
    )
    worker.start()
    spec: dict[str, Any] = {"width": 64, "height": 96, "num_frames": 17, "seed": 3} | STEPS
    parameters = msgspec.to_builtins(VideoSpec(**spec, fps=10))
    for number, image in ((1, picture()), (2, None)):
        item = {"prompt": PROMPT, "image": image}
        received = unpack(pack(Work(number, "image-to-video", [item], parameters, True)))
        assert isinstance(received, Work)
        worker.submit(received)
    messages = []
    while sum(isinstance(message, RequestResult | RequestFailure) for message, _ in messages) < 2:
        messages.append(sent.get(timeout=60))
    worker.stop()

    by_kind = {type(message): (message, content) for message, content in messages}
    assert by_kind[RequestFailure][0].param == "input_reference"
    assert by_kind[Progress][0].fraction == pytest.approx(0.95)
    answer = msgspec.msgpack.decode(by_kind[RequestResult][1] or b"", type=VideoAnswer)
    assert (answer.width, answer.height, answer.frames, answer.fps) == (64, 96, 17, 10)
    assert answer.seconds == 1.7
    frames = made.frames(PROMPT, picture(), **spec, fps=10)
    assert frames.shape == (17, 96, 64, 3)
    assert answer.video == encode.mp4(frames, 10)
    assert answer.thumbnail == encode.webp(frames[8])
    with av.open(io.BytesIO(answer.video)) as file:
        stream = file.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (64, 96, 10)
        assert float(stream.duration * stream.time_base) == pytest.approx(1.7)
        assert sum(1 for _ in file.decode(stream)) == 17


def test_demo_model() -> None:
    """The demo model makes two seconds of video in a few seconds, and its card says that its
    weights are random.
    """
    folder = SHIPPED / "random-video-maker"
    assert recognised(folder) == "text-to-video"
    made = Maker("text-to-video", folder)
    frames = made.frames(PROMPT, num_inference_steps=4, seed=1)
    assert frames.shape == (17, 64, 64, 3)
    assert (frames == directly(made.pipe, PROMPT, 1, num_inference_steps=4)).all()
    card = (folder / "README.md").read_text()
    assert "# random-video-maker: random weights\n" in card
    assert "pipeline_tag: text-to-video\n" in card
    assert sum(file.stat().st_size for file in folder.rglob("*")) <= 1_500_000
