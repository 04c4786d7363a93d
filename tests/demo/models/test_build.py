"""Tests of the shipped models as packaged, and of their training sentences."""

import json
import re
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    pipeline,
)

from stoker.demo.setup import MODELS as SHIPPED
from tests.demo.sentences import FILL, NER, SENTIMENT, SIMILAR
from tools import demo_models as build
from tools.demo_models import chat, drawing, encoder, fill_mask, sentiment, tagger, transcriber
from tools.demo_models.__main__ import BUILDS
from tools.demo_models.common import LARGEST_FOLDER
from tools.demo_models.grammar import every, expand
from tools.demo_models.tagger_text import TEMPLATES, Names

TAGS = {
    "tiny-ner": "token-classification",
    "tiny-fill-mask": "fill-mask",
    "tiny-sentiment": "text-classification",
    "tiny-encoder": "feature-extraction",
}

LARGEST = {
    "tiny-chat": chat.LARGEST_FOLDER,
    "tiny-draw": drawing.LARGEST_FOLDER,
    "tiny-transcriber": transcriber.LARGEST,
}

AUTO = {
    "tiny-ner": AutoModelForTokenClassification,
    "tiny-fill-mask": AutoModelForMaskedLM,
    "tiny-sentiment": AutoModelForSequenceClassification,
}


@cache
def loaded(name: str, **options: Any) -> Any:
    folder = SHIPPED / name
    model = AUTO[name].from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return pipeline(TAGS[name], model=model, tokenizer=tokenizer, **options)


class TestFolders:
    @pytest.mark.parametrize("name", BUILDS)
    def test_holds_few_plain_files(self, name: str) -> None:
        files = [file for file in (SHIPPED / name).rglob("*") if file.is_file()]
        plain = {".jinja", ".json", ".txt", ".md", ".safetensors"}
        assert {file.suffix for file in files} <= plain
        assert sum(file.stat().st_size for file in files) <= LARGEST.get(name, LARGEST_FOLDER)

    @pytest.mark.parametrize("name", BUILDS)
    def test_files_can_be_read_by_all(self, name: str) -> None:
        assert all(file.stat().st_mode & 0o044 == 0o044 for file in (SHIPPED / name).rglob("*"))

    @pytest.mark.parametrize("name", TAGS)
    def test_card_states_licence_and_task(self, name: str) -> None:
        card = (SHIPPED / name / "README.md").read_text()
        front_matter = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
        assert front_matter
        lines = front_matter[1].splitlines()
        assert "license: apache-2.0" in lines
        assert f"pipeline_tag: {TAGS[name]}" in lines

    @pytest.mark.parametrize("name", TAGS)
    def test_config_names_its_class_and_runs_no_code(self, name: str) -> None:
        config = json.loads((SHIPPED / name / "config.json").read_text())
        assert config["architectures"][0].startswith("Bert")
        assert config["max_position_embeddings"] == 128
        assert "auto_map" not in config

    @pytest.mark.parametrize("name", TAGS)
    def test_tokenizer_is_fast_and_bounded(self, name: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(SHIPPED / name, local_files_only=True)
        assert tokenizer.is_fast
        assert tokenizer.model_max_length == 128

    def test_labels(self) -> None:
        config = loaded("tiny-sentiment").model.config
        assert config.id2label == {0: "negative", 1: "positive"}
        assert config.problem_type == "single_label_classification"
        assert tuple(loaded("tiny-ner").model.config.id2label.values()) == tagger.LABELS

    def test_encoder_has_the_sentence_transformers_layout(self) -> None:
        modules = json.loads((SHIPPED / "tiny-encoder" / "modules.json").read_text())
        assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
        pooling = json.loads((SHIPPED / "tiny-encoder" / "1_Pooling" / "config.json").read_text())
        assert pooling["pooling_mode_mean_tokens"]
        assert pooling["word_embedding_dimension"] == 64


class TestAnswers:
    @pytest.mark.parametrize(("text", "entities"), NER)
    def test_entities(self, text: str, entities: list[tuple[str, str]]) -> None:
        spans = loaded("tiny-ner", aggregation_strategy="simple")(text)
        assert [
            (text[span["start"] : span["end"]], span["entity_group"]) for span in spans
        ] == entities

    @pytest.mark.parametrize(("text", "word"), FILL)
    def test_words(self, text: str, word: str) -> None:
        assert loaded("tiny-fill-mask")(text)[0]["token_str"] == word

    @pytest.mark.parametrize(("text", "label"), SENTIMENT)
    def test_labels(self, text: str, label: str) -> None:
        assert loaded("tiny-sentiment")(text)[0]["label"] == label

    @pytest.mark.parametrize(("text", "related", "unrelated"), SIMILAR)
    def test_neighbours(self, text: str, related: str, unrelated: str) -> None:
        folder = SHIPPED / "tiny-encoder"
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModel.from_pretrained(folder, local_files_only=True)
        vector, near, far = encoder.embedded(model, tokenizer, [text, related, unrelated])
        assert vector @ near > vector @ far + 0.1

    def test_sentence_transformers_agrees_with_the_build(self) -> None:
        library = pytest.importorskip("sentence_transformers")
        folder = SHIPPED / "tiny-encoder"
        texts = [text for text, _, _ in SIMILAR]
        theirs = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        ours = encoder.embedded(
            AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), texts
        )
        torch.testing.assert_close(torch.tensor(theirs.encode(texts)), ours, atol=1e-5, rtol=0)


