"""Extractive question answering against a simple evaluation of the model's own logits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from stoker.models.tasks.question_answering import QuestionAnsweringRequest
from tests.support.compare import equal
from tests.support.language import tokenizer
from tests.support.local import Local, RefusedError

QUESTION = "where is the tower?"
CONTEXTS = [
    "The tower is in Paris.",
    "Maria lives in London, where a river is; Clara's tower was 300 metres tall.",
    "Maria was here",
]


def bert(folder: Path) -> Any:
    return _save(folder, "Bert", 128)


def roberta(folder: Path) -> Any:
    return _save(folder, "Roberta", 130)


def _save(folder: Path, name: str, positions: int) -> Any:
    words = tokenizer(name.lower())
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        pad_token_id=words.pad_token_id,
        initializer_range=0.5,
    )
    model = getattr(transformers, f"{name}ForQuestionAnswering")(config).eval()
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return model


class Plain:
    """Reference that scores every passage of one window separately."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()

    def __call__(
        self, context: str, question: str = QUESTION, longest: int = 15, words: bool = True
    ) -> tuple[list[dict[str, Any]], float]:
        """Returns all answers, best first, and the probability of no answer."""
        inputs = self.tokenizer(question, context, return_tensors="pt")
        with torch.inference_mode():
            output = self.model(**inputs)
        ids = inputs.sequence_ids(0)
        positions = [place for place, part in enumerate(ids) if part == 1]
        starts, ends = (
            logits[0, [0, *positions]].softmax(-1).tolist()
            for logits in (output.start_logits, output.end_logits)
        )
        scores: dict[tuple[int, int], float] = {}
        for one, first in enumerate(positions):
            for other, last in enumerate(positions[one : one + longest], one):
                place = inputs.token_to_chars(first).start, inputs.token_to_chars(last).end
                if words:
                    place = (
                        inputs.word_to_chars(inputs.token_to_word(first), sequence_index=1).start,
                        inputs.word_to_chars(inputs.token_to_word(last), sequence_index=1).end,
                    )
                score = starts[one + 1] * ends[other + 1]
                scores[place] = max(scores.get(place, 0), score)
        answers = [
            {"score": score, "start": start, "end": end, "answer": context[start:end]}
            for (start, end), score in scores.items()
        ]
        return sorted(answers, key=lambda one: -one["score"]), starts[0] * ends[0]


@pytest.fixture(scope="module", params=[bert, roberta], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Plain]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("question-answering", folder)
    yield local, Plain(folder)
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, plain = case
        for context in CONTEXTS:
            answers, _ = plain(context)
            body = {"question": QUESTION, "context": context}
            equal(local.ask(body), answers[0])
            equal(local.ask({**body, "top_k": 3}), answers[:3])

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, plain = case
        expected = [plain(context)[0][0] for context in CONTEXTS]
        local.batches.clear()
        bodies = [{"question": QUESTION, "context": CONTEXTS}] * 3
        for answer in local.ask_together(bodies):
            equal(answer, expected)
        assert max(local.batches) > 1

    def test_several_questions_about_one_context(self, case: Any) -> None:
        local, plain = case
        questions = [QUESTION, "what?"]
        answer = local.ask({"question": questions, "context": CONTEXTS[1]})
        equal(answer, [plain(CONTEXTS[1], question)[0][0] for question in questions])

    def test_short_answers(self, case: Any) -> None:
        local, plain = case
        body = {"question": QUESTION, "context": CONTEXTS[1], "max_answer_len": 1}
        equal(local.ask(body), plain(CONTEXTS[1], longest=1)[0][0])

    def test_answers_of_parts_of_words(self, case: Any) -> None:
        local, plain = case
        body = {"question": QUESTION, "context": CONTEXTS[1], "align_to_words": False, "top_k": 20}
        equal(local.ask(body), plain(CONTEXTS[1], words=False)[0][:20])

    def test_no_answer_competes(self, case: Any) -> None:
        local, plain = case
        answers, nothing = plain(CONTEXTS[2])
        body = {"question": QUESTION, "context": CONTEXTS[2], "top_k": 1000}
        none = {"score": nothing, "start": 0, "end": 0, "answer": ""}
        expected = sorted([*answers, none], key=lambda answer: -answer["score"])
        equal(local.ask({**body, "handle_impossible_answer": True}), expected)

    def test_a_long_question_is_cut(self, case: Any) -> None:
        local, plain = case
        body = {"question": QUESTION + " who what my name", "context": CONTEXTS[0]}
        equal(local.ask({**body, "max_question_len": 5}), plain(CONTEXTS[0])[0][0])


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: Any) -> Iterator[Local]:
    """Yields a model that answers every question with the text from the word `maria` to the word
    `berlin`.
    """
    folder: Path = tmp_path_factory.mktemp("knowing")
    model, words = bert(folder), tokenizer("bert")
    with torch.no_grad():
        # Hidden states depend on the words alone: no positions, no segments, no attention.
        for table in ("position_embeddings", "token_type_embeddings"):
            getattr(model.bert.embeddings, table).weight.zero_()
        for layer in model.bert.encoder.layer:
            for dense in (layer.attention.output.dense, layer.output.dense):
                dense.weight.zero_()
                dense.bias.zero_()
        inputs = torch.tensor([words.convert_tokens_to_ids(["maria", "berlin"])])
        hidden = model.bert(inputs).last_hidden_state[0]
        model.qa_outputs.weight.copy_(hidden)
        model.qa_outputs.bias.zero_()
    model.save_pretrained(folder)
    local = Local("question-answering", folder)
    yield local
    local.close()


