"""Draws of whole batches: the same tokens as row by row, with operations that do not depend on the
number of rows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import is_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stoker.models.llm import sampling as sampling_module
from stoker.models.llm.draws import Draws
from stoker.models.llm.errors import DrawError, FormError
from stoker.models.llm.interface import Logprob
from stoker.models.llm.matcher import Matcher, Matchers
from stoker.models.llm.sampling import draw, draw_after, scored
from stoker.wire.generation_request import Sampling

from .rowwise_draws import RowwiseDraws
from .support import VOCABULARY, tokenizer

PROMPT = (3, 5, 5, 8, 11)
ENDS = frozenset({0, 7})
STEPS = 4


@pytest.fixture(scope="module")
def matchers() -> Matchers:
    known: Any = tokenizer()
    return Matchers(known, VOCABULARY, [known.eos_token_id])


GRAMMAR = '{"grammars": [{"json_schema": {"type": "object"}}]}'

biases = st.dictionaries(st.integers(0, 39), st.sampled_from([-100.0, -1.5, 0.25, 2, 100.0]))
options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.6, 1e-30]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.25, 0.01]),
        "top_k": st.sampled_from([0, 0, 1, 3, 8, 16, 17, 255, 256, 257, 1000]),
        "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.5, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.7]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.5, -1.0]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.75]),
        "min_tokens": st.sampled_from([0, 2]),
        "logit_bias": st.one_of(st.just({}), biases),
        "allowed_tokens": st.one_of(
            st.just([]), st.lists(st.integers(0, 39), min_size=1, unique=True)
        ),
        "seed": st.integers(0, 1 << 32),
    }
)


def rows_of(seed: int, count: int, size: int, ties: int) -> torch.Tensor:
    """Returns logits (count, size).

    Args:
        ties: number of different logits. 0 means that all differ.
    """
    generator = torch.Generator().manual_seed(seed)
    if ties:
        return torch.randint(0, ties, (count, size), generator=generator).float()
    return torch.randn(count, size, generator=generator) * 3


def tokens_of(results: Sequence[tuple[int, Logprob | None] | DrawError]) -> list[int | None]:
    return [None if isinstance(result, DrawError) else result[0] for result in results]


class TestSameTokens:
    """A batch draws the same tokens as each row alone, with the same seeds."""

    @given(
        wishes=st.lists(options, min_size=1, max_size=6),
        size=st.sampled_from([40, 300, 700, 2000]),
        ties=st.sampled_from([0, 0, 2, 4]),
        seed=st.integers(0, 1000),
    )
    def test_as_row_by_row(
        self, wishes: list[dict[str, Any]], size: int, ties: int, seed: int
    ) -> None:
        if ties:
            # Their quotient would depend on the order in which equal probabilities are added.
            wishes = [wish | {"top_p": 1.0} if wish["top_k"] else wish for wish in wishes]
        samplings = [Sampling(**wish) for wish in wishes]
        batch = [Draws(sampling, PROMPT, ENDS, size) for sampling in samplings]
        alone = [RowwiseDraws(sampling, PROMPT, ENDS, size) for sampling in samplings]
        for step in range(STEPS):
            logits = rows_of(seed + step, len(wishes), size, ties)
            expected = [one.draw(row) for one, row in zip(alone, logits, strict=True)]
            assert tokens_of(draw(logits, batch)) == expected

    @given(
        wishes=st.lists(st.tuples(options, st.booleans()), min_size=1, max_size=6),
        seed=st.integers(0, 1000),
    )
    def test_with_forms(
        self, wishes: list[tuple[dict[str, Any], bool]], seed: int, matchers: Matchers
    ) -> None:
        def matcher(formed: bool) -> Matcher | None:
            return matchers.matcher(GRAMMAR) if formed else None

        batch, alone = (
            [
                kind(Sampling(**wish), PROMPT, ENDS, VOCABULARY, matcher(formed))
                for wish, formed in wishes
            ]
            for kind in (Draws, RowwiseDraws)
        )
        logits = rows_of(seed, len(wishes), VOCABULARY, 0)
        results = draw(logits, batch)
        assert tokens_of(results) == [one.draw(row) for one, row in zip(alone, logits, strict=True)]
        for (_, formed), result in zip(wishes, results, strict=True):
            assert isinstance(result, FormError) <= formed

    @pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 0.75, 1 - 2**-53])
    @pytest.mark.parametrize(
        "more", [{}, {"top_k": 3}, {"top_p": 0.5}, {"top_p": 0.75}, {"min_p": 1.0}]
    )
    def test_at_edges(
        self, uniform: float, more: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Four equal probabilities, so the numbers lie exactly between two tokens."""
        row = torch.full((7,), -torch.inf)
        row[[1, 2, 4, 5]] = 1.0
        sampling = Sampling(temperature=1.0, **more)
        alone = RowwiseDraws(sampling, (), ENDS, 7)
        batch = [Draws(sampling, (), ENDS, 7) for _ in range(3)]
        for one in (alone, *batch):
            monkeypatch.setattr(one._random, "random", lambda: uniform)
        token = alone.draw(row)
        assert tokens_of(draw(torch.stack([row] * 3), batch)) == [token] * 3
        assert token in (1, 2, 4, 5)

    @given(wish=options, seed=st.integers(0, 1000))
    def test_in_blocks(self, wish: dict[str, Any], seed: int) -> None:
        logits = rows_of(seed, 9, 300, 0)
        expected = draw(logits, [Draws(Sampling(**wish), PROMPT, ENDS, 300) for _ in range(9)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling_module, "_CPU_BLOCK", 700)
            blocks = draw(logits, [Draws(Sampling(**wish), PROMPT, ENDS, 300) for _ in range(9)])
        assert tokens_of(blocks) == tokens_of(expected)


def test_a_placeholder_beyond_the_logits_changes_no_other_row() -> None:
    sampling = Sampling(temperature=0.0, repetition_penalty=50.0)
    logits = rows_of(1, 3, 40, 0)
    best = int(logits[1].argmax())
    first, second, _ = draw(logits, [Draws(sampling, [40 + best], ENDS, 40) for _ in range(3)])
    assert tokens_of([first, second]) == [int(logits[0].argmax()), best]


class TestAfterGuesses:
    """Tokens after guesses are those that single draws return."""

    @given(
        wish=options,
        drafts=st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=4),
        seed=st.integers(0, 1000),
    )
    def test_up_to_the_first_wrong_guess(
        self, wish: dict[str, Any], drafts: list[list[int]], seed: int
    ) -> None:
        sampling = Sampling(**wish | {"logit_bias": {}, "allowed_tokens": []})
        ahead = [Draws(sampling, PROMPT, ENDS, 12) for _ in drafts]
        single = [Draws(sampling, PROMPT, ENDS, 12) for _ in drafts]
        if not ahead[0].independent:
            drafts = [[] for _ in drafts]
        for step in range(STEPS):
            logits = rows_of(seed + step, sum(len(draft) + 1 for draft in drafts), 12, 0)
            rows = iter(logits)
            expected = [
                self._one_by_one(draws, draft, [next(rows) for _ in range(len(draft) + 1)])
                for draws, draft in zip(single, drafts, strict=True)
            ]
            assert [tokens_of(drawn) for drawn in draw_after(logits, ahead, drafts)] == expected

    def _one_by_one(
        self, draws: Draws, draft: Sequence[int], rows: Sequence[torch.Tensor]
    ) -> list[int | None]:
        tokens: list[int | None] = []
        for place, row in enumerate(rows):
            tokens += tokens_of(draw(row[None], [draws]))
            if tokens[-1] is None or place == len(draft) or tokens[-1] != draft[place]:
                break
        return tokens


