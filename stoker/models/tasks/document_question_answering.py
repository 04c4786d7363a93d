"""Document question answering: a question about a page."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NotRequired, cast

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, field_validator
from typing_extensions import TypedDict

from stoker.models.stages import specimens
from stoker.models.stages.base import InputError, Sample, by_kind
from stoker.models.stages.generating import GenerateStages
from stoker.models.stages.pipelines import PipelineStages, load_image_processor
from stoker.models.stages.text import TextStages
from stoker.models.tasks.base import Task
from stoker.models.tasks.inputs import MANY, ONE, TopK
from stoker.models.tasks.questions import ImageQuestionRequest, ImageQuestionStages

if TYPE_CHECKING:
    import torch

_MAX_WORDS = 4096
_MAX_STRIDE = 256

_Place = Annotated[int, Field(ge=0, le=1000)]
_Corners = tuple[_Place, _Place, _Place, _Place]


def _ordered(box: _Corners) -> _Corners:
    left, top, right, bottom = box
    if left > right or top > bottom:
        raise ValueError("must be [left, top, right, bottom], each from 0 to 1000")
    return box


WordBox = tuple[
    Annotated[str, Field(min_length=1, max_length=1000)],
    Annotated[_Corners, AfterValidator(_ordered)],
]
Page = Annotated[list[WordBox], Field(min_length=1, max_length=_MAX_WORDS)]


def _one_or_many_pages(value: Any) -> str:
    """Returns `MANY` for a list of pages and `ONE` for one page, a list of pairs that begin with a
    word.
    """
    first = cast("Any", value[0]) if isinstance(value, list) and value else None
    first = cast("Any", first[0]) if isinstance(first, list | tuple) and first else None
    return MANY if isinstance(first, list | tuple) else ONE


Pages = Annotated[
    Annotated[Page, Tag(ONE)] | Annotated[list[Page], Field(min_length=1), Tag(MANY)],
    Discriminator(_one_or_many_pages),
    Field(
        description="Words of the page from your own OCR, each with its box: `[word, [left, "
        "top, right, bottom]]`, in thousandths of the page's width and height. For "
        "a list of images, send a list of such lists. Models that read pixels need "
        "none."
    ),
]


class DocumentQuestionAnsweringRequest(ImageQuestionRequest):
    word_boxes: Pages | None = None
    top_k: TopK = 1
    max_answer_len: Annotated[int, Field(ge=1, le=512, description="Longest answer, tokens.")] = 15
    max_seq_len: Annotated[
        int | None,
        Field(
            ge=16,
            le=8192,
            description=(
                "Tokens that the model reads at once, including the question. A longer "
                "page "
                "is read in parts. Default: the model's maximum."
            ),
        ),
    ] = None
    doc_stride: Annotated[
        int | None,
        Field(
            ge=0,
            le=4096,
            description="Tokens that neighbouring parts of a page share. Default: half a part, at "
            f"most {_MAX_STRIDE}.",
        ),
    ] = None
    handle_impossible_answer: Annotated[
        bool, Field(description="Also return the score that the page has no answer.")
    ] = False

    input_fields: ClassVar[tuple[str, ...]] = ("image", "question", "word_boxes")

    @field_validator("word_boxes")
    @classmethod
    def _pages_fit_images(cls, pages: Any, info: ValidationInfo) -> Any:
        if pages is not None and "image" in info.data:
            images: Any = info.data["image"]
            count = len(cast("list[Any]", images)) if isinstance(images, list) else None
            if (len(pages) if _one_or_many_pages(pages) == MANY else None) != count:
                raise ValueError(
                    "must be the words of the image or, for a list of images, a list with the "
                    "words of each image"
                )
        return pages

    def items(self) -> tuple[list[Any], bool]:
        """Returns objects with `image`, `question`, their paths and, if the request has word boxes,
        `words`.
        """
        items, single = super().items()
        if self.word_boxes is None:
            return items, single
        if not isinstance(self.image, list):
            return [item | {"words": self.word_boxes} for item in items], single
        pages = cast("list[Any]", self.word_boxes)
        pages = pages if len(pages) > 1 else pages * len(items)
        return [item | {"words": page} for item, page in zip(items, pages, strict=True)], single


class DocumentAnswer(TypedDict):
    """Answer to a question about a page. Models that read pixels return the answer alone."""

    answer: str | None
    score: NotRequired[float]
    start: NotRequired[int]
    """Index of the answer's first word in `word_boxes`."""
    end: NotRequired[int]


