"""What surrounds a forward pass: an input into samples, outputs into a result.

Imported by the gateway through the task files, so torch and transformers are imported inside.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from stoker.base.media_limits import MediaLimits
from stoker.media.media import Media
from stoker.models.stages.kinds import ModelKind
from stoker.wire.notices import Notice
from stoker.wire.protocol import Sharing

if TYPE_CHECKING:
    import torch
    from openvino import CompiledModel

    from stoker.models.adapters.applying import Adapter

Decoded = TypeVar("Decoded")

_ELEMENTS_A_UNIT = 1024
"""Elements of a feature of fixed size that cost as much as a token: 224 by 224 pixels cost 147."""


def bucket(length: int) -> int:
    """A length rounded up, so that shapes repeat: oneDNN caches its kernels by shape."""
    step = 8 if length <= 64 else 16 if length <= 256 else 32
    return -(-length // step) * step


class InputError(Exception):
    """The client's input cannot be served; the message says what would be right.

    `field` is the request's field at fault. With `of_item`, the index of the item is added to it.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str = "inputs",
        of_item: bool = True,
        code: str = "invalid_request",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.of_item = of_item
        self.code = code


class ContextLengthError(InputError):
    """A prompt that is longer than the model takes: clients make their conversation shorter then.

    Some tell the case by its code, LiteLLM by the words that the message begins with, and LangChain
    by the code within the message: the exceptions of OpenAI's SDK say no more than that.
    """

    def __init__(self, most: int, what: str, *, field: str, of_item: bool = False) -> None:
        """
        Args:
            most: tokens that the model takes.
            what: goes on from there: the numbers, and what would be right.
        """
        code = "context_length_exceeded"
        super().__init__(
            f"This model's maximum context length is {most} tokens. However, {what} ({code})",
            field=field,
            of_item=of_item,
            code=code,
        )


@dataclass
class Sample:
    """One row of a forward pass."""

    features: "dict[str, torch.Tensor]"
    """What the model takes: tensors of shape (1, …)."""
    extras: dict[str, Any] = field(default_factory=dict[str, Any])
    """What only postprocessing needs."""
    call: Hashable = ()
    """How the model is to be run, for `Stages.run`: samples that differ never share a batch."""
    alone: bool = False
    """Never in a batch with others."""
    adapter: "Adapter | None" = None
    """What is to be added to the model for it; those of others may share its batch."""
    is_held: bool = False
    """The sample waits for the first output of its input's first sample: see `Stages.released`."""


class StreamWriter(Protocol):
    """Writes one input's answer in parts. Parts may be empty; then nothing is sent."""

    def begin(self, samples: Sequence[Sample]) -> bytes:
        """Once the input was found good. What is raised here refuses it, as in `preprocess`."""
        ...

    def partial(self, position: int, output: Mapping[str, Any]) -> bytes:
        """What there is of a sample, of which more is to come (see `Watch.part`)."""
        ...

    def add(self, output: Mapping[str, Any]) -> bytes:
        """The next sample's output: they come in the samples' order."""
        ...

    def end(self) -> bytes:
        """After the last output."""
        ...


class Steps(Protocol):
    """How a model is converted for OpenVINO that `Stages.run` calls in many steps.

    What decides between the steps is not exported: the stages run it with either.
    """

    def takes(self, call: Hashable) -> bool:
        """Whether samples of this `call` can be run with what was exported."""
        ...

    def export(self, model: Any, folder: Path) -> None:
        """Write what is called in each step into a folder, as OpenVINO IRs."""
        ...

    def opened(self, compiled: "Callable[[str], CompiledModel]") -> Any:
        """What `Stages.run` takes in the model's place; `compiled` gives an IR by its name."""
        ...

    def inputs(self, file: str, batch: "Mapping[str, torch.Tensor]") -> "Sequence[torch.Tensor]":
        """What an IR is given for a batch of one, by which it may be quantized; nothing where it is
        not worth it, and its weights are to be rounded only.
        """
        ...

    def retold(
        self, model: Any, batch: "Mapping[str, torch.Tensor]", found: Mapping[str, Any]
    ) -> "Mapping[str, torch.Tensor]":
        """What a model, or what stands in its place, computes where it is made to decide in each
        step as was `found`: after one other word, nothing could be compared any more.
        """
        ...


