"""Packed rows hold all tokens of padded rows, keep samples apart, and change no answer."""

import itertools
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.models.engines import packed_rows
from stoker.models.engines.openvino import ConversionVerdict
from stoker.models.engines.packed_layers import PackedLayers
from stoker.models.engines.packed_rows import RowPacking, RowPlan, plan_rows, row_inputs
from stoker.models.stages.base import bucket
from stoker.replica import conversion
from stoker.wire.protocol import Sharing
from tests.engines.test_packed_models import LENGTHS, PACKED, TOLERANCES, Loaded, made, worst
from tests.support.conversion import conversion_of
from tests.support.local import Local

CACHING = {"gemma3", "mistral", "qwen3"}
"""Decoders that return keys and values. Such models are not exported."""
SAMPLES = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def masked(lengths: list[int], *, is_left: bool = False) -> Any:
    """Returns the attention mask of a padded batch."""
    width = max(lengths) + 3
    mask = np.zeros((len(lengths), width), np.int64)
    for row, length in enumerate(lengths):
        start = width - length if is_left else 0
        mask[row, start : start + length] = 1
    return mask


def packing(mask: Any, plan: RowPlan | None = None) -> RowPacking:
    tensors = map(torch.as_tensor, row_inputs(mask, plan))
    known = RowPacking.of(dict(zip(packed_rows.NAMES, tensors, strict=True)))
    assert known
    return known


@given(SAMPLES)
def test_each_sample_has_a_place(lengths: list[int]) -> None:
    width, rows = plan_rows(lengths)
    assert sorted(itertools.chain.from_iterable(rows)) == [*range(len(lengths))]
    assert all(sum(lengths[sample] for sample in row) <= width for row in rows)
    assert len(rows) * width <= bucket(max(lengths)) * len(lengths)


@given(SAMPLES, st.booleans())
def test_unpacks_what_was_packed(lengths: list[int], is_left: bool) -> None:
    mask = masked(lengths, is_left=is_left)
    known = packing(mask)
    values = torch.arange(1, mask.size + 1).view(*mask.shape, 1)
    rows = known.tokens.shape
    packed = values.flatten(0, 1)[known.tokens.flatten()].view(*rows, 1)
    unpacked = packed.flatten(0, 1)[known.places.flatten()].view(values.shape)
    kept = torch.as_tensor(mask)[..., None]
    assert torch.equal(unpacked * kept, values * kept)
    segments = known.segments.flatten()[known.places.flatten()].view(mask.shape)
    assert torch.equal(segments, torch.arange(len(lengths))[:, None].expand(mask.shape))


def test_the_mask_keeps_samples_apart() -> None:
    known = packing(masked([3, 2, 4]), RowPlan(8, [[0, 1], [2]]))
    mask = known.mask(None, is_causal=False)
    assert mask.shape == (2, 1, 8, 8)
    assert mask[0, 0, 0].tolist() == [True] * 3 + [False] * 5
    assert mask[0, 0, 4].tolist() == [False] * 3 + [True] * 2 + [False] * 3
    # Unused tokens attend to one another, so that their values are numbers.
    assert mask.any(-1).all()
    assert (
        known.mask(None, is_causal=True)[0, 0, 4].tolist() == [False] * 3 + [True] * 2 + [False] * 3
    )
    assert known.mask(None, is_causal=True)[0, 0, 3].tolist() == [False] * 3 + [True] + [False] * 4
    assert known.mask(2, is_causal=False)[1, 0, 0].tolist() == [True] * 2 + [False] * 6


@pytest.mark.parametrize("name", sorted(PACKED.keys() - CACHING))
def test_layers_answer_the_same(tmp_path: Path, name: str) -> None:
    """The comparison before an export raises an error for other answers."""
    model = Loaded(made(tmp_path, *PACKED[name]))
    sample = model.stages.probe(LENGTHS[0])
    assert sample
    with torch.inference_mode():
        batch = conversion._packed_batch(model.engine, sample)
    assert packed_rows.TOKENS in batch


def test_converted(tmp_path: Path) -> None:
    """A converted model computes samples of any lengths in packed rows, and the queue lets them
    share a batch.
    """
    folder = made(tmp_path / "model", *PACKED["modernbert"], side="left")
    execution = conversion_of(folder, "feature-extraction")
    (form,) = ConversionVerdict.read(Path(execution.folder)).forms
    assert form.is_packed
    alone = Loaded(folder)
    samples = alone.samples()
    expected = [alone.hidden([sample], Sharing.ALONE)[0] for sample in samples]
    with closing(Local("feature-extraction", folder, in_openvino=True)) as local:
        local.stages.sharing = Sharing.PADDED
        local.adopt(execution)
        while local.engine != "openvino":
            local.ask({"inputs": "a"})
        assert local.stages.sharing is Sharing.PACKED
        outputs = local.forward(samples)
        worker: Any = local._worker
        assert worker._queue.is_packed
    hidden = [output["last_hidden_state"] for output in outputs]
    assert worst(hidden, expected) <= TOLERANCES["float32"]


def test_a_large_head_is_padded(tmp_path: Path) -> None:
    """A head computes padding, so a model with a large one is not packed."""
    model = Loaded(made(tmp_path, *PACKED["bert"]))
    sample = model.stages.probe(LENGTHS[0])
    assert sample
    assert isinstance(model.engine.layers, PackedLayers)
    assert conversion._may_pack(model.engine, sample)
    model.engine.model.head = torch.nn.Linear(32, 10_000)
    assert not conversion._may_pack(model.engine, sample)
