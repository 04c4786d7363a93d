"""generation_config.json of models with `generate`, field by field against the model itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.support.local import Local
from tests.support.seq2seq import EOS, TEXTS, Direct, bart

MOST = 12


class World:
    def __init__(self, root: Path) -> None:
        self.folder = root / "bart"
        transformers.set_seed(0)
        bart(self.folder)
        self.own: dict[str, Any] = json.loads((self.folder / "generation_config.json").read_text())
        self.plain = self.tokens(Direct(self.folder))

    def tokens(self, direct: Direct) -> list[int]:
        inputs = direct.tokenizer(TEXTS[1], return_tensors="pt", return_token_type_ids=False)
        return direct.model.generate(**inputs, max_new_tokens=MOST)[0].tolist()[1:]

    def with_own(self, fields: Mapping[str, Any]) -> tuple[Local, Direct]:
        (self.folder / "generation_config.json").write_text(json.dumps({**self.own, **fields}))
        return Local("summarization", self.folder), Direct(self.folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("generation"))


def fields(world: World) -> dict[str, Any]:
    first, second, third, *_ = world.plain
    return {
        "suppress_tokens": [first, second],
        "begin_suppress_tokens": [first],
        "bad_words_ids": [[first], [second, third]],
        "sequence_bias": [[[first], -50.0]],
        "no_repeat_ngram_size": 1,
        "encoder_no_repeat_ngram_size": 1,
        "repetition_penalty": 3.0,
        "encoder_repetition_penalty": 5.0,
        "forced_bos_token_id": 9,
        "forced_eos_token_id": EOS,
        "num_beams": 3,
        "min_new_tokens": MOST,
        "exponential_decay_length_penalty": [2, 1.9],
    }


_NAMES = (
    *("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "repetition_penalty"),
    *("encoder_repetition_penalty", "forced_bos_token_id", "forced_eos_token_id", "num_beams"),
    *("min_new_tokens", "exponential_decay_length_penalty"),
)


@pytest.mark.parametrize("name", _NAMES)
def test_each_field_has_its_effect_alone_and_in_a_batch(name: str, world: World) -> None:
    local, direct = world.with_own({name: fields(world)[name]})
    expected = [[{"summary_text": direct(text, max_new_tokens=MOST)}] for text in TEXTS]
    body = {"inputs": TEXTS, "max_new_tokens": MOST}
    assert local.ask_together([body, body]) == [expected, expected]
    assert not local.stages.notices
    local.close()


@pytest.mark.parametrize("own", [{"max_new_tokens": 5}, {"max_length": 5}])
def test_the_files_length_is_the_default(own: dict[str, Any], world: World) -> None:
    local, direct = world.with_own(own)
    length = own.get("max_new_tokens") or own["max_length"] - 1
    expected = [{"summary_text": direct(TEXTS[1], max_new_tokens=length)}]
    assert local.ask({"inputs": TEXTS[1]}) == expected
    more = [{"summary_text": direct(TEXTS[1], max_new_tokens=MOST)}]
    assert local.ask({"inputs": TEXTS[1], "max_new_tokens": MOST}) == more
    assert expected != more
    local.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beam_groups", 2),
        ("penalty_alpha", 0.6),
        ("guidance_scale", 2.0),
        ("force_words_ids", [[3]]),
        ("dola_layers", "low"),
        ("token_healing", True),
    ],
)
def test_what_has_no_effect_is_a_notice_and_no_error(name: str, value: Any, world: World) -> None:
    usual, _ = world.with_own({})
    local, _ = world.with_own({name: value})
    body = {"inputs": TEXTS[1], "max_new_tokens": MOST}
    assert local.ask(body) == usual.ask(body)
    (notice,) = local.stages.notices
    assert f'"{name}": {json.dumps(value)}' in notice.message
    local.close()
    usual.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("return_dict_in_generate", True),
        ("output_scores", True),
        ("prompt_lookup_num_tokens", 3),
        ("cache_implementation", "static"),
    ],
)
def test_what_changes_no_answer_is_left_out(name: str, value: Any, world: World) -> None:
    usual, _ = world.with_own({})
    local, _ = world.with_own({name: value})
    body = {"inputs": TEXTS, "max_new_tokens": MOST}
    assert local.ask(body) == usual.ask(body)
    assert not local.stages.notices
    local.close()
    usual.close()
