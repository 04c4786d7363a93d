"""Stages that use the preprocessing and postprocessing of a transformers pipeline object.

The object never runs the model, and never receives a client's string as media: its loaders open
local paths and URLs.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stoker.media.media import Media
from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, Stages
from stoker.models.stages.text import TextStages

if TYPE_CHECKING:
    from PIL.Image import Image

    from stoker.media.audio import DecodedSound, Samples
    from stoker.media.video import Frame

_WINDOW_S = 0.025
"""Window length in seconds of all served audio models."""
_HOP_S = 0.01
_NORMALISED = frozenset({"SeamlessM4TFeatureExtractor", "Speech2TextFeatureExtractor"})
"""Feature extractors that divide by the standard deviation of the windows, which a single window
does not have.
"""


class Outputs(dict[str, Any]):
    """Model outputs with access by key and by attribute, as pipelines read them."""

    __getattr__ = dict[str, Any].__getitem__


class PipelineStages(Stages):
    """Stages that preprocess and postprocess with a pipeline object of transformers."""

    pipeline: ClassVar[str]
    """Name of the transformers class."""
    parts: ClassVar[Mapping[str, str]] = {}
    """Parts of the pipeline object in addition to the model. Maps its arguments to Auto classes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import transformers

        library: Any = transformers
        self._parts: dict[str, Any] = {
            name: getattr(library, auto).from_pretrained(str(folder), local_files_only=True)
            for name, auto in self.parts.items()
        }

    def attach(self, model: Any) -> None:
        import transformers
        from transformers.pipelines.base import ChunkPipeline

        super().attach(model)
        self._pipe: Any = getattr(transformers, self.pipeline)(
            model=model, device=model.device, **self._parts
        )
        self._takes_chunks = isinstance(self._pipe, ChunkPipeline)
        self._model_inputs = set(inspect.signature(model.forward).parameters)

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        """Returns an item in the pipeline object's format, with decoded media. Raises
        `InputError`.
        """
        return item

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the request's parameters by the pipeline object's names."""
        return dict(parameters)

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        options, _, _ = self._pipe._sanitize_parameters(**self.pipeline_parameters(parameters))
        prepared = self._pipe.preprocess(self.read(item, parameters), **options)
        return [self.sample(chunk) for chunk in _chunks(prepared)]

    def sample(self, prepared: Mapping[str, Any]) -> Sample:
        """Returns a sample with the prepared values, split into the model's inputs and the rest."""
        import torch

        features = {
            name: value
            for name, value in prepared.items()
            if name in self._model_inputs and torch.is_tensor(value)
        }
        return Sample(features, {k: v for k, v in prepared.items() if k not in features})

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        _, _, options = self._pipe._sanitize_parameters(**self.pipeline_parameters(parameters))
        model_outputs = [Outputs(output) for output in outputs]
        return self._pipe.postprocess(
            model_outputs if self._takes_chunks else model_outputs[0], **options
        )


def _chunks(prepared: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(prepared, Iterator):
        yield from prepared
    else:
        yield prepared


class TextPipelineStages(TextStages, PipelineStages):
    """Stages of texts. Only the pipeline object's postprocessing is used: its preprocessing
    truncates without an error.
    """

    def attach(self, model: Any) -> None:
        self._parts["tokenizer"] = self.tokenizer
        super().attach(model)

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value for name, value in parameters.items() if not name.startswith("truncation")
        }


def load_image_processor(folder: Path, **settings: Any) -> Any:
    """Returns the image processor of a model folder, loaded by transformers.

    Args:
        settings: Settings that override the folder's.
    """
    import transformers

    library: Any = transformers
    return library.AutoImageProcessor.from_pretrained(
        str(folder), local_files_only=True, **settings
    )


class ImageStages(Stages):
    """Stages that decode the images of a request's items."""

    def image(self, media: Media, field: str = "inputs") -> "Image":
        """Returns the image of an item, RGB, upright. Raises `InputError`."""

        def decode(content: bytes | memoryview) -> "Image":
            from stoker.media import image

            return image.decode(content, self.limits)

        return self.decoded(media, decode, field)