class TestGenerators:
    @pytest.mark.parametrize(
        "draw",
        [
            tagger.training_sentences,
            sentiment.training_reviews,
            sentiment.held_out_reviews,
            encoder.training_pairs,
        ],
    )
    def test_same_seed_draws_the_same(self, draw: Any) -> None:
        assert draw(Random(7), 200) == draw(Random(7), 200)
        assert draw(Random(7), 200) != draw(Random(8), 200)

    def test_facts_are_split_the_same(self) -> None:
        assert fill_mask.split(Random(7)) == fill_mask.split(Random(7))

    def test_named_facts_are_not_trained_on(self) -> None:
        trained = {fact.text for fact in fill_mask.split(Random(7)).training}
        assert not trained & {text.lower() for text, _ in FILL}

    def test_held_out_facts_are_not_trained_on(self) -> None:
        training, held_out = fill_mask.split(Random(7))
        assert not {fact.text for fact in training} & {fact.text for fact in held_out}

    def test_held_out_pairs_share_no_sentence_with_training(self) -> None:
        trained = {text for pair in encoder.training_pairs(Random(7), 5000) for text in pair[:2]}
        held_out = {text for pair in encoder.held_out_pairs(Random(7), 50) for text in pair[:2]}
        assert not trained & held_out

    def test_held_out_names_are_not_trained_on(self) -> None:
        known, unseen = vars(Names.known()), vars(Names.unseen())
        for kind, names in known.items():
            assert not set(names) & set(unseen[kind])


class TestTagging:
    def test_markup_becomes_spans(self) -> None:
        example = tagger.parse("<PER Ana> is in <LOC Rome>.")
        assert example == ("Ana is in Rome.", ((0, 3, "PER"), (10, 14, "LOC")))

    def test_token_labels_come_back_as_the_same_spans(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "tiny-ner", local_files_only=True)
        for example in tagger.training_sentences(Random(3), 200):
            offsets = tokenizer(example.text, return_offsets_mapping=True)["offset_mapping"]
            labels = [max(label, 0) for label in tagger.token_labels(example, offsets)]
            assert tagger.decode(labels, offsets) == example.spans

    def test_cut_pieces_spell_the_same_word(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(SHIPPED / "tiny-ner", local_files_only=True)
        tokens = tokenizer("Maria Schmidt")["input_ids"][1:-1]
        cuts = tagger.Cuts(tokenizer)
        for seed in range(50):
            cut, _ = cuts.apply(tokens, [1] * len(tokens), Random(seed))
            assert tokenizer.decode(cut) == tokenizer.decode(tokens)


class TestGrammar:
    def test_alternatives_nest(self) -> None:
        drawn = {expand("a (b|(c|d) e) {x}.", Random(seed), {"x": ("f",)}) for seed in range(40)}
        assert drawn == {"a b f.", "a c e f.", "a d e f."}

    def test_every_form_is_listed(self) -> None:
        assert list(every("(the |)cat (sat|ran).")) == [
            "the cat sat.",
            "the cat ran.",
            "cat sat.",
            "cat ran.",
        ]

    def test_templates_are_balanced(self) -> None:
        assert all(template.count("(") == template.count(")") for template in TEMPLATES)


def test_build_names_no_path_or_host() -> None:
    for file in Path(build.__file__).parent.glob("*.py"):
        assert not re.search(r"/(work|home|tmp|root)/|https?://", file.read_text()), file
