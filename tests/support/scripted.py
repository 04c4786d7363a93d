"""Language models that write a text of the test's: what a form forbids in it, they cannot write."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

library: Any = transformers

_START, _END = "<|scripted_start|>", "<|scripted_end|>"
_POSITIONS = 1024


def scripted_model(
    folder: Path, texts: Sequence[str], *, marks: Sequence[str], chat_template: str
) -> Mapping[str, str]:
    """Saves a GPT-2 whose logits depend on the position alone.

    Args:
        texts: what it writes.
        marks: its special tokens.
        chat_template: of all conversations but those that make it write a text.

    Returns:
        A text → the only message of a conversation in which it is written.
    """
    made: Any = Tokenizer(models.BPE(vocab=_letters(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = [AddedToken(mark, normalized=False) for mark in (_START, _END, *marks)]
    made.add_special_tokens(special)
    script, places = list[int](), dict[str, str]()
    end: int = made.token_to_id(_END)
    for text in texts:
        places[text] = str(len(script) + 1)
        script += [*made.encode(text).ids, end]
    assert len(script) < _POSITIONS
    _save_model(folder, script, made)
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=_START, eos_token=_END, model_max_length=_POSITIONS
    )
    # The position is that behind the prompt: the message says how long that is.
    tokenizer.chat_template = (
        "{%- if messages | length == 1 and messages[0].content | int > 0 -%}"
        f"{{%- for _ in range(messages[0].content | int) -%}}{_START}{{%- endfor -%}}"
        f"{{%- else -%}}{chat_template}{{%- endif -%}}"
    )
    tokenizer.save_pretrained(folder)
    return places


def _save_model(folder: Path, script: Sequence[int], made: Any) -> None:
    start, end = made.token_to_id(_START), made.token_to_id(_END)
    config = library.GPT2Config(
        vocab_size=made.get_vocab_size(),
        n_positions=_POSITIONS,
        n_embd=_POSITIONS,
        n_layer=1,
        n_head=1,
        n_inner=16,
        tie_word_embeddings=False,
        bos_token_id=start,
        eos_token_id=end,
    )
    model = library.GPT2LMHeadModel(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.zero_()
        block = model.transformer.h[0]
        for norm in (model.transformer.ln_f, block.ln_1, block.ln_2):
            norm.weight.fill_(1)
        model.transformer.wpe.weight.copy_(torch.eye(_POSITIONS))
        for place, token in enumerate(script):
            model.lm_head.weight[token, place] = 12 / _POSITIONS**0.5
    model.save_pretrained(folder)


def _letters() -> dict[str, int]:
    """The 256 bytes, as GPT-2's tokenizer writes them."""
    return {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