class Stages(ABC):
    """The replica side of a task. One instance serves one model, from several threads in turn."""

    auto_class: ClassVar[str | tuple[str, ...]]
    """Names of the transformers classes that may load the model; the first that knows it does."""
    kind: ClassVar[ModelKind | None] = None
    """How the model computes, where not all models of its pipeline do alike; None: as they do."""
    per_token: ClassVar[tuple[str, ...]] = ()
    """Outputs of shape (batch, padded length, …): rows of padding are cut off."""
    padding: Mapping[str, int] = {}
    """Features of shape (1, length, …) that may be padded → the value to pad with.

    Those not named must agree in shape to share a batch.
    """
    padding_side: str = "right"
    sharing: Sharing = Sharing.PADDED
    """See `stoker.models.engines.sharing`, which finds it out."""
    notices: Sequence[Notice] = ()
    """What the model's owner should know, once it is attached."""
    embedded: int | None = None
    """Tokens that the model has rows for in its embedding; None: it reads none, or it is not
    known."""
    limits: MediaLimits = MediaLimits()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: Any = None
        self._last_decoded: tuple[Media, Any] | None = None

    def attach(self, model: Any) -> None:
        """Take the loaded model, whose configuration postprocessing needs."""
        self.config = model.config

    def loaders(self, config: Any) -> Sequence[str]:
        """Names of the transformers classes that may load the model, given its configuration."""
        return (self.auto_class,) if isinstance(self.auto_class, str) else self.auto_class

    def part(self, model: Any) -> Any:
        """What of the model that was read is run."""
        return model

    @abstractmethod
    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        """The samples of one input. Raises `InputError`."""

    @abstractmethod
    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Any:
        """The result of one input, for `finish`, from the outputs of its samples in order.

        An output holds the sample's features and extras, and the model's outputs as CPU tensors of
        shape (1, …) without padding.
        """

    def following(self, output: Mapping[str, Any]) -> Sample | None:
        """Returns the sample that continues an output; None: the output is the sample's last.

        The sample takes the place of the first sample. Its output must hold what both computed.
        Called on the engine's thread between two batches, so it must be quick.
        """
        return None

    def released(self, sample: Sample, first: Mapping[str, Any]) -> Sample:
        """Returns a held sample as it is run, given the first output of its input's first sample.

        Called on the engine's thread between two batches, so it must be quick.
        """
        return sample

    def counts(self, output: Mapping[str, Any]) -> dict[str, int]:
        """What was worked on for a sample, read from its output; as `Result.counts`."""
        tokens = output.get("input_ids")
        return {} if tokens is None else {"input_tokens": tokens.shape[1]}

    def writer(
        self, parameters: Mapping[str, Any], finishing: Mapping[str, Any]
    ) -> StreamWriter | None:
        """Writes the answer of one input in parts, as its outputs come; None: it comes whole."""
        return None

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        """Run the model, or what stands in its place, on a batch of samples that have this `call`.

        Tensors whose first dimension is the batch are dealt out to the samples; other values reach
        every one of them.
        """
        return model(**batch)

    @property
    def steps(self) -> Steps | None:
        """How the model is converted; None: `run` is exported whole, as one graph."""
        return None

    def probe(self, length: int, number: int = 0) -> Sample | None:
        """A sample of about this many tokens to measure the engine with; None: do not.

        Args:
            number: 0: the plainest. Any other: one that looks like a real input, of the same shape
                (`stoker.models.stages.specimens`).
        """
        return None

    def check(self, forward: Callable[[Sample], Mapping[str, Any]]) -> None:
        """Raise `ValueError` if a model that runs cannot serve its task, once after it was loaded.

        Args:
            forward: runs the model on one sample.
        """
        return

    def length(self, sample: Sample) -> int:
        """Length of the dimension that a batch pads, in tokens; 0 where there is none."""
        lengths = [v.shape[1] for name, v in sample.features.items() if name in self.padding]
        return max(lengths, default=0)

    def padded_length(self, longest: int) -> int:
        """What samples are padded to, in a batch whose longest has so many tokens."""
        # Rounded up only where it is padding that makes the length.
        is_padded = self.padding and self.sharing is Sharing.PADDED
        return bucket(longest) if is_padded else longest

    def batch_key(self, sample: Sample) -> Hashable:
        """Samples share a batch only where this is the same."""
        if self.sharing is Sharing.ALONE:
            return object()
        is_padded = self.sharing is Sharing.PADDED
        shapes = {
            name: None if is_padded and name in self.padding else value.shape
            for name, value in sample.features.items()
        }
        return (sample.call, frozenset(shapes.items()))

    def fixed_cost(self, sample: Sample) -> int:
        """Cost of what is not padded, in tokens."""
        sizes = [v.numel() for name, v in sample.features.items() if name not in self.padding]
        return -(-sum(sizes) // _ELEMENTS_A_UNIT)

    def decoded(
        self, media: Media, decode: "Callable[[bytes | memoryview], Decoded]", field: str
    ) -> Decoded:
        """Media decoded, once for neighbouring items that share it. Raises `InputError`."""
        from stoker.media.errors import MediaError

        if self._last_decoded is None or self._last_decoded[0] is not media:
            try:
                self._last_decoded = media, decode(media.content or b"")
            except MediaError as error:
                raise InputError(error.message, field=field, code="invalid_media") from error
        return self._last_decoded[1]


def by_kind(
    usual: Callable[[Path], Stages], kinds: Mapping[str, Callable[[Path], Stages]]
) -> Callable[[Path], Stages]:
    """The stages that a model folder needs: those of its `model_type`, or the usual ones."""

    def stages(folder: Path) -> Stages:
        config = json.loads((folder / "config.json").read_bytes())
        return kinds.get(config.get("model_type"), usual)(folder)

    return stages