COPIES = ("aten.lift_fresh", "aten.to")
"""Operations that create a tensor from an array and copy it to a device."""


class Operations(TorchDispatchMode):
    """Counts operations on tensors, and the devices of their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.devices: dict[str, Counter[str]] = {}
        """Operations by the device of their tensors, except copies between devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        self.names[name] += 1
        result = func(*args, **(kwargs or {}))
        if name not in COPIES:
            tensors = [part for part in tree_leaves((args, kwargs, result)) if is_tensor(part)]
            for device in {tensor.device.type for tensor in tensors}:
                self.devices.setdefault(device, Counter())[name] += 1
        return result


WISHES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "greedy": [{"temperature": 0.0}],
    "whole vocabulary": [{}],
    "truncated": [{"top_p": 0.9, "temperature": 0.5}, {"top_k": 5, "min_p": 0.1}],
    "penalties": [
        {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
        {"presence_penalty": 0.5, "logit_bias": {3: 1.0}, "min_tokens": 3},
    ],
    "log probabilities": [{"logprobs": 3}, {}, {"temperature": 0.0, "logprobs": 0}],
    "allowed tokens": [{"allowed_tokens": [1, 2, 30]}, {}],
    "all": [
        {"temperature": 0.0, "logprobs": 2},
        {"top_p": 0.9, "temperature": 0.3, "frequency_penalty": 0.5},
        {"repetition_penalty": 1.2, "logit_bias": {3: 1.0}, "min_tokens": 3},
        {"allowed_tokens": [1, 2, 30]},
    ],
}