class LayoutStages(TextStages, ImageQuestionStages, PipelineStages):
    """LayoutLM. The answer is a span of the client's words."""

    pipeline = "DocumentQuestionAnsweringPipeline"
    auto_class = "AutoModelForDocumentQuestionAnswering"
    per_token = ("start_logits", "end_logits")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._parts["tokenizer"] = self.tokenizer
        self.padding = {
            **self.padding,
            "token_type_ids": self.tokenizer.pad_token_type_id,
            "bbox": 0,
        }

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        if "words" not in item:
            raise InputError(
                "This model reads words, not pixels, and the server performs no OCR. Send "
                "the page's words as 'word_boxes', [[word, [left, top, right, bottom]], …].",
                field="word_boxes",
                of_item=False,
            )
        looked_at = self.looked_at(item)
        inputs = {"question": item["question"], "word_boxes": item["words"]}
        longest, stride = self._window(item, parameters)
        chunks = self._pipe.preprocess(inputs, max_seq_len=longest, doc_stride=stride)
        samples = [self.sample(chunk) for chunk in chunks]
        for sample in samples:
            sample.features |= looked_at
        return samples

    def looked_at(self, item: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
        """Returns the image's features for the model. This model uses none, but invalid images are
        rejected.
        """
        self.picture(item)
        return {}

    def question_tokens(self, question: str) -> int:
        return len(self.tokenizer(question, add_special_tokens=False)["input_ids"])

    def _window(self, item: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[int, int]:
        """Returns the number of tokens in one part of the page including the question, and the
        number that parts share.
        """
        limit = self.max_tokens()
        longest = min(parameters.get("max_seq_len", limit), limit)
        question = self.question_tokens(item["question"])
        room = longest - question - self.tokenizer.num_special_tokens_to_add(pair=True)
        if room < 1:
            raise InputError(
                f"The question has {question} tokens, which leaves none of the {longest} "
                "tokens for the page.",
                field=item["question_at"],
                of_item=False,
            )
        stride = parameters.get("doc_stride", min(longest // 2, _MAX_STRIDE, room - 1))
        if stride >= room:
            raise InputError(
                f"'doc_stride' must be less than {room}, the number of page tokens in a part.",
                field="doc_stride",
                of_item=False,
            )
        return longest, stride

    def pipeline_parameters(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        names = ("top_k", "max_answer_len", "handle_impossible_answer")
        return {name: parameters[name] for name in names}


class SeenLayoutStages(LayoutStages):
    """LayoutLMv3, which reads the image in addition to the words."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # The pipeline object's image processor is not used: it would name the pixels as LayoutLMv2
        # does.
        self._image_processor: Any = load_image_processor(folder)
        # The model's tokenizer accepts no text without positions, and keeps the truncation of its
        # last call.
        words: Any = copy.deepcopy(self.tokenizer.backend_tokenizer)
        words.no_truncation()
        words.no_padding()
        self._words = words

    def looked_at(self, item: Mapping[str, Any]) -> "dict[str, torch.Tensor]":
        return self._pixels(self.picture(item))

    def _pixels(self, picture: Any) -> "dict[str, torch.Tensor]":
        prepared = self._image_processor(images=[picture], apply_ocr=False, return_tensors="pt")
        return {"pixel_values": prepared["pixel_values"]}

    def question_tokens(self, question: str) -> int:
        return len(self._words.encode(question, add_special_tokens=False).ids)

    def sample(self, prepared: Mapping[str, Any]) -> Sample:
        # LayoutLMv3 has only one token type.
        return super().sample({k: v for k, v in prepared.items() if k != "token_type_ids"})

    def probe(self, length: int, number: int = 0) -> Sample:
        count = max(1, min(length, self.max_tokens()) - 6)
        words = specimens.words(number, count) if number else ["a"] * count
        inputs = {"question": "a", "word_boxes": [[word, [0, 0, 10, 10]] for word in words]}
        chunks = self._pipe.preprocess(inputs, max_seq_len=self.max_tokens(), doc_stride=0)
        (sample, *_) = (self.sample(chunk) for chunk in chunks)
        sample.features |= self._pixels(specimens.picture(number))
        return sample


class DonutStages(ImageQuestionStages, GenerateStages, PipelineStages):
    """Donut. The answer is generated from the page's pixels."""

    pipeline = "DocumentQuestionAnsweringPipeline"
    auto_class = "AutoModelForImageTextToText"
    parts = {"image_processor": "AutoImageProcessor", "tokenizer": "AutoTokenizer"}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tokenizer: Any = self._parts["tokenizer"]

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        inputs = {"question": item["question"], "image": self.picture(item)}
        (prepared,) = self._pipe.preprocess(inputs)
        prompt = prepared["decoder_input_ids"]
        features = {"pixel_values": prepared["inputs"], "decoder_input_ids": prompt}
        length, positions = prompt.shape[1], self._decoder_positions()
        if length > positions:
            raise InputError(
                f"The question has {length} tokens, including the tokens around it; this "
                f"model takes at most {positions}.",
                field=item["question_at"],
                of_item=False,
            )
        return [Sample(features, call=self.call_of({}, prompt=length))]

    def _decoder_positions(self) -> int:
        return self.config.get_text_config(decoder=True).max_position_embeddings

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> list[DocumentAnswer]:
        return [self._pipe.postprocess_encoder_decoder_single(outputs[0])]


TASK = Task(
    pipeline="document-question-answering",
    path="/v1/question-answering/document",
    summary="Answer questions about pages",
    request=DocumentQuestionAnsweringRequest,
    media={"image": "image"},
    result=list[DocumentAnswer],
    architectures=(
        "LayoutLMForQuestionAnswering",
        "LayoutLMv3ForQuestionAnswering",
        "VisionEncoderDecoderModel",
    ),
    families=("layoutlm", "layoutlmv3", "donut-swin"),
    example={
        "image": "https://images.example/invoice.png",
        "question": "What is the invoice number?",
        "word_boxes": [["Invoice", [40, 30, 180, 60]], ["us-001", [200, 30, 290, 60]]],
    },
    example_result=[{"score": 0.96, "answer": "us-001", "start": 1, "end": 1}],
    stages=by_kind(
        LayoutStages, {"layoutlmv3": SeenLayoutStages, "vision-encoder-decoder": DonutStages}
    ),
)
