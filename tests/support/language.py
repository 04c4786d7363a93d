"""Handmade tokenizers for tiny language models. They have tokens for every lower-case text."""

from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = (
    "the a tower is was in paris berlin london and who where what my name clara maria "
    "live lives metres tall built this example text about sport music politics model river"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PUNCTUATION = ".,?!:;-'"


def tokenizer(style: str = "bert") -> Any:
    """Returns a word-piece tokenizer that frames texts as `bert`, `roberta` or `t5` does."""
    names = {"bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]}.get(
        # RoBERTa and BART have their padding at 1 and count positions from there.
        style,
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    words = [*names, *WORDS.split(), *LETTERS, *PUNCTUATION, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    unknown = names[1] if style == "bert" else "<unk>"
    made = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = _framing(style, vocabulary)
    if style == "bert":
        special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"}
    else:
        special = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>"}
        special |= {"bos": "<s>", "eos": "</s>"}
    inputs = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=[*inputs, "token_type_ids"] if style == "bert" else inputs,
        model_max_length=128,
        **{f"{name}_token": token for name, token in special.items()},
    )


def _framing(style: str, vocabulary: dict[str, int]) -> Any:
    if style == "bert":
        single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    elif style == "roberta":
        single, pair = "<s> $A </s>", "<s> $A </s> </s> $B </s>"
    else:
        single, pair = "$A </s>", "$A </s> $B </s>"
    tokens = {token.split(":")[0] for token in f"{single} {pair}".split() if "$" not in token}
    return processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, vocabulary[token]) for token in tokens]
    )
