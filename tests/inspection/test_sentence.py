"""Models of sentence-transformers: the served ones, and the messages at the push for the others."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.inspection import FailureCode, InspectionError, inspect
from stoker.models.stages.sentence_modules import SERVED, FolderUnfitError, Sentence, described

from .builders import PIPELINES, MemoryFiles, config, dumps, model, sentence

POOLING = ("Pooling", {"pooling_mode": "cls"})
TOKENS = {"module_input_name": "token_embeddings"}
DENSE = {"in_features": 4, "out_features": 2, "activation_function": "torch.nn.Identity"}


def files(*modules: tuple[str, Mapping[str, Any]], **more: bytes) -> dict[str, bytes]:
    named = {name.replace("__", "."): data for name, data in more.items()}
    return {**model(config_json=config("BertModel")), **sentence(*modules), **named}


def refused(given: Mapping[str, bytes]) -> InspectionError:
    with pytest.raises(InspectionError) as caught:
        inspect(MemoryFiles(given), None, PIPELINES)
    assert caught.value.message.isascii()
    return caught.value


class TestServed:
    @pytest.mark.parametrize(
        "modules",
        [
            [],
            [POOLING, ("Dense", DENSE), ("LayerNorm", {"dimension": 2}), ("Normalize", {})],
            [("WeightedLayerPooling", {"layer_start": 1}), POOLING, ("Dropout", {"dropout": 0.1})],
            [("Dense", DENSE | TOKENS), ("Normalize", TOKENS), POOLING],
        ],
    )
    def test_is_accepted(self, modules: list[tuple[str, dict[str, Any]]]) -> None:
        inspection = inspect(MemoryFiles(files(*modules)), None, PIPELINES)
        assert inspection.pipeline == "feature-extraction"
        assert inspection.warnings == ()

    def test_nothing_is_asked_of_other_pipelines(self) -> None:
        """Other pipelines have no requirements. A cross-encoder has a transformer only."""
        only = dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}])
        contents = {
            **model(config_json=config("BertForSequenceClassification")),
            "modules.json": only,
        }
        inspection = inspect(MemoryFiles(contents), "text-classification", PIPELINES)
        assert inspection.pipeline == "text-classification"


class TestRefused:
    @pytest.mark.parametrize(
        ("modules", "path", "words"),
        [
            ([POOLING, ("CNN", {})], "modules.json", ["'CNN'", *SERVED]),
            ([("CNN", {})], "modules.json", ["'CNN'", *SERVED]),
            ([("Transformer", {}), POOLING], "modules.json", ["1_Transformer", "top folder"]),
            ([("Normalize", {})], "modules.json", ["names 0 modules of Pooling"]),
            ([POOLING, POOLING], "modules.json", ["names 2 modules of Pooling"]),
            ([POOLING, ("WeightedLayerPooling", {})], "modules.json", ["directly after"]),
            ([("LayerNorm", {}), POOLING], "1_LayerNorm/config.json", ["before Pooling"]),
            ([POOLING, ("Dense", TOKENS)], "2_Dense/config.json", ["'token_embeddings'"]),
            (
                [POOLING, ("Dense", {"activation_function": "torch.nn.Mish"})],
                "2_Dense/config.json",
                ["'Mish'", "Tanh"],
            ),
            ([("Pooling", {"pooling_mode": "best"})], "1_Pooling/config.json", ["'best'", "mean"]),
        ],
    )
    def test_says_what_is_wrong_and_what_is_served(
        self, modules: list[tuple[str, dict[str, Any]]], path: str, words: list[str]
    ) -> None:
        error = refused(files(*modules))
        assert error.code is FailureCode.UNSUPPORTED_MODEL
        assert error.path == path
        for word in words:
            assert word in error.message

    def test_static_embeddings(self) -> None:
        """Static embeddings have no config.json, but the error does not complain about that."""
        name = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
        contents = model(config_json=None) | {"modules.json": dumps([{"path": "", "type": name}])}
        error = refused(contents)
        assert error.code is FailureCode.UNSUPPORTED_MODEL
        assert "'StaticEmbedding', which is not supported" in error.message
        assert "Transformer, Pooling, Dense, LayerNorm" in error.message

    @pytest.mark.parametrize("kind", ["Dense", "LayerNorm"])
    def test_modules_without_their_weights(self, kind: str) -> None:
        contents = files(POOLING, (kind, {}))
        del contents[f"2_{kind}/model.safetensors"]
        error = refused(contents)
        assert error.code is FailureCode.MISSING_WEIGHTS
        assert error.path == f"2_{kind}/model.safetensors"

    @pytest.mark.parametrize(
        ("about", "words"),
        [
            ({"modality_config": {"text": {}, "message": {}}}, "chat messages"),
            ({"modality_config": {"text": {"method": "get_text_features"}}}, "hidden states"),
            ({"transformer_task": "fill-mask"}, "'fill-mask'"),
            ({"max_seq_length": "long"}, "'long'"),
        ],
    )
    def test_transformers_for_something_else(self, about: Any, words: str) -> None:
        error = refused(files(sentence_bert_config__json=dumps(about)))
        assert error.path == "sentence_bert_config.json"
        assert words in error.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda some: (
        st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=8), some, max_size=3)
    ),
    max_leaves=8,
)
RIGHT: Mapping[str, Any] = {
    "modules.json": [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    ],
    "1_Pooling/config.json": {"pooling_mode": "mean", "include_prompt": False},
    "2_Dense/config.json": DENSE,
    "sentence_bert_config.json": {"max_seq_length": 77, "modality_config": {"text": {}}},
    "config_sentence_transformers.json": {"prompts": {"query": "q: "}, "default_prompt_name": "x"},
}


class TestDescription:
    def test_older_releases_name_the_settings_after_the_kind_of_model(self) -> None:
        known = {
            "modules.json": [
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ],
            "sentence_xlm-roberta_config.json": {"max_seq_length": 77, "do_lower_case": True},
        }
        about = described(lambda path: known.get(path, {}))
        assert (about.max_tokens, about.lowercase, about.pooling) == (77, True, ("mean",))

    def test_without_modules_it_is_the_mean(self) -> None:
        assert described(lambda _path: {}) == Sentence()

    @given(st.sampled_from(sorted(RIGHT)), st.text(max_size=20), JSON)
    @settings(max_examples=300, deadline=None)
    def test_whatever_the_files_hold(self, path: str, name: str, value: Any) -> None:
        """Wrong values are handled in a whole file, in one of its fields, or in an unknown
        field.
        """
        inner = RIGHT[path][0] if isinstance(RIGHT[path], list) else RIGHT[path]
        for changed in (value, inner | {name: value}, *(inner | {key: value} for key in inner)):
            listed = [changed, *RIGHT[path][1:]] if isinstance(RIGHT[path], list) else changed
            files = {**RIGHT, path: listed}
            try:
                about = described(lambda path, files=files: files.get(path, {}))
            except FolderUnfitError as error:
                assert error.path in files
            else:
                assert isinstance(about, Sentence)
