"""Generates video by diffusion: from a prompt, optionally with an image, to frames."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from stoker.media.media import Media
from stoker.models.diffusion.base import DiffusionStages
from stoker.models.diffusion.video.rules import VideoShape, check_amount, rules_of
from stoker.models.stages.base import InputError, Sample
from stoker.wire.video_request import VideoAnswer, VideoSpec

if TYPE_CHECKING:
    from PIL import Image

    from stoker.base.media_limits import MediaLimits
    from stoker.models.stages.watch import Watch
    from stoker.wire.protocol import Work

DRAWN = 0.95
"""Fraction of a video that is finished after its last step. The rest is decoding."""
IMAGE_FIELD = "input_reference"


class VideoGenerationStages(DiffusionStages):
    """Base of video generation. Each video is drawn alone, because its latents and frames fill the
    memory.
    """

    from_image: ClassVar[bool]
    """True if the models begin with an image."""

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.rules = rules_of(lambda path: (self.folder / path).read_bytes())
        # A copy, because the engine's thread uses the pipeline's tokenizer and counting changes its
        # settings.
        self._tokenizer = copy.deepcopy(model.tokenizer)

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        spec = msgspec.convert(parameters, VideoSpec)
        shape = self.rules.shape(spec)
        check_amount(shape)
        for field, text in (("prompt", item["prompt"]), ("negative_prompt", spec.negative_prompt)):
            self._check_length(text or "", field)
        features = self._features(item.get("image"), shape)
        return [
            Sample(features, {"prompt": item["prompt"], "shape": shape, "spec": spec}, alone=True)
        ]

    def _check_length(self, text: str, field: str) -> None:
        tokens = len(self._tokenizer(text)["input_ids"])
        if tokens > self.rules.prompt_tokens:
            raise InputError(
                f"The text has {tokens} tokens; this model takes at most "
                f"{self.rules.prompt_tokens}.",
                field=field,
                of_item=False,
            )

    def _features(self, image: Media | None, shape: VideoShape) -> dict[str, Any]:
        """Returns the image as the first frame: uint8 of shape (1, height, width, 3)."""
        if not self.from_image and image is None:
            return {}
        if not self.from_image:
            raise _wrong_image("This model makes videos from text alone: leave the image out.")
        if image is None:
            raise _wrong_image("This model makes videos from an image: send one.")
        import numpy
        import torch
        from PIL import ImageOps

        still = self.decoded(image, lambda data: _still(data, self.limits), IMAGE_FIELD)
        fitted = ImageOps.fit(still, (shape.width, shape.height))
        return {"image": torch.tensor(numpy.asarray(fitted))[None]}

    def draw(
        self, pipe: Any, samples: Sequence[Sample], watch: "Watch"
    ) -> Sequence[Mapping[str, Any]]:
        return [{"frames": self._frames(pipe, sample, watch)} for sample in samples]

    def _frames(self, pipe: Any, sample: Sample, watch: "Watch") -> Any:
        """Returns the frames: uint8 of shape (frames, height, width, 3)."""
        import numpy

        def stepped(pipe: Any, step: int, _time: Any, _state: Any) -> dict[str, Any]:
            watch.step(DRAWN * (step + 1) / pipe.num_timesteps)
            return {}

        drawn = pipe(
            **self._arguments(sample), callback_on_step_end=stepped, output_type="np"
        ).frames[0]
        if not numpy.isfinite(drawn).all():
            raise ValueError("the model produced frames with NaN or infinity")
        return (drawn * 255).round().astype(numpy.uint8)

    def _arguments(self, sample: Sample) -> dict[str, Any]:
        import torch
        from PIL import Image

        shape: VideoShape = sample.extras["shape"]
        spec: VideoSpec = sample.extras["spec"]
        # The noise is made on the CPU, so that a seed gives the same noise on every device.
        noise = torch.Generator("cpu")
        noise.seed() if spec.seed is None else noise.manual_seed(spec.seed)
        chosen: dict[str, Any] = {
            "num_inference_steps": spec.num_inference_steps,
            "guidance_scale": spec.guidance_scale,
            "negative_prompt": spec.negative_prompt,
            "frame_rate": shape.fps if self.rules.takes_rate else None,
        }
        if "image" in sample.features:
            chosen["image"] = Image.fromarray(sample.features["image"][0].numpy())
        return {
            "prompt": sample.extras["prompt"],
            "width": shape.width,
            "height": shape.height,
            "num_frames": shape.frames,
            "max_sequence_length": self.rules.prompt_tokens,
            "generator": noise,
        } | {name: value for name, value in chosen.items() if value is not None}

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        return {"video_ms": len(output["frames"]) * 1000 // output["shape"].fps}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> VideoAnswer:
        from stoker.media import encode

        frames, shape = outputs[0]["frames"], outputs[0]["shape"]
        return VideoAnswer(
            video=encode.mp4(frames, shape.fps),
            thumbnail=encode.webp(frames[len(frames) // 2]),
            width=shape.width,
            height=shape.height,
            frames=len(frames),
            fps=shape.fps,
            seconds=len(frames) / shape.fps,
        )


class TextToVideoStages(VideoGenerationStages):
    """Stages that make a video from a prompt."""

    from_image = False
    classes = ("WanPipeline", "LTXPipeline", "CogVideoXPipeline")


class ImageToVideoStages(VideoGenerationStages):
    """Stages that make a video from a prompt and the first frame."""

    from_image = True
    classes = (
        "WanImageToVideoPipeline",
        "LTXImageToVideoPipeline",
        "CogVideoXImageToVideoPipeline",
    )


def finish(work: "Work", results: Sequence[Any]) -> bytes:
    """Returns `VideoAnswer` as MessagePack. One prompt makes one video."""
    return msgspec.msgpack.encode(results[0])


def _still(data: bytes | memoryview, limits: "MediaLimits") -> "Image.Image":
    """Returns an image, or the first frame of a video. Raises `MediaError`."""
    from PIL import Image

    from stoker.media import containers, image, video

    if not containers.is_video(data):
        return image.decode(data, limits)
    frames = video.decode(data, num_frames=1, frame_sampling_rate=None, limits=limits)
    return Image.fromarray(frames[0])


def _wrong_image(message: str) -> InputError:
    return InputError(message, field=IMAGE_FIELD, of_item=False)
