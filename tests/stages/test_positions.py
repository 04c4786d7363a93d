"""Models with positions that do not start at 0, tested at their longest input."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stoker.models.stages.positions import most_positions
from tests.support.compare import equal
from tests.support.local import Local, RefusedError
from tests.support.models import word_tokenizer

library: Any = transformers

ROWS = 34
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": ROWS,
    "initializer_range": 0.3,
}
BART = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": 0.3,
}
KINDS: dict[str, dict[str, Any]] = {
    "Bert": {},
    "Camembert": {},
    "Data2VecText": {},
    "Esm": {"position_embedding_type": "absolute", "mask_token_id": 4},
    "IBert": {},
    "Longformer": {"attention_window": 8},
    "Luke": {"entity_vocab_size": 4, "entity_emb_size": 8},
    "MPNet": {},
    "Roberta": {},
    "RobertaPreLayerNorm": {},
    "XLMRoberta": {},
    "XLMRobertaXL": {},
    "Xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}


def saved(folder: Path, kind: str) -> Any:
    words = word_tokenizer()
    # Such tokenizers specify no length.
    words.model_max_length = 10**30
    words.save_pretrained(folder)
    options = {**SMALL, "vocab_size": len(words), "pad_token_id": words.pad_token_id}
    config = getattr(library, f"{kind}Config")(**options, **KINDS[kind])
    transformers.set_seed(0)
    model = getattr(library, f"{kind}ForSequenceClassification")(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_text_is_classified_as_by_transformers(tmp_path: Path, kind: str) -> None:
    model = saved(tmp_path, kind)
    words: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with closing(Local("text-classification", tmp_path)) as local:
        most = local.stages.max_tokens()  # type: ignore[attr-defined]
        text = "hot " * (most - 2)
        answers = local.ask({"inputs": [text, "my team"], "function_to_apply": "none"})
        with pytest.raises(RefusedError, match=f"takes at most {most}"):
            local.ask({"inputs": text + "hot"})
    for sentence, labels in zip((text, "my team"), answers, strict=True):
        with torch.inference_mode():
            logits = model(**words(sentence, return_tensors="pt")).logits[0].tolist()
        equal(sorted(label["score"] for label in labels), sorted(logits))
    with pytest.raises((IndexError, RuntimeError)), torch.inference_mode():
        model(**words(text + "hot hot hot", return_tensors="pt"))


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (transformers.BartConfig(**BART, max_position_embeddings=40), 40),
        (
            transformers.LEDConfig(**BART, max_encoder_position_embeddings=40, attention_window=8),
            40,
        ),
        (transformers.T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2), None),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_of_encoders_with_a_decoder(config: Any, rows: int | None) -> None:
    assert most_positions(library.AutoModel.from_config(config)) == rows
