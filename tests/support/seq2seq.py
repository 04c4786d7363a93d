"""Tiny encoder-decoder models and a way to generate with them directly."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.language import tokenizer

TEXTS = [
    "the tower is in paris.",
    "my name is maria and clara lives in london, where a river is.",
    "music!",
]
EOS = 2


def _save(model: Any, folder: Path, words: Any) -> None:
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def _layers() -> dict[str, Any]:
    return {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 128,
        "init_std": 0.5,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": EOS,
    }


def t5(folder: Path) -> None:
    words = tokenizer("t5")
    config = transformers.T5Config(
        vocab_size=len(words),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        pad_token_id=1,
        eos_token_id=EOS,
        decoder_start_token_id=1,
        tie_word_embeddings=False,
        initializer_factor=1.5,
        task_specific_params={
            "summarization": {"prefix": "example: "},
            "translation_en_to_de": {"prefix": "the model "},
        },
    )
    # With these weights one of the texts ends early and the others do not.
    transformers.set_seed(1)
    model = transformers.T5ForConditionalGeneration(config)
    torch.nn.init.normal_(model.lm_head.weight)
    _save(model, folder, words)


def bart(folder: Path) -> None:
    words = tokenizer("roberta")
    config = transformers.BartConfig(
        vocab_size=len(words), decoder_start_token_id=EOS, forced_eos_token_id=EOS, **_layers()
    )
    _save(transformers.BartForConditionalGeneration(config), folder, words)


def marian(folder: Path) -> None:
    words = tokenizer("t5")
    config = transformers.MarianConfig(vocab_size=len(words), decoder_start_token_id=1, **_layers())
    _save(transformers.MarianMTModel(config), folder, words)


class Direct:
    """Calls the model and its tokenizer with one text at a time."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()

    @torch.inference_mode()
    def __call__(self, text: str, **options: Any) -> str:
        settings = {"max_new_tokens": 32} | options
        tokens = self.tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        made = self.model.generate(**tokens, **settings)
        return self.tokenizer.decode(made[0], skip_special_tokens=True).strip()
