"""Tiny real models, built by transformers with random weights."""

from pathlib import Path
from typing import Any

from tools.stand_ins.word_pieces import word_pieces

TEXT = "the a model team keeps hot my name is Clara and I live in Berkeley California"


def tiny_bert(
    path: Path, head: str = "ForTokenClassification", positions: int = 128, labels: int = 3
) -> Path:
    """Saves a BERT of some thousand parameters with its tokenizer, in the layout of
    save_pretrained.
    """
    import transformers

    tokenizer = word_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        num_labels=labels,
    )
    transformers.set_seed(0)
    getattr(transformers, f"Bert{head}")(config).eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tiny_vit(path: Path) -> Path:
    """Saves a ViT for 32 by 32 pixels and seven labels, with its image processor."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=7,
    )
    transformers.set_seed(0)
    transformers.ViTForImageClassification(config).eval().save_pretrained(path)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessorPil(size=size).save_pretrained(path)
    return path


def word_tokenizer() -> Any:
    """Returns a WordPiece tokenizer of letters and a few words, built like BERT's."""
    return word_pieces(TEXT.lower().split(), 128)


def overflowing_bert(path: Path, word: str) -> Path:
    """Saves a BERT that computes NaN for one word in float16, but numbers in float32."""
    import torch
    import transformers

    tiny_bert(path, "Model")
    model = transformers.AutoModel.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    (row,) = tokenizer.convert_tokens_to_ids([word])
    with torch.no_grad():
        # The sum exceeds float16's range. Layer normalization removes the common part.
        embeddings = model.embeddings
        embeddings.word_embeddings.weight *= 1000
        embeddings.position_embeddings.weight *= 1000
        embeddings.word_embeddings.weight[row] = 65_400 + embeddings.word_embeddings.weight[row]
        embeddings.token_type_embeddings.weight += 200
    model.save_pretrained(path)
    return path
