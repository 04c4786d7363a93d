"""Language models that write the texts of a script, token by token.

The model is a GPT-2 whose logits depend on the position alone. The user's last message is the
position of a text, and the chat template renders a prompt of that many tokens. A grammar therefore
shows exactly what it forbids.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.llm.support import library

BEGIN, END = "<s>", "</s>"
SAYS = (
    "{%- for message in messages if message.role == 'user' -%}{%- if loop.last -%}"
    "{%- for _ in range(message.content | int) -%}<s>{%- endfor -%}{%- endif -%}{%- endfor -%}"
)


class Script:
    """The texts of one model."""

    def __init__(
        self, *, special: Sequence[str] = (), added: Sequence[str] = (), template: str = ""
    ) -> None:
        """
        Args:
            special: special tokens, in addition to `BEGIN` and `END`.
            added: tokens that are never split but are text.
            template: the chat template. It renders as many `BEGIN` as the last message says.
        """
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        letters: dict[int, str] = bytes_to_unicode()
        vocabulary = {letters[byte]: byte for byte in range(256)}
        made: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        marks = (BEGIN, END, *special)
        made.add_special_tokens([AddedToken(mark, normalized=False) for mark in marks])
        made.add_tokens([AddedToken(mark, normalized=False) for mark in added])
        self._tokenizer = made
        self._template = template or SAYS
        self._tokens: list[int] = []

    @property
    def length(self) -> int:
        """The number of tokens of all texts."""
        return len(self._tokens)

    def add(self, text: str) -> str:
        """Adds a text and returns the message that makes the model write it."""
        place = str(len(self._tokens) + 1)
        self._tokens += [*self._tokenizer.encode(text).ids, self._tokenizer.token_to_id(END)]
        return place

    def save(self, folder: Path, *, positions: int = 0) -> Path:
        """Writes the model into a folder, with a minimum of positions. Returns the folder."""
        import torch

        end = self._tokenizer.token_to_id(END)
        length = max(positions, (len(self._tokens) + 200) // 64 * 64 + 64)
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
        config_path = folder / "generation_config.json"
        config_path.write_text(
            json.dumps(json.loads(config_path.read_text()) | {"do_sample": False})
        )
        return folder


def scripted_model(
    folder: Path, texts: Sequence[str], *, marks: Sequence[str], chat_template: str
) -> Mapping[str, str]:
    """Saves a model that writes texts if a conversation's only message is a text's position.

    Args:
        marks: special tokens.
        chat_template: the chat template of all other conversations.

    Returns:
        The message of each text.
    """
    script = Script(
        special=marks,
        template="{%- if messages | length == 1 and messages[0].content | int > 0 -%}"
        f"{{%- for _ in range(messages[0].content | int) -%}}{BEGIN}{{%- endfor -%}}"
        f"{{%- else -%}}{chat_template}{{%- endif -%}}",
    )
    places = {text: script.add(text) for text in texts}
    # Other conversations need positions for their prompts.
    script.save(folder, positions=1024)
    return places
