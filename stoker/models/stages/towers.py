"""Two-tower models: one embeds images or sounds, one the texts that are sought in them.

Each tower runs by itself. So images of different requests share a batch whatever their labels, and
a label that was embedded before is not embedded again.
"""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.pipelines import ImageStages, load_image_processor
from stoker.models.stages.positions import most_positions
from stoker.models.stages.text import TextStages

if TYPE_CHECKING:
    import torch

    from stoker.wire.protocol import Work

TEXT, ITEM = "text", "item"
"""The towers, as samples' `call`."""

_KEPT_TEXTS = 4096
_SIGLIP_TOKENS = 64
"""SigLIP was trained on texts padded to this length, without a mask; so does the pipeline."""


class TextTowerStages(TextStages):
    """Items of any kind, beside texts that all items of a request share.

    A request's first item carries the texts that are not known yet; other items may be through the
    model before them. Therefore an item's result is a call, to be made by `finish` once all items
    have one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._parameters: Mapping[str, Any] | None = None
        self._embeddings: dict[str, torch.Tensor] = {}
        self.text_options: dict[str, Any] = {}
        """What the tokenizer gets beside a text."""

    def attach(self, model: Any) -> None:
        super().attach(model)
        self.config = model.config.get_text_config()
        self._most_positions = most_positions(model, self.config)
        self.siglip = "siglip" in model.config.model_type
        if self.siglip:
            self.padding = {}
            self.text_options = {"padding": "max_length", "max_length": self.max_tokens()}

    @abstractmethod
    def texts(self, parameters: Mapping[str, Any]) -> list[str]:
        """The texts of a request, one a label."""

    @abstractmethod
    def item_sample(self, item: Any) -> Sample:
        """An item without its texts. Raises `InputError`."""

    @abstractmethod
    def run_items(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """What `score` needs of each item."""

    @abstractmethod
    def score(
        self,
        item: Mapping[str, Any],
        embeddings: "torch.Tensor",
        parameters: Mapping[str, Any],
        /,
    ) -> Any:
        """An item's result, from its output and its texts' (texts, width) embeddings."""

    def max_tokens(self) -> int:
        most = super().max_tokens()
        return min(most, _SIGLIP_TOKENS) if self.siglip else most

    def length(self, sample: Sample) -> int:
        return super().length(sample) if sample.call == TEXT else 0

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        sample = self.item_sample(item)
        missing = self._missing(parameters)
        sample.call = ITEM
        sample.extras["embeddings"] = self._embeddings
        return [*missing, sample]

    def check(self, forward: Callable[[Sample], Mapping[str, Any]]) -> None:
        """Refuse towers whose vectors cannot be compared, as they have different widths."""
        item = self.probe(1)
        outputs = [forward(self._text_sample("a"))] + ([forward(item)] if item else [])
        widths = [one["embedding"].shape[-1] for one in outputs if "embedding" in one]
        if len(set(widths)) > 1:
            raise ValueError(
                f"its texts become vectors of {widths[0]} numbers and its other inputs vectors of "
                f"{widths[1]}, which cannot be compared: 'projection_dim' and the sizes of the "
                "parts in config.json do not fit each other"
            )

    def _missing(self, parameters: Mapping[str, Any]) -> list[Sample]:
        """Samples of the texts that neither an earlier item brings along nor is kept."""
        # Items of a request share the object, and are prepared one after another.
        if parameters is self._parameters:
            return []
        self._parameters, self._embeddings = parameters, {}
        missing: list[Sample] = []
        for text in dict.fromkeys(self.texts(parameters)):
            if text in self._known:
                self._known.move_to_end(text)
                self._embeddings[text] = self._known[text]
            else:
                missing.append(self._text_sample(text))
        return missing

    def _text_sample(self, text: str) -> Sample:
        features = dict(self.tokenizer(text, return_tensors="pt", **self.text_options))
        length, limit = features["input_ids"].shape[1], self.max_tokens()
        if length > limit:
            raise InputError(
                f"The text {text[:60]!r} has {length} tokens; this model takes at most {limit}. "
                "Shorten the label.",
                field="candidate_labels",
                of_item=False,
            )
        return Sample(features, {"text": text}, call=TEXT)

    def run(
        self, model: Any, call: Hashable, batch: "Mapping[str, torch.Tensor]"
    ) -> Mapping[str, Any]:
        return self.run_items(model, batch) if call == ITEM else self.run_texts(model, batch)

    def run_texts(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """{"embedding": (texts, width)}."""
        return {"embedding": model.get_text_features(**batch).pooler_output}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Callable[[], Any]:
        *texts, image = outputs
        embeddings: dict[str, torch.Tensor] = image["embeddings"]
        for output in texts:
            embeddings[output["text"]] = output["embedding"]
            self._keep(output["text"], output["embedding"])
        wanted = self.texts(parameters)

        def result() -> Any:
            import torch

            return self.score(image, torch.cat([embeddings[text] for text in wanted]), parameters)

        return result

    def _keep(self, text: str, embedding: "torch.Tensor") -> None:
        # A copy: what arrives is a row of a whole batch.
        self._known[text] = embedding.clone()
        while len(self._known) > _KEPT_TEXTS:
            self._known.popitem(last=False)


class TowerStages(TextTowerStages, ImageStages):
    """An image an item."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.image_processor: Any = load_image_processor(folder)

    def item_sample(self, item: Any) -> Sample:
        picture = self.image(item, "image")
        prepared = self.image_processor(images=[picture], return_tensors="pt")
        return Sample(dict(prepared), {"target_size": (picture.height, picture.width)})

    def run_items(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        return self.run_images(model, batch)

    def run_images(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """What `score` needs of each image."""
        return {"embedding": model.get_image_features(**batch).pooler_output}

    def probe(self, length: int, number: int = 0) -> Sample:
        picture = specimens.picture(number)
        prepared = self.image_processor(images=[picture], return_tensors="pt")
        return Sample(dict(prepared), call=ITEM)


def finish(work: "Work", results: Sequence[Callable[[], Any]]) -> Any:
    """`Task.finish` of a two-tower task: all images and texts are embedded now."""
    made = [result() for result in results]
    return made[0] if work.single else made
