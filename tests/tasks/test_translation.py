"""Translation against the model called directly, family by family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from stoker.models.tasks.translation import TranslationRequest
from tests.support.language import WORDS
from tests.support.local import Local, RefusedError
from tests.support.seq2seq import TEXTS, Direct, marian, t5

LENGTH = {"max_new_tokens": 32}


def result(text: str) -> list[dict[str, str]]:
    return [{"translation_text": text}]


@pytest.fixture(scope="module", params=[t5, marian], ids=lambda family: family.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[tuple[Local, Direct]]:
    folder: Path = tmp_path_factory.mktemp(request.param.__name__)
    transformers.set_seed(0)
    request.param(folder)
    local = Local("translation", folder)
    yield local, Direct(folder)
    local.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: Any) -> Iterator[tuple[Local, Direct]]:
    folder: Path = tmp_path_factory.mktemp("t5")
    transformers.set_seed(0)
    t5(folder)
    local = Local("translation", folder)
    yield local, Direct(folder)
    local.close()


class TestParity:
    def test_alone(self, case: Any) -> None:
        local, direct = case
        for text in TEXTS:
            assert local.ask({"inputs": text, **LENGTH}) == result(direct(text))

    def test_rows_of_unlike_lengths_do_not_change_each_other(self, case: Any) -> None:
        local, direct = case
        expected = [result(direct(text)) for text in TEXTS]
        assert len({len(answer[0]["translation_text"]) for answer in expected}) > 1
        local.batches.clear()
        for answer in local.ask_together([{"inputs": TEXTS, **LENGTH}] * 3):
            assert answer == expected
        assert max(local.batches) > 1

    def test_beams_in_a_mixed_batch(self, case: Any) -> None:
        local, direct = case
        options = {"num_beams": 3, "length_penalty": 2.0, "max_new_tokens": 24}
        expected = [result(direct(text, **options)) for text in TEXTS]
        local.batches.clear()
        assert local.ask_together([{"inputs": TEXTS, **options}] * 2) == [expected] * 2
        assert max(local.batches) > 1

    @pytest.mark.parametrize(
        "options",
        [
            {"max_new_tokens": 3},
            {"min_new_tokens": 20},
            {"num_beams": 4},
            {"repetition_penalty": 1.7},
            {"no_repeat_ngram_size": 1},
        ],
        ids=str,
    )
    def test_options(self, case: Any, options: dict[str, Any]) -> None:
        local, direct = case
        expected = result(direct(TEXTS[1], **options))
        assert local.ask({"inputs": TEXTS[1], **LENGTH, **options}) == expected
        further = {"inputs": TEXTS[1], "generate_kwargs": LENGTH | options}
        assert local.ask(further) == expected

    def test_default_length_is_256_or_the_models_limit(self, case: Any) -> None:
        local, direct = case
        default_length = 256 if local.model.config.model_type == "t5" else 128
        assert local.ask({"inputs": TEXTS[0], "min_new_tokens": default_length}) == result(
            direct(TEXTS[0], max_new_tokens=default_length, min_new_tokens=default_length)
        )


class TestBatching:
    def test_unlike_options_do_not_share_a_batch(self, one: Any) -> None:
        local, direct = one
        bodies = [{"inputs": TEXTS[0], "max_new_tokens": number} for number in (2, 3, 4)]
        local.batches.clear()
        answers = local.ask_together(bodies)
        assert answers == [result(direct(TEXTS[0], max_new_tokens=n)) for n in (2, 3, 4)]
        assert set(local.batches) == {1}


class TestSampling:
    def test_a_seed_repeats_in_any_company(self, one: Any) -> None:
        local, _ = one
        body = {"inputs": TEXTS[1], "do_sample": True, "temperature": 50, "seed": 5, **LENGTH}
        alone = local.ask(body)
        assert local.ask({**body, "inputs": TEXTS})[1] == alone
        assert local.ask({**body, "seed": 6}) != alone

    def test_top_k_of_one_is_greedy(self, one: Any) -> None:
        local, direct = one
        body = {"inputs": TEXTS[0], "do_sample": True, "top_k": 1, **LENGTH}
        assert local.ask(body) == result(direct(TEXTS[0]))

    def test_a_cold_temperature_is_greedy(self, one: Any) -> None:
        local, direct = one
        body = {"inputs": TEXTS[0], "do_sample": True, "temperature": 1e-4, **LENGTH}
        assert local.ask(body) == result(direct(TEXTS[0]))


class TestPrefix:
    def test_languages_of_a_t5(self, one: Any) -> None:
        local, direct = one
        body = {"inputs": TEXTS[0], "src_lang": "en", "tgt_lang": "de", **LENGTH}
        assert local.ask(body) == result(direct("the model " + TEXTS[0]))

    def test_one_it_lacks(self, one: Any) -> None:
        with pytest.raises(RefusedError, match="It translates en to de") as refused:
            one[0].ask({"inputs": "a", "src_lang": "en", "tgt_lang": "fr"})
        assert refused.value.failure.param == "tgt_lang"


def mbart(folder: Path) -> None:
    _multilingual(folder, transformers.MBartConfig, "MBart", ["en_XX", "de_DE"])


def nllb(folder: Path) -> None:
    _multilingual(folder, transformers.M2M100Config, "M2M100", ["eng_Latn", "deu_Latn"])


def _multilingual(folder: Path, config_class: Any, name: str, codes: list[str]) -> None:
    plain = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(word, 0.0) for word in plain]
    pieces += [(f"▁{word}", -2.0) for word in dict.fromkeys(WORDS.split())]
    if name == "MBart":
        words: Any = transformers.MBartTokenizer(vocab=pieces)
    else:
        words = transformers.NllbTokenizer(
            vocab={piece: number for number, (piece, _) in enumerate(pieces)}, merges=[]
        )
    config = config_class(
        vocab_size=len(words),
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=128,
        init_std=0.5,
        decoder_start_token_id=2,
    )
    getattr(transformers, f"{name}ForConditionalGeneration")(config).save_pretrained(folder)
    words.save_pretrained(folder)


@pytest.mark.parametrize(
    ("make", "source", "target", "other"),
    [(mbart, "en_XX", "de_DE", "fr_XX"), (nllb, "eng_Latn", "deu_Latn", "fra_Latn")],
    ids=["mbart", "nllb"],
)
def test_languages_of_a_multilingual_model(
    tmp_path: Path, make: Any, source: str, target: str, other: str
) -> None:
    transformers.set_seed(0)
    make(tmp_path)
    local, direct = Local("translation", tmp_path), Direct(tmp_path)

    def expected(text: str, source: str, target: str) -> list[dict[str, str]]:
        direct.tokenizer.src_lang = source
        return result(
            direct(text, forced_bos_token_id=direct.tokenizer.convert_tokens_to_ids(target))
        )

    text = "the tower is in paris"
    forward = {"inputs": text, "src_lang": source, "tgt_lang": target, **LENGTH}
    back = {"inputs": text, "src_lang": other, "tgt_lang": source, **LENGTH}
    default_answer = local.ask({"inputs": text, **LENGTH})
    try:
        answers = local.ask_together([forward, back, forward])
        assert answers[0] == answers[2] == expected(text, source, target)
        assert answers[1] == expected(text, other, source)
        # The languages of one request do not affect the next.
        assert local.ask({"inputs": text, **LENGTH}) == default_answer
        with pytest.raises(RefusedError, match=f"'xx' is not a language.*{source[:2]}") as refused:
            local.ask({**forward, "tgt_lang": "xx"})
        assert refused.value.failure.param == "tgt_lang"
    finally:
        local.close()


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"inputs": ["a", " "]}, "inputs[1]"),
            ({"inputs": "paris " * 200}, "inputs"),
            ({"inputs": "a", "temperature": 0.5}, "temperature"),
            ({"inputs": "a", "generate_kwargs": {"seed": 1}}, "seed"),
            ({"inputs": "a", "length_penalty": 2.0}, "length_penalty"),
            ({"inputs": "a", "min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens"),
        ],
        ids=str,
    )
    def test_by_the_model(self, one: Any, body: dict[str, Any], param: str) -> None:
        with pytest.raises(RefusedError) as refused:
            one[0].ask(body)
        assert refused.value.failure.param == param
        assert refused.value.failure.code == "invalid_request"

    def test_more_tokens_than_the_decoder_has_positions(self, tmp_path: Path) -> None:
        transformers.set_seed(0)
        marian(tmp_path)
        local = Local("translation", tmp_path)
        try:
            with pytest.raises(RefusedError, match="at most 128") as refused:
                local.ask({"inputs": "a", "max_new_tokens": 129})
            assert refused.value.failure.param == "max_new_tokens"
            with pytest.raises(RefusedError, match="leave out 'tgt_lang'"):
                local.ask({"inputs": "a", "tgt_lang": "de"})
        finally:
            local.close()

    def test_truncation_cuts(self, one: Any) -> None:
        local, _ = one
        cut = {"truncation": True, **LENGTH}
        assert local.ask({"inputs": "paris " * 200, **cut}) == local.ask(
            {"inputs": "paris " * 127, **LENGTH}
        )

    @pytest.mark.parametrize(
        "options",
        [
            {"do_sample": True, "temperature": 1e-6},
            {"do_sample": True, "temperature": 100.0, "repetition_penalty": 0.01},
            {"do_sample": True, "temperature": 1e-6, "repetition_penalty": 100.0},
            {"do_sample": True, "top_p": 1e-300},
            {"do_sample": True, "generate_kwargs": {"typical_p": 1e-300, "min_p": 1e-300}},
            {"num_beams": 2, "length_penalty": -10.0, "max_new_tokens": 100},
            {"num_beams": 2, "length_penalty": 10.0, "max_new_tokens": 100},
        ],
        ids=str,
    )
    def test_numbers_at_their_bounds(self, one: Any, options: dict[str, Any]) -> None:
        (answer,) = one[0].ask({"inputs": "a", **LENGTH, **options})
        assert isinstance(answer["translation_text"], str)

    @pytest.mark.parametrize(
        ("body", "where"),
        [
            ({"max_new_tokens": 0}, "max_new_tokens"),
            ({"max_new_tokens": 4097}, "max_new_tokens"),
            ({"num_beams": 17}, "num_beams"),
            ({"temperature": 0}, "temperature"),
            ({"temperature": 1e-300, "do_sample": True}, "temperature"),
            ({"repetition_penalty": 1e-50, "do_sample": True}, "repetition_penalty"),
            ({"length_penalty": 11, "num_beams": 2}, "length_penalty"),
            ({"generate_kwargs": {"num_beams": 17}}, "num_beams"),
            ({"generate_kwargs": {"custom_generate": "x"}}, "custom_generate"),
            ({"generate_parameters": {"max_time": 1}}, "max_time"),
            ({"num_beams": 2, "generate_kwargs": {"num_beams": 3}}, "given twice"),
            ({"truncation": "somehow"}, "truncation"),
        ],
        ids=str,
    )
    def test_by_the_schema(self, body: dict[str, Any], where: str) -> None:
        with pytest.raises(ValidationError, match=where):
            TranslationRequest.model_validate({"inputs": "a"} | body)

    def test_the_form_of_the_hub_client(self) -> None:
        body = {
            "inputs": "a",
            "parameters": {
                "truncation": "only_first",
                "generate_parameters": {"num_beams": 2},
                "clean_up_tokenization_spaces": True,
            },
        }
        assert TranslationRequest.model_validate(body).parameters() == {
            "truncation": True,
            "generate_kwargs": {"num_beams": 2},
            "clean_up_tokenization_spaces": True,
        }
