"""Weights whose shapes contradict config.json."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from stoker.inspection import FailureCode, Inspection, InspectionError, inspect
from stoker.models.tasks.registry import PIPELINES
from tests.support.models import word_tokenizer

from .builders import FolderFiles, MemoryFiles, config, model, weights

library: Any = transformers

WORDS = "bert.embeddings.word_embeddings.weight"
LABELS = {"id2label": {"0": "a", "1": "b", "2": "c"}}
CLASSIFIER = "BertForSequenceClassification"


def pushed(
    architecture: str = CLASSIFIER, pipeline: str | None = None, *, shapes: Any, **settings: Any
) -> Inspection:
    files = model(config_json=config(architecture, **settings), model_safetensors=weights(**shapes))
    return inspect(MemoryFiles(files), pipeline, PIPELINES)


@pytest.mark.parametrize(
    ("shapes", "settings", "words"),
    [
        ({WORDS: (10, 4)}, {"vocab_size": 15}, [WORDS, "[15, 4]", "[10, 4]", "'vocab_size': 15"]),
        (
            {"shared.weight": (10, 4), "decoder.embed_tokens.weight": (10, 4)},
            {"vocab_size": 9},
            ["decoder.embed_tokens.weight", "[9, 4]", "[10, 4]"],
        ),
        (
            {"classifier.weight": (2, 4)},
            LABELS,
            ["classifier.weight", "[3, 4]", "[2, 4]", "3 labels in 'id2label'"],
        ),
        ({"classifier.out_proj.weight": (2, 4)}, LABELS, ["out_proj", "[3, 4]", "[2, 4]"]),
        (
            {"score.weight": (2, 4)},
            {"num_labels": 1},
            ["score.weight", "[1, 4]", "'num_labels': 1"],
        ),
        # Each row needs a name. Otherwise a caller gets an error.
        (
            {"classifier.weight": (2, 4)},
            {"id2label": {"1": "a", "2": "b"}},
            ["no label for row 0 of classifier.weight", "'0' to '1'"],
        ),
        (
            {"score.weight": (3, 4)},
            {"id2label": {"0": "a", "1": "b", "5": "c"}},
            ["no label for row 2 of score.weight", "'0' to '2'"],
        ),
        ({"score.weight": (1, 4)}, {"id2label": {"a": "0"}}, ["no label for row 0"]),
        # transformers counts the names in `id2label`.
        ({"classifier.weight": (2, 4)}, {**LABELS, "num_labels": 2}, ["3 labels in 'id2label'"]),
    ],
)
def test_a_contradiction(shapes: Any, settings: Any, words: list[str]) -> None:
    with pytest.raises(InspectionError) as caught:
        pushed(shapes=shapes, **settings)
    assert caught.value.code is FailureCode.BAD_CONFIG
    assert caught.value.path == "config.json"
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("shapes", "settings"),
    [
        ({WORDS: (10, 4), "classifier.weight": (3, 4)}, {"vocab_size": 10, **LABELS}),
        # Parts of a composite model, packed numbers, and other layers with the same name.
        ({WORDS: (10, 4)}, {"vocab_size": 15, "text_config": {"vocab_size": 10}}),
        ({WORDS: (10, 4)}, {"vocab_size": 15, "quantization_config": {"quant_method": "fp8"}}),
        ({WORDS: (10, 4), "shared.weight": (15, 4)}, {"vocab_size": 15}),
        ({"classifier.weight": (3,), "head.classifier.weight": (2, 4)}, LABELS),
        ({"embeddings.weight": (10, 4)}, {"vocab_size": 15}),
        ({"classifier.weight": (2, 4)}, {}),
    ],
    ids=range(7),
)
def test_no_contradiction(shapes: Any, settings: Any) -> None:
    assert pushed(shapes=shapes, **settings).pipeline == "text-classification"


def test_a_classifier_that_is_not_loaded() -> None:
    shapes = {"classifier.weight": (2, 4)}
    assert pushed(pipeline="feature-extraction", shapes=shapes, **LABELS)


@pytest.mark.parametrize(
    ("settings", "stored", "words"),
    [
        ({"num_hidden_layers": 2}, 4, "have 4 layers. The last 2 are not used"),
        ({"num_hidden_layers": 4}, 4, None),
        ({"num_hidden_layers": 2, "text_config": {"num_hidden_layers": 4}}, 4, None),
        ({}, 4, None),
    ],
)
def test_layers_that_are_not_used(settings: Any, stored: int, words: str | None) -> None:
    shapes = {f"bert.encoder.layer.{n}.output.dense.weight": (4, 4) for n in range(stored)}
    warnings = pushed(shapes=shapes, **settings).warnings
    assert words in warnings[0] if words else not warnings


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "num_labels": 3,
}


@pytest.mark.parametrize(
    ("kind", "head", "settings"),
    [
        ("Bert", "ForMaskedLM", SMALL),
        ("Albert", "ForSequenceClassification", {**SMALL, "embedding_size": 8}),
        ("Electra", "ForTokenClassification", {**SMALL, "embedding_size": 8}),
        ("Roberta", "ForSequenceClassification", SMALL),
        ("DistilBert", "ForSequenceClassification", {"dim": 16, "n_layers": 1, "n_heads": 2}),
        ("Deberta", "ForSequenceClassification", SMALL),
        ("ModernBert", "ForSequenceClassification", SMALL),
        ("XLNet", "ForSequenceClassification", {"d_model": 16, "n_layer": 1, "n_head": 2}),
        ("Bart", "ForSequenceClassification", BART),
        ("Bart", "ForConditionalGeneration", BART),
        ("Marian", "MTModel", {**BART, "decoder_vocab_size": 97}),
        ("T5", "ForConditionalGeneration", {"d_model": 16, "num_layers": 1, "num_heads": 2}),
        ("GPT2", "LMHeadModel", {"n_embd": 16, "n_layer": 1, "n_head": 2}),
        ("Llama", "ForSequenceClassification", {**SMALL, "num_key_value_heads": 2}),
        ("MobileBert", "ForSequenceClassification", SMALL),
        ("Funnel", "ForSequenceClassification", {"d_model": 16, "block_sizes": [1], "n_head": 2}),
        ("Mpt", "ForCausalLM", {"d_model": 16, "n_heads": 2, "n_layers": 1}),
    ],
    ids=str,
)
def test_what_transformers_writes_is_taken(
    tmp_path: Path, kind: str, head: str, settings: dict[str, Any]
) -> None:
    words = word_tokenizer()
    options = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, **settings}
    for name in ("bos", "eos", "decoder_start"):
        options[f"{name}_token_id"] = 1
    made = getattr(library, f"{kind}Config")(**options)
    getattr(library, f"{kind}{head}")(made).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    files = FolderFiles(tmp_path)
    pipelines = {"any": ["*"], **PIPELINES}
    for pipeline in ("any", "text-classification" if "Sequence" in head else "any"):
        assert inspect(files, pipeline, pipelines).warnings == ()
