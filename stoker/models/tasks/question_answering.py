"""Extractive question answering: the passages of a text that answer a question.

transformers removed its pipeline of this name in 5.3. Its parameters, windows and scores are kept
(transformers 5.2, `pipelines/question_answering.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from typing_extensions import TypedDict

from stoker.models.stages.base import InputError, Sample
from stoker.models.stages.passages import Found, ReadingStages, no_answer, passages
from stoker.models.tasks.architectures import PAGES
from stoker.models.tasks.base import NestedRequest, Task
from stoker.models.tasks.inputs import TextInputs, TopK

MAX_LENGTH = 1_000_000
"""Maximum of every parameter in tokens. The model's own limit is lower."""

Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
Text = Annotated[
    TextInputs,
    Field(description="A text, or a list with one item or with as many items as the other field."),
]


class QuestionAnsweringRequest(NestedRequest):
    """Request with questions and contexts. `inputs` is accepted too: an object with `question` and
    `context`, or a list of such objects.
    """

    question: Text
    context: Text
    top_k: TopK = Field(
        default=1,
        description="1 returns the best answer as an object, a larger number a list, best first.",
    )
    max_answer_len: Length = Field(default=15, description="Maximum length of an answer in tokens.")
    max_question_len: Length = Field(
        default=64, description="Questions are truncated to this many tokens."
    )
    max_seq_len: Length | None = Field(
        default=None,
        description=(
            "Tokens of a window, including the question. Default: 384, or the model's "
            "maximum if that is less. Longer contexts are read in several windows."
        ),
    )
    doc_stride: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LENGTH,
        description=(
            "Tokens that neighbouring windows share. Default: 128, or half a window if "
            "that is less."
        ),
    )
    handle_impossible_answer: bool = Field(
        default=False, description="Allow the empty answer, because the context may have no answer."
    )
    align_to_words: bool = Field(default=True, description="Extend an answer to whole words.")

    input_fields: ClassVar[tuple[str, ...]] = ("question", "context")
    nested_lists = True

    @model_validator(mode="after")
    def _as_many(self) -> "QuestionAnsweringRequest":
        counts = [
            len(values) for values in (self.question, self.context) if isinstance(values, list)
        ]
        if len(set(counts) - {1}) > 1:
            raise ValueError(
                f"'question' has {counts[0]} items and 'context' has {counts[1]}: send the "
                "same number of both, or one of either"
            )
        return self

    def items(self) -> tuple[list[Any], bool]:
        """Returns objects with `question` and `context`, each a text and its path in the
        request.
        """
        values: dict[str, str | list[str]] = {"question": self.question, "context": self.context}
        count = max(1 if isinstance(value, str) else len(value) for value in values.values())
        items = [
            {name: _pick(name, value, index) for name, value in values.items()}
            for index in range(count)
        ]
        return items, not any(isinstance(value, list) for value in values.values())


def _pick(name: str, value: str | list[str], index: int) -> tuple[str, str]:
    if isinstance(value, str):
        return value, name
    place = index if len(value) > 1 else 0
    return value[place], f"{name}[{place}]"


class Answer(TypedDict):
    """An answer. `start` and `end` are characters of the context; `score` is a probability."""

    score: float
    start: int
    end: int
    answer: str


class QuestionAnsweringStages(ReadingStages):
    auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if not self.tokenizer.is_fast:
            raise ValueError("question answering needs a fast tokenizer: save a tokenizer.json")

    def preprocess(self, item: Any, parameters: Mapping[str, Any]) -> list[Sample]:
        (question, question_at), (context, context_at) = item["question"], item["context"]
        for text, place in ((question, question_at), (context, context_at)):
            if not text.strip():
                raise InputError("The text must not be empty.", field=place, of_item=False)
        return self.windows(
            self.first_tokens(question, parameters["max_question_len"]),
            context,
            size=parameters.get("max_seq_len"),
            overlap=parameters.get("doc_stride"),
        )

    def postprocess(
        self, outputs: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
    ) -> Answer | list[Answer]:
        top_k, longest = parameters["top_k"], parameters["max_answer_len"]
        best_scores: dict[Found, float] = {}
        nothing = 1.0
        for window in outputs:
            nothing = min(nothing, no_answer(window))
            scores = passages(window, top_k, longest, words=parameters["align_to_words"])
            for place, score in scores.items():
                # Windows overlap, but each passage is listed once.
                best_scores[place] = max(score, best_scores.get(place, 0.0))
        context: str = outputs[0]["context"]
        answers = [_answer(context, place, score) for place, score in best_scores.items()]
        if parameters["handle_impossible_answer"]:
            answers.append(_answer(context, (0, 0), nothing))
        answers.sort(key=lambda answer: -answer["score"])
        return answers[0] if top_k == 1 else answers[:top_k]


def _answer(context: str, place: Found, score: float) -> Answer:
    start, end = place
    return {"score": score, "start": start, "end": end, "answer": context[start:end]}


TASK = Task(
    pipeline="question-answering",
    path="/v1/question-answering/extractive",
    summary="Answer questions from texts",
    request=QuestionAnsweringRequest,
    result=Answer | list[Answer],
    architectures=("*ForQuestionAnswering", "*ForQuestionAnsweringSimple", *PAGES),
    families=("bert", "roberta"),
    example={
        "question": "Where does Anna work?",
        "context": "Anna works at the bakery. Ben lives in Rome.",
    },
    example_result={"score": 0.99, "start": 18, "end": 24, "answer": "bakery"},
    stages=QuestionAnsweringStages,
)