class ImagePipelineStages(ImageStages, PipelineStages):
    """Stages with one image per item."""

    parts = {"image_processor": "AutoImageProcessor"}

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        return self.image(item)

    def probe(self, length: int, number: int = 0) -> Sample | None:
        options, _, _ = self._pipe._sanitize_parameters()
        prepared = self._pipe.preprocess(specimens.picture(number), **options)
        return self.sample(next(_chunks(prepared)))


class AudioStages(Stages):
    """Stages that decode the recordings of a request's items."""

    def sound(self, media: Media, rate: int, field: str = "inputs") -> "Samples":
        """Returns the recording of an item: float32 of shape (samples,), at `rate` Hz. Raises
        `InputError`.

        Numbers without a sampling rate are assumed to be at `rate`.
        """
        return self.timed_sound(media, rate, field).samples

    def timed_sound(self, media: Media, rate: int, field: str = "inputs") -> "DecodedSound":
        """Returns the recording of an item as `sound` does, with its timeline. Raises
        `InputError`.
        """

        def decode(content: bytes | memoryview) -> "DecodedSound":
            from stoker.media import audio
            from stoker.media.timeline import Timeline

            if media.sampling_rate is None:
                return audio.decode_timed(content, rate, self.limits)
            source_rate = media.sampling_rate or rate
            return audio.DecodedSound(
                audio.from_samples(content, source_rate, rate, self.limits), Timeline()
            )

        return self.decoded(media, decode, field)

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        """Adds `audio_ms`, the duration of the recording that a sample represents, if the sample
        has this extra.
        """
        milliseconds: int | None = output.get("audio_ms")
        return super().counts(output) | ({} if milliseconds is None else {"audio_ms": milliseconds})


class AudioPipelineStages(AudioStages, PipelineStages):
    """Stages with one recording per item."""

    parts = {"feature_extractor": "AutoFeatureExtractor"}

    @property
    def probed_s(self) -> float:
        """Duration in seconds of the realistic recordings that `probe` makes."""
        return 1.0

    def read(self, item: Any, parameters: Mapping[str, Any]) -> Any:
        return self.sound(item, self._parts["feature_extractor"].sampling_rate)

    def sound_ms(self, sound: "Samples") -> int:
        return len(sound) * 1000 // self._parts["feature_extractor"].sampling_rate

    def long_enough(self, sound: "Samples", field: str = "inputs") -> "Samples":
        """Returns the recording if it is long enough for the model. Raises `InputError` if not."""
        rate = self._parts["feature_extractor"].sampling_rate
        shortest = max(_receptive_field(self.config), int(rate * self._shortest_s))
        if len(sound) < shortest:
            raise InputError(
                f"The audio has {len(sound)} samples at {rate} Hz; "
                f"this model needs at least {shortest}.",
                field=field,
                code="invalid_media",
            )
        return sound

    @property
    def _shortest_s(self) -> float:
        extractor = type(self._parts["feature_extractor"]).__name__
        return _WINDOW_S + _HOP_S if extractor in _NORMALISED else _WINDOW_S

    def probe(self, length: int, number: int = 0) -> Sample | None:
        rate = self._parts["feature_extractor"].sampling_rate
        sound = specimens.sound(number, rate, self.probed_s if number else 1.0)
        options, _, _ = self._pipe._sanitize_parameters()
        prepared = self._pipe.preprocess(sound, **options)
        return self.sample(next(_chunks(prepared)))


def _receptive_field(config: Any) -> int:
    """Returns the number of samples that one output of the convolutions depends on, for models like
    wav2vec2.
    """
    kernels, strides = getattr(config, "conv_kernel", ()), getattr(config, "conv_stride", ())
    samples = 1
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        samples = (samples - 1) * stride + kernel
    return samples


class VideoStages(Stages):
    """Stages that decode the videos of a request's items."""

    def frames(
        self, media: Media, num_frames: int, rate: int | None, field: str = "inputs"
    ) -> "list[Frame]":
        """Returns the frames of a video that `stoker.media.video.decode` selects. Raises
        `InputError`.
        """

        def decode(content: bytes | memoryview) -> "list[Frame]":
            from stoker.media import video

            return video.decode(
                content, num_frames=num_frames, frame_sampling_rate=rate, limits=self.limits
            )

        return self.decoded(media, decode, field)
