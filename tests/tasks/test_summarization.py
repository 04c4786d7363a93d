"""Summarization against the model called directly, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.local import Local, RefusedError
from tests.support.seq2seq import TEXTS, Direct, bart, t5

LENGTH = {"max_new_tokens": 32}
PREFIX = {"t5": "example: ", "bart": ""}


@pytest.fixture(scope="module", params=[t5, bart], ids=lambda family: family.__name__)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: Any
) -> Iterator[tuple[Local, Direct, str]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("summarization", folder)
    yield local, Direct(folder), PREFIX[request.param.__name__]
    local.close()


def test_alone_with_the_models_own_prefix(case: Any) -> None:
    local, direct, prefix = case
    expected = [direct(prefix + text) for text in TEXTS]
    assert (expected == [direct(text) for text in TEXTS]) == (not prefix)
    for text, summary in zip(TEXTS, expected, strict=True):
        assert local.ask({"inputs": text, **LENGTH}) == [{"summary_text": summary}]


def test_in_a_mixed_batch(case: Any) -> None:
    local, direct, prefix = case
    options = {"num_beams": 2, "max_new_tokens": 16}
    expected = [[{"summary_text": direct(prefix + text, **options)}] for text in TEXTS]
    local.batches.clear()
    assert local.ask_together([{"inputs": TEXTS, **options}] * 2) == [expected] * 2
    assert max(local.batches) > 1


def test_a_long_text_is_refused_or_cut(case: Any) -> None:
    local, _, _ = case
    with pytest.raises(RefusedError, match="at most 128") as refused:
        local.ask({"inputs": ["a", "paris " * 200], **LENGTH})
    assert refused.value.failure.param == "inputs[1]"
    assert local.ask({"inputs": "paris " * 200, "truncation": "longest_first", **LENGTH})