def batch(wishes: Sequence[Mapping[str, Any]], count: int, size: int) -> list[Draws]:
    return [
        Draws(
            Sampling(**({"temperature": 1.0, "seed": row} | wishes[row % len(wishes)])),
            PROMPT,
            ENDS,
            size,
        )
        for row in range(count)
    ]


@pytest.mark.parametrize("wishes", WISHES.values(), ids=[*WISHES])
class TestOperations:
    def counted(self, wishes: Sequence[Mapping[str, Any]], count: int) -> Counter[str]:
        draws, size = batch(wishes, count, 100), 100
        for one in draws:
            one.count(4)
        logits = rows_of(1, count, size, 0)
        with Operations() as operations:
            results = draw(logits, draws)
        assert None not in tokens_of(results)
        return operations.names

    def test_do_not_depend_on_the_number_of_rows(self, wishes: Sequence[Mapping[str, Any]]) -> None:
        few, many = self.counted(wishes, 16), self.counted(wishes, 64)
        assert few == many
        assert 0 < few.total() < 150

    def test_no_row_is_copied_by_itself(self, wishes: Sequence[Mapping[str, Any]]) -> None:
        names = self.counted(wishes, 64)
        assert "aten._local_scalar_dense" not in names

    def test_stay_on_the_device_of_the_logits(
        self, wishes: Sequence[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The device `meta` computes shapes only. The values of the results are made up here."""
        fetched: list[torch.Tensor] = []

        def values(parts: Sequence[torch.Tensor]) -> list[list[list[float]]]:
            fetched.extend(parts)
            return [[[1.0] * part.shape[1] for _ in range(part.shape[0])] for part in parts]

        monkeypatch.setattr(sampling_module, "_to_host", values)
        draws = batch(wishes, 8, 100)
        for one in draws:
            one.count(4)
        with Operations() as operations:
            results = draw(torch.empty(8, 100, device="meta"), draws)
        assert tokens_of(results) == [1] * 8
        assert operations.devices.keys() == {"meta"}, operations.devices
        assert {part.device.type for part in fetched} == {"meta"}
        assert operations.names["aten.lift_fresh"] <= 8


def test_prompts_are_scored_on_the_device_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    def values(parts: Sequence[torch.Tensor]) -> list[list[list[float]]]:
        assert {part.device.type for part in parts} == {"meta"}
        return [[[1.0] * part.shape[1] for _ in range(part.shape[0])] for part in parts]

    monkeypatch.setattr(sampling_module, "_to_host", values)
    with Operations() as operations:
        reports = scored(torch.empty(3, 50, device="meta"), [1, 2, 3], 2)
    assert [len(report.top) for report in reports] == [2, 2, 2]
    assert operations.devices.keys() == {"meta"}, operations.devices
