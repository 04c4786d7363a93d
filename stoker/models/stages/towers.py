"""Two-tower models: one tower embeds images or sounds, the other the texts that are compared with
them.

Each tower runs separately. So images of different requests share a batch despite different labels,
and embedded labels are cached.
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
"""Names of the towers, used as the samples' `call`."""

_KEPT_TEXTS = 4096
_SIGLIP_TOKENS = 64
"""Length to which SigLIP's training texts were padded, without a mask. The pipeline pads to it
too.
"""


class TextTowerStages(TextStages):
    """Stages with items of any kind and texts that all items of a request share.

    A request's first item includes the texts that are not cached. Other items may finish before
    them. Therefore an item's result is a function, which `finish` calls after all items have one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._known: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._parameters: Mapping[str, Any] | None = None
        self._embeddings: dict[str, torch.Tensor] = {}
        self.text_options: dict[str, Any] = {}
        """Further arguments of the tokenizer."""

    def __getstate__(self) -> dict[str, Any]:
        # A copy only prepares items. These attributes change with every request.
        nothing: dict[str, Any] = {"_known": OrderedDict(), "_parameters": None, "_embeddings": {}}
        return {**super().__getstate__(), **nothing}

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
        """Returns the texts of a request, one per label."""

    @abstractmethod
    def item_sample(self, item: Any) -> Sample:
        """Returns a sample of an item without its texts. Raises `InputError`."""

    @abstractmethod
    def run_items(
        self, model: Any, batch: "Mapping[str, torch.Tensor]"
    ) -> "Mapping[str, torch.Tensor]":
        """Returns the outputs of each item that `score` needs."""

    @abstractmethod
    def score(
        self,
        item: Mapping[str, Any],
        embeddings: "torch.Tensor",
        parameters: Mapping[str, Any],
        /,
    ) -> Any:
        """Returns an item's result from its output and the (texts, width) embeddings of its
        texts.
        """

    def max_tokens(self) -> int:
        most = super().max_tokens()
        return min(most, _SIGLIP_TOKENS) if self.siglip else most

    def length(self, sample: Sample) -> int:
        return super().length(sample) if sample.call == TEXT else 0

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return self.completed(self.preprocess_item(item, parameters), parameters)

    def preprocess_item(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        return [self.item_sample(item)]

    def completed(self, samples: list[Sample], parameters: Mapping[str, Any]) -> list[Sample]:
        (sample,) = samples
        missing = self._missing(parameters)
        sample.call = ITEM
        sample.extras["embeddings"] = self._embeddings
        return [*missing, sample]

    def check(self, forward: Callable[[Sample], Mapping[str, Any]]) -> None:
        """Raises `ValueError` if the vectors of the towers cannot be compared, because their widths
        differ.
        """
        item = self.probe(1)
        outputs = [forward(self._text_sample("a"))] + ([forward(item)] if item else [])
        widths = [output["embedding"].shape[-1] for output in outputs if "embedding" in output]
        if len(set(widths)) > 1:
            raise ValueError(
                f"the model's text vectors have {widths[0]} numbers, its other vectors "
                f"{widths[1]}. They cannot be compared: 'projection_dim' and the sizes of "
                "the parts in config.json do not match"
            )

    def _missing(self, parameters: Mapping[str, Any]) -> list[Sample]:
        """Returns samples of the texts that are neither cached nor part of an earlier item."""
        # Items of a request share this object and are preprocessed one after another.
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
        """Returns {"embedding": (texts, width)}."""
        return {"embedding": model.get_text_features(**batch).pooler_output}

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Callable[[], Any]:
        *texts, image = outputs
        embeddings: dict[str, torch.Tensor] = image["embeddings"]
        for output in texts:
            embeddings[output["text"]] = output["embedding"]
            self._keep(output["text"], output["embedding"])
        labels = self.texts(parameters)

        def result() -> Any:
            import torch

            return self.score(image, torch.cat([embeddings[text] for text in labels]), parameters)

        return result

    def _keep(self, text: str, embedding: "torch.Tensor") -> None:
        # A copy, because the embedding is a row of a whole batch.
        self._known[text] = embedding.clone()
        while len(self._known) > _KEPT_TEXTS:
            self._known.popitem(last=False)


class TowerStages(TextTowerStages, ImageStages):
    """Stages with an image per item."""

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
        """Returns the outputs of each image that `score` needs."""
        return {"embedding": model.get_image_features(**batch).pooler_output}

    def probe(self, length: int, number: int = 0) -> Sample:
        picture = specimens.picture(number)
        prepared = self.image_processor(images=[picture], return_tensors="pt")
        return Sample(dict(prepared), call=ITEM)


def finish(work: "Work", results: Sequence[Callable[[], Any]]) -> Any:
    """`Task.finish` of a two-tower task. Called after all images and texts were embedded."""
    made = [result() for result in results]
    return made[0] if work.single else made
