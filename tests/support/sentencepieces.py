"""Tiny models with a SentencePiece model as their only tokenizer file, without tokenizer.json."""

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import torch
import transformers

from tests.support.vision import SQUARE, TOWER, VISION

TEXT = "the tower is in paris and clara lives there with a river"
_WORDS = "the tower is in paris and london was where clara lives with my model team hot river"
_CLS_SEP = {"control_symbols": ["[CLS]", "[SEP]"], "user_defined_symbols": ["[MASK]"]}
_PLAIN: dict[str, Any] = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
_T5: dict[str, Any] = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
_ALBERT: dict[str, Any] = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, **_CLS_SEP}
_DEBERTA: dict[str, Any] = {
    **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
}
_XLNET: dict[str, Any] = {
    **_PLAIN,
    "control_symbols": ["<cls>", "<sep>", "<pad>"],
    "user_defined_symbols": ["<mask>", "<eod>", "<eop>"],
}
_BYTES: dict[str, Any] = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 400}
_GEMMA: dict[str, Any] = {
    **{"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, **_BYTES},
    **{"add_dummy_prefix": False, "normalization_rule_name": "identity"},
}


class Family(NamedTuple):
    tokenizer: str
    """Name of the tokenizer's class in transformers."""
    file: str
    """File name under which that class expects the SentencePiece model."""
    training: Mapping[str, Any]
    model: str
    """Prefix of the model's classes."""
    head: str


_TOKENS, _SEQ2SEQ, _CAUSAL = "TokenClassification", "ConditionalGeneration", "CausalLM"
FAMILIES = {
    "deberta-v2": Family("DebertaV2Tokenizer", "spm.model", _DEBERTA, "DebertaV2", _TOKENS),
    "t5": Family("T5Tokenizer", "spiece.model", _T5, "T5", _SEQ2SEQ),
    "mt5": Family("T5Tokenizer", "spiece.model", _T5, "MT5", _SEQ2SEQ),
    "pegasus": Family("PegasusTokenizer", "spiece.model", _T5, "Pegasus", _SEQ2SEQ),
    "mbart": Family("MBartTokenizer", "sentencepiece.bpe.model", _PLAIN, "MBart", _SEQ2SEQ),
    "xlm-roberta": Family(
        "XLMRobertaTokenizer", "sentencepiece.bpe.model", _PLAIN, "XLMRoberta", _TOKENS
    ),
    "camembert": Family(
        "CamembertTokenizer", "sentencepiece.bpe.model", _PLAIN, "Camembert", _TOKENS
    ),
    "albert": Family("AlbertTokenizer", "spiece.model", _ALBERT, "Albert", _TOKENS),
    "big_bird": Family(
        "BigBirdTokenizer",
        "spiece.model",
        {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, **_CLS_SEP},
        "BigBird",
        _TOKENS,
    ),
    "xlnet": Family("XLNetTokenizer", "spiece.model", _XLNET, "XLNet", _TOKENS),
    "nllb": Family(
        "NllbTokenizer",
        "sentencepiece.bpe.model",
        {**_PLAIN, "model_type": "bpe"},
        "M2M100",
        _SEQ2SEQ,
    ),
    "llama": Family("LlamaTokenizer", "tokenizer.model", {**_PLAIN, **_BYTES}, "Llama", _CAUSAL),
    "gemma": Family("GemmaTokenizer", "tokenizer.model", _GEMMA, "Gemma", _CAUSAL),
    "siglip": Family("SiglipTokenizer", "spiece.model", _T5, "Siglip", "Model"),
    "rembert": Family("RemBertTokenizer", "sentencepiece.model", _ALBERT, "RemBert", _TOKENS),
    "barthez": Family("BarthezTokenizer", "sentencepiece.bpe.model", _PLAIN, "MBart", _SEQ2SEQ),
}
"""All tokenizer classes of transformers that parse a SentencePiece model's protobuf."""

_SIZES: Mapping[str, dict[str, Any]] = {
    _TOKENS: {**TOWER, "max_position_embeddings": 130, "initializer_range": 0.5, "num_labels": 3},
    _CAUSAL: {**TOWER, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
    _SEQ2SEQ: {
        **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "init_std": 0.5},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2},
        **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128},
    },
}
_OWN_SIZES: Mapping[str, dict[str, Any]] = {
    **{
        name: {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
        for name in ("T5", "MT5")
    },
    "XLNet": {
        **{"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 64},
        **{"initializer_range": 0.5, "num_labels": 3},
    },
}


def save(name: str, folder: Path) -> None:
    """Saves a model. Its only tokenizer files are the SentencePiece model and the name of its
    class.
    """
    family, library = FAMILIES[name], _library()
    folder.joinpath(family.file).write_bytes(trained(family.training))
    settings = {"tokenizer_class": family.tokenizer, "model_max_length": 128}
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = getattr(library, family.tokenizer).from_pretrained(folder)
    config: Any = getattr(library, f"{family.model}Config")
    if family.head == "Model":
        text = {**TOWER, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
        made = config(text_config={**text, "projection_size": 32}, vision_config=VISION)
        library.SiglipImageProcessorPil(size=SQUARE).save_pretrained(folder)
    else:
        sizes = _OWN_SIZES.get(family.model, _SIZES[family.head])
        made = config(vocab_size=len(tokenizer), **sizes, **_ids(family, tokenizer))
    head = "Model" if family.head == "Model" else f"For{family.head}"
    library.set_seed(0)
    model = getattr(library, f"{family.model}{head}")(made)
    if family.head == _CAUSAL:
        # Otherwise the model would write bytes that are no valid text.
        single = [at for word, at in tokenizer.get_vocab().items() if word.startswith("<")]
        with torch.no_grad():
            model.lm_head.weight[single] = 0
    model.save_pretrained(folder)


def pieces(name: str, folder: Path, text: str) -> list[str]:
    """Returns the pieces into which SentencePiece itself splits a text."""
    path = folder / FAMILIES[name].file
    return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(text, out_type=str)


def trained(options: Mapping[str, Any]) -> bytes:
    """Trains a SentencePiece model on a few words."""
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_sentences(),
        model_writer=buffer,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"vocab_size": 90, **options},
    )
    return buffer.getvalue()


def _sentences() -> Iterator[str]:
    words = _WORDS.split()
    for at in range(400):
        places = (7 * at + place * (at % 5 + 1) for place in range(3 + at % 6))
        yield " ".join(words[place % len(words)] for place in places)


def _ids(family: Family, tokenizer: Any) -> dict[str, Any]:
    ids: dict[str, Any] = {"pad_token_id": tokenizer.pad_token_id or 0}
    for name in ("bos", "eos"):
        if (token := getattr(tokenizer, f"{name}_token_id")) is not None:
            ids[f"{name}_token_id"] = token
    if family.head == _SEQ2SEQ:
        ids["decoder_start_token_id"] = ids["pad_token_id"]
    return ids


def _library() -> Any:
    return transformers
