"""Chat models of the benchmarks with random weights, and their tokenizer."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.models import kept
from bench.samples import CONSONANTS, VOWELS, chat_words

CHAT_TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CHAT_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_VOCABULARY = 49_152
LLAMA_135M = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def llama_135m() -> Path:
    """Returns a Llama of 30 layers by 576 with 135 M parameters."""
    return chat_llama("llama-135m", **LLAMA_135M)


def chat_llama(
    name: str, *, is_tied: bool = True, attention_gain: float = 1.0, **sizes: int
) -> Path:
    """Returns a Llama in bfloat16 with a ChatML template.

    Args:
        is_tied: True if the output layer is the embedding. Such a model with random weights repeats
            its last token without end.
        attention_gain: factor of what attention adds. With many layers of random weights and a
            gain of 1, the next token depends on little but the mean of all tokens.
        sizes: fields of the configuration.
    """

    def save(folder: Path) -> None:
        import torch

        words = chat_tokenizer()
        end = words.convert_tokens_to_ids(CHAT_SPECIAL[2])
        model = _llama(end=end, is_tied=is_tied, **sizes)
        # A model that repeats a special token or half a character would answer without text.
        with torch.no_grad():
            model.get_output_embeddings().weight[: len(CHAT_SPECIAL) + 256] *= 0.05
            for layer in model.model.layers:
                layer.self_attn.o_proj.weight *= attention_gain
        _save_chat(folder, model, words)

    return kept(name, save)


def small_llamas(count: int) -> list[Path]:
    """Returns Llamas of 8 layers by 256 with 19 M parameters in bfloat16, each with different
    weights.
    """

    def save(folder: Path) -> None:
        import torch

        words = chat_tokenizer()
        for at in range(count):
            torch.manual_seed(at)
            model = _llama(
                end=0,
                hidden_size=256,
                intermediate_size=688,
                num_hidden_layers=8,
                num_attention_heads=4,
            )
            _save_chat(folder / f"llama-{at:02d}", model, words)

    return sorted(path for path in kept(f"small-llamas-{count}", save).iterdir() if path.is_dir())


def _llama(*, end: int, is_tied: bool = True, **sizes: int) -> Any:
    """Returns a Llama for the tokens of `chat_tokenizer`. It is greedy, because only the model is
    measured and all contenders sample alike.
    """
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=CHAT_VOCABULARY,
        tie_word_embeddings=is_tied,
        max_position_embeddings=2048,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=0,
        **sizes,
    )
    model: Any = transformers.LlamaForCausalLM(config).eval()
    model.generation_config.do_sample = False
    return model


def _save_chat(folder: Path, model: Any, words: Any) -> None:
    import torch

    model.to(torch.bfloat16).save_pretrained(folder)
    words.save_pretrained(folder)


def chat_tokenizer() -> Any:
    """Returns a byte-level BPE of 49152 tokens with one token for each word of `chat_words`."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges = list(itertools.islice(_merges(), CHAT_VOCABULARY - 256 - len(CHAT_SPECIAL)))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = [*CHAT_SPECIAL, *letters, *(first + second for first, second in merges)]
    made: Any = Tokenizer(models.BPE({token: number for number, token in enumerate(known)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True) for token in CHAT_SPECIAL])
    words = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=CHAT_SPECIAL[2], pad_token=CHAT_SPECIAL[0]
    )
    words.chat_template = CHAT_TEMPLATE
    return words


def _merges() -> Iterator[tuple[str, str]]:
    """Yields the merges of syllables, of words of three letters with and without a preceding space,
    then of pairs and triples of syllables.
    """
    syllables = [first + second for first in CONSONANTS for second in VOWELS]
    words = chat_words()
    yield from ((piece[0], piece[1]) for piece in syllables)
    yield from ((piece[:2], piece[2]) for piece in words)
    yield from (("Ġ", piece) for piece in words)
    pairs = list(itertools.product(syllables, syllables))
    yield from pairs
    yield from (("Ġ", first + second) for first, second in pairs)
    yield from ((first + second, third) for first, second in pairs for third in syllables)
