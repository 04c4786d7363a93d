"""Table question answering: TAPAS against the transformers pipeline, TAPEX against the model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.models.tasks.table_question_answering import TableQuestionAnsweringRequest
from tests.support.compare import equal
from tests.support.language import LETTERS, PUNCTUATION, WORDS
from tests.support.local import Local, RefusedError
from tests.support.seq2seq import Direct, bart

TABLE = {
    "city": ["paris", "london", "berlin"],
    "tower": ["300", "310", "368"],
    "river": ["clara", "maria", "what a river"],
}
ROWS = [dict(zip(TABLE, cells, strict=True)) for cells in zip(*TABLE.values(), strict=True)]
SMALL = {"name": ["clara"], "age": ["12"]}
QUERIES = ["where is the tower?", "what", "who lives in london, and where is the model?"]


def tapas(folder: Path, aggregation: int) -> None:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EMPTY]"]
    words = [*names, *WORDS.split(), *LETTERS, *PUNCTUATION, *(f"##{letter}" for letter in LETTERS)]
    folder.joinpath("vocab.txt").write_text("\n".join(dict.fromkeys(words)))
    tokenizer = transformers.TapasTokenizer(str(folder / "vocab.txt"), model_max_length=128)
    labels = {0: "NONE", 1: "SUM", 2: "AVERAGE", 3: "COUNT"}
    config = transformers.TapasConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        initializer_range=0.5,
        init_cell_selection_weights_to_zero=False,
        num_aggregation_labels=aggregation,
        aggregation_labels=labels if aggregation else None,
        no_aggregation_label_index=0 if aggregation else None,
    )
    transformers.TapasForQuestionAnswering(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module", params=[0, 4], ids=["cells", "aggregation"])
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Any]]:
    pytest.importorskip("pandas", reason="the tokenizer of TAPAS needs pandas")
    folder: Path = tmp_path_factory.mktemp("tapas")
    transformers.set_seed(0)
    tapas(folder, request.param)
    local = Local("table-question-answering", folder)
    pipe = transformers.pipeline("table-question-answering", model=str(folder), device="cpu")
    yield local, pipe
    local.close()


@pytest.fixture(scope="module")
def tapex(tmp_path_factory: Any) -> Iterator[tuple[Local, Direct]]:
    folder: Path = tmp_path_factory.mktemp("bart")
    transformers.set_seed(0)
    bart(folder)
    local = Local("table-question-answering", folder)
    yield local, Direct(folder)
    local.close()


class TestTapas:
    def test_alone(self, case: Any) -> None:
        local, pipe = case
        for query in QUERIES:
            expected = _plain(pipe(table=TABLE, query=query))
            equal(local.ask({"table": TABLE, "query": query}), expected)
            equal(local.ask({"table": ROWS, "query": query}), expected)
            equal(local.ask({"inputs": {"table": TABLE, "query": query}}), expected)

    def test_in_a_mixed_batch(self, case: Any) -> None:
        local, pipe = case
        local.batches.clear()
        answers = local.ask_together(
            [{"table": TABLE, "query": QUERIES}, {"table": SMALL, "query": QUERIES}]
        )
        for table, answer in zip((TABLE, SMALL), answers, strict=True):
            equal(answer, [_plain(pipe(table=table, query=query)) for query in QUERIES])
        assert max(local.batches) > len(QUERIES)

    def test_a_long_table_is_refused_or_loses_its_last_rows(self, case: Any) -> None:
        local, pipe = case
        long = {name: cells * 30 for name, cells in TABLE.items()}
        with pytest.raises(RefusedError, match="at most 128") as refused:
            local.ask({"table": long, "query": QUERIES})
        assert refused.value.failure.param == "table"
        answer = local.ask({"table": long, "query": QUERIES[0], "truncation": True})
        equal(answer, _plain(pipe(table=long, query=QUERIES[0])))

    def test_what_the_model_cannot_number(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError, match="300 rows; this model takes at most 255"):
            local.ask({"table": {"a": ["b"] * 300}, "query": "what", "truncation": True})

    def test_a_question_without_room_for_the_table(self, case: Any) -> None:
        local, _ = case
        with pytest.raises(RefusedError) as refused:
            local.ask({"table": TABLE, "query": "paris " * 200, "truncation": True})
        assert refused.value.failure.param == "query"


class TestTapex:
    def test_alone_and_in_a_batch(self, tapex: Any) -> None:
        local, direct = tapex
        flat = "col : name | age row 1 : clara | 12"
        expected = [
            {
                "answer": direct(f"{query} {flat}", max_new_tokens=128),
                "coordinates": [],
                "cells": [],
            }
            for query in QUERIES
        ]
        assert local.ask({"table": SMALL, "query": QUERIES[0].upper()}) == expected[0]
        local.batches.clear()
        assert local.ask({"table": SMALL, "query": QUERIES}) == expected
        assert max(local.batches) > 1

    def test_refusals(self, tapex: Any) -> None:
        local, _ = tapex
        with pytest.raises(RefusedError) as refused:
            local.ask({"table": SMALL, "query": ["what", " "]})
        assert refused.value.failure.param == "query[1]"
        with pytest.raises(RefusedError, match="at most 128") as refused:
            local.ask({"table": {"name": ["clara"] * 100}, "query": "what"})
        assert refused.value.failure.param == "table"


def _plain(answer: Any) -> Any:
    """Converts pairs to lists, as in JSON."""
    return answer | {"coordinates": [list(place) for place in answer["coordinates"]]}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"table": {}}, "table"),
        ({"table": []}, "table"),
        ({"table": {"a": []}}, "table"),
        ({"table": {"a": ["b"], "c": ["d", "e"]}}, "column 'c' has 2 cells"),
        ({"table": {"a": [1]}}, "table"),
        ({"table": [{"a": "b"}, {"c": "d"}]}, "row 1"),
        ({"table": {f"{number}": ["a"] for number in range(257)}}, "table"),
        ({"table": {f"{number}": ["a"] * 201 for number in range(100)}}, "limit is 20000"),
        ({"query": ""}, "query"),
        ({"query": []}, "query"),
        ({"sequential": True}, "sequential"),
        ({"inputs": {"table": TABLE}}, "given twice"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_refusals(change: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        TableQuestionAnsweringRequest.model_validate({"table": TABLE, "query": "what"} | change)
