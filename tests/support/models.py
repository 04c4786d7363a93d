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
