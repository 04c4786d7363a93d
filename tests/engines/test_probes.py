"""Architectures that run only inputs of one form are probed with such inputs at load."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.wire.protocol import Sharing
from tests.support.language import tokenizer
from tests.support.loading import shared
from tests.support.local import Local
from tests.tasks.test_image_to_text_pix2struct import pix2struct

library: Any = transformers


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [("Longformer", {"attention_window": 8}, Sharing.PADDED), ("Roberta", {}, Sharing.PACKED)],
)
def test_questions_are_parted_from_texts(
    tmp_path: Path, kind: str, more: dict[str, Any], expected: Sharing
) -> None:
    """Probes separate the question from the text. Longformer rejects inputs without three
    separators.
    """
    words = tokenizer("roberta")
    ids = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("pad", "sep", "eos")}
    config = getattr(library, f"{kind}Config")(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=132,
        initializer_range=0.3,
        **ids,
        **more,
    )
    transformers.set_seed(0)
    getattr(library, f"{kind}ForQuestionAnswering")(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    assert shared("question-answering", tmp_path) is expected
    with closing(Local("question-answering", tmp_path)) as local:
        for length in (3, 21, 50, 1000):
            for number in (0, 1):
                probe = local.stages.probe(length, number)
                assert probe
                input_ids = probe.features["input_ids"]
                assert input_ids.shape[1] == max(6, min(length, 128))
                assert int((input_ids == words.sep_token_id).sum()) == 3
        body = {"question": "where is clara", "context": "clara lives in paris " * 30}
        assert local.ask(body)["answer"]


def test_a_patch_says_where_it_is(tmp_path: Path) -> None:
    """Probes keep the positions at the start of Pix2Struct's patches, which are no pixels."""
    pix2struct(tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_normalize": False}))
    assert shared("image-to-text", tmp_path) is Sharing.PADDED


def test_probes_of_a_question_look_like_real_ones(tmp_path: Path) -> None:
    words = tokenizer("bert")
    config = library.BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    library.BertForQuestionAnswering(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    with closing(Local("question-answering", tmp_path)) as local:
        probe = local.stages.probe(40, 3)
    assert probe
    types = probe.features["token_type_ids"][0]
    assert torch.equal(types.sort().values, types)
    assert types.unique().tolist() == [0, 1]
    assert len(probe.features["input_ids"].unique()) > 8
