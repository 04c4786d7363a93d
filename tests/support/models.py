"""Tiny real models: made by transformers itself, with random weights."""

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TEXT = "the a model team keeps hot my name is Clara and I live in Berkeley California"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tiny_bert(path: Path, head: str = "ForTokenClassification", positions: int = 128) -> Path:
    """Save a BERT of some thousand parameters, with its tokenizer, as save_pretrained does."""
    import transformers

    tokenizer = word_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        num_labels=3,
    )
    transformers.set_seed(0)
    getattr(transformers, f"Bert{head}")(config).eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tiny_vit(path: Path) -> Path:
    """Save a ViT for 32 by 32 pixels and seven labels, with its image processor."""
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
    """A WordPiece tokenizer of letters and a few words, made like BERT's."""
    return word_pieces(TEXT.lower().split(), 128)


def word_pieces(words: Iterable[str], max_tokens: int) -> Any:
    """A lower-case WordPiece tokenizer of BERT's kind that knows these words, and all letters."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = string.ascii_lowercase
    known = [*SPECIAL, *words, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(known))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=max_tokens,
    )
