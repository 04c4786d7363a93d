"""Models with missing weights are rejected. transformers would fill them with random numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from stoker.models.engines import completeness
from stoker.models.engines.completeness import MissingWeightsError
from stoker.models.llm.checkpoint import load_model

library: Any = transformers
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}


def saved(folder: Path, kind: str, config: str, *without: str, **more: Any) -> Path:
    """Saves a tiny model with random weights, without the weights with the prefixes `without`."""
    model = getattr(library, kind)(getattr(library, config)(**SMALL, **more))
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    remaining = {
        name: value
        for name, value in weights.items()
        if not any(name.startswith(prefix) for prefix in without)
    }
    assert len(remaining) < len(weights) or not without
    save_file(remaining, path, metadata={"format": "pt"})
    return folder


def loaded(folder: Path, kind: str) -> Any:
    return completeness.loaded(
        getattr(library, kind), str(folder), local_files_only=True, use_safetensors=True
    )


class TestMissing:
    def test_h5_a_head(self, tmp_path: Path) -> None:
        saved(tmp_path, "BertForTokenClassification", "BertConfig", "classifier.")
        with pytest.raises(MissingWeightsError) as refused:
            loaded(tmp_path, "AutoModelForTokenClassification")
        assert (
            "lack 2 of the weights that the configuration of BertForTokenClassification requires"
            in str(refused.value)
        )
        assert "classifier.bias, classifier.weight" in str(refused.value)

    def test_h5_layers_that_the_configuration_claims(self, tmp_path: Path) -> None:
        saved(tmp_path, "LlamaForCausalLM", "LlamaConfig")
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
        with pytest.raises(MissingWeightsError, match=r"model\.layers\.2\..* and 6 more"):
            load_model(tmp_path)

    def test_h5_a_pooler_that_a_head_reads(self, tmp_path: Path) -> None:
        saved(tmp_path, "BertForSequenceClassification", "BertConfig", "bert.pooler.")
        with pytest.raises(MissingWeightsError, match=r"bert\.pooler\.dense\.bias"):
            loaded(tmp_path, "AutoModelForSequenceClassification")


class TestHonest:
    """Weights that transformers computes itself or that no layer reads may be missing."""

    def test_h5_weights_that_are_tied(self, tmp_path: Path) -> None:
        saved(tmp_path, "BertForMaskedLM", "BertConfig")
        names = load_file(tmp_path / "model.safetensors")
        assert "cls.predictions.decoder.weight" not in names
        loaded(tmp_path, "AutoModelForMaskedLM")
        saved(tmp_path / "t5", "T5ForConditionalGeneration", "T5Config", d_model=16, d_kv=8)
        loaded(tmp_path / "t5", "AutoModelForSeq2SeqLM")
        saved(tmp_path / "llama", "LlamaForCausalLM", "LlamaConfig", tie_word_embeddings=True)
        load_model(tmp_path / "llama")

    def test_h5_a_pooler_that_was_never_trained(self, tmp_path: Path) -> None:
        """RoBERTa may lack a pooler, because features are means of its tokens."""
        saved(tmp_path, "RobertaForMaskedLM", "RobertaConfig")
        loaded(tmp_path, "AutoModel")

    def test_h5_what_hides_inputs_in_training(self, tmp_path: Path) -> None:
        saved(
            tmp_path,
            "Wav2Vec2ForCTC",
            "Wav2Vec2Config",
            "wav2vec2.masked_spec_embed",
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
        )
        loaded(tmp_path, "AutoModelForCTC")

    def test_h5_positions_that_are_computed(self, tmp_path: Path) -> None:
        small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "pad_token_id": 0}
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        kind = "MarianMTModel"
        saved(tmp_path, kind, "MarianConfig", **small, **heads)
        names = load_file(tmp_path / "model.safetensors")
        assert not [name for name in names if "embed_positions" in name]
        loaded(tmp_path, "AutoModelForSeq2SeqLM")
