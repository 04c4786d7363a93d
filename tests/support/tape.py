"""A language model that writes what a script says, token by token, whatever it was asked.

It is a GPT-2 whose logits depend on the position alone. The user's last message is the place where
a script begins: the template turns it into a prompt of so many tokens. So constraints show exactly
what they forbid.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.llm.support import library

BEGIN, END = "<s>", "</s>"
SAYS = (
    "{%- for message in messages if message.role == 'user' -%}{%- if loop.last -%}"
    "{%- for _ in range(message.content | int) -%}<s>{%- endfor -%}{%- endif -%}{%- endfor -%}"
)


class Script:
    """Texts that a model is to write; saved as a model's folder."""

    def __init__(
        self, *, special: Sequence[str] = (), added: Sequence[str] = (), template: str = ""
    ) -> None:
        """
        Args:
            special: tokens that are special, beside those of the beginning and the end.
            added: tokens that are never split but are text.
            template: the chat template, which writes as many `<s>` as the script's place says.
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        letters: dict[int, str] = bytes_to_unicode()
        vocabulary = {letters[byte]: byte for byte in range(256)}
        made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(one, normalized=False) for one in (BEGIN, END)])
        made.add_special_tokens([AddedToken(one, normalized=False) for one in special])
        made.add_tokens([AddedToken(one, normalized=False) for one in added])
        self._tokenizer = made
        self._template = template or SAYS
        self._tokens: list[int] = []

    @property
    def length(self) -> int:
        """How many tokens have been added."""
        return len(self._tokens)

    def add(self, text: str) -> str:
        """Returns the message that has the model write this text."""
        place = str(len(self._tokens) + 1)
        self._tokens += [*self._tokenizer.encode(text).ids, self._tokenizer.token_to_id(END)]
        return place

    def save(self, folder: Path) -> Path:
        import torch

        end = self._tokenizer.token_to_id(END)
        length = (len(self._tokens) + 200) // 64 * 64 + 64
        config = library.GPT2Config(
            vocab_size=self._tokenizer.get_vocab_size(),
            n_positions=length,
            n_embd=length,
            n_layer=1,
            n_head=1,
            n_inner=16,
            tie_word_embeddings=False,
            bos_token_id=end - 1,
            eos_token_id=end,
        )
        model = library.GPT2LMHeadModel(config)
        with torch.no_grad():
            for weights in model.parameters():
                weights.zero_()
            block = model.transformer.h[0]
            for norm in (model.transformer.ln_f, block.ln_1, block.ln_2):
                norm.weight.fill_(1)
            model.transformer.wpe.weight.copy_(torch.eye(length))
            for place, token in enumerate(self._tokens):
                model.lm_head.weight[token, place] = 1.0
        model.save_pretrained(folder)
        tokenizer = library.PreTrainedTokenizerFast(
            tokenizer_object=self._tokenizer,
            bos_token=BEGIN,
            eos_token=END,
            model_max_length=length,
            chat_template=self._template,
        )
        tokenizer.save_pretrained(folder)
        own = folder / "generation_config.json"
        own.write_text(json.dumps(json.loads(own.read_text()) | {"do_sample": False}))
        return folder