def far(before: int, after: int) -> str:
    return "The river! " * before + "MARIA lives in Berlin" + ", who was 9." * after


class TestWindows:
    @pytest.mark.parametrize("before", [0, 7, 30, 31, 32, 33, 90])
    @pytest.mark.parametrize("size", [24, None], ids=["small", "default"])
    def test_an_answer_anywhere_in_a_long_context(
        self, knowing: Local, before: int, size: int | None
    ) -> None:
        context = far(before, 40)
        sizes = {} if size is None else {"max_seq_len": size, "doc_stride": 8}
        answer = knowing.ask({"question": QUESTION, "context": context, **sizes})
        start = context.index("MARIA")
        assert answer["answer"] == "MARIA lives in Berlin"
        assert (answer["start"], answer["end"]) == (start, start + 21)
        assert answer["score"] == pytest.approx(1, abs=1e-2)

    def test_offsets_count_the_characters_of_the_original(self, knowing: Local) -> None:
        context = "Ça, 🙂 été… MARIA, Clara: Berlin"
        answer = knowing.ask({"question": QUESTION, "context": context})
        assert answer["answer"] == context[answer["start"] : answer["end"]]
        assert answer["answer"] == "MARIA, Clara: Berlin"

    def test_a_passage_of_two_windows_is_named_once(self, knowing: Local) -> None:
        body = {"question": QUESTION, "context": far(6, 6), "top_k": 5, "doc_stride": 10}
        answers = knowing.ask({**body, "max_seq_len": 24})
        places = [(answer["start"], answer["end"]) for answer in answers]
        assert len(places) == len(set(places)) == 5
        assert answers[0]["answer"] == "MARIA lives in Berlin"

    @pytest.mark.parametrize(
        ("sizes", "param"),
        [
            ({"max_seq_len": 129}, "max_seq_len"),
            ({"max_seq_len": 8}, "max_seq_len"),
            ({"max_seq_len": 20, "doc_stride": 12}, "doc_stride"),
        ],
        ids=str,
    )
    def test_refusals(self, knowing: Local, sizes: dict[str, int], param: str) -> None:
        with pytest.raises(RefusedError) as refused:
            knowing.ask({"question": QUESTION, "context": "a", **sizes})
        assert refused.value.failure.param == param


class TestRequest:
    def test_the_form_of_the_hub_client(self, knowing: Local) -> None:
        inputs = {"question": QUESTION, "context": "maria in berlin"}
        flat = knowing.ask(inputs)
        assert flat["answer"] == "maria in berlin"
        assert knowing.ask({"inputs": inputs, "parameters": {"top_k": 1}}) == flat
        assert knowing.ask({"inputs": [inputs]}) == [flat]

    def test_an_empty_context_is_named(self, knowing: Local) -> None:
        with pytest.raises(RefusedError) as refused:
            knowing.ask({"question": QUESTION, "context": ["a", " "]})
        assert refused.value.failure.param == "context[1]"

    @pytest.mark.parametrize(
        ("body", "where"),
        [
            ({"question": "a"}, "context"),
            ({"question": ["a", "b"], "context": ["a", "b", "c"]}, "the same number"),
            ({"question": "a", "context": "b", "top_k": 1001}, "top_k"),
            ({"question": "a", "context": "b", "max_answer_len": 0}, "max_answer_len"),
            ({"question": "a", "context": "b", "doc_stride": -1}, "doc_stride"),
            ({"inputs": {"question": "a"}}, "'context' and 'question'"),
            ({"inputs": {"question": "a", "context": "b"}, "question": "a"}, "outside it"),
        ],
        ids=str,
    )
    def test_refusals(self, body: dict[str, Any], where: str) -> None:
        with pytest.raises(ValidationError, match=where):
            QuestionAnsweringRequest.model_validate(body)
