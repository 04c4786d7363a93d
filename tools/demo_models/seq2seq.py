"""Shared code of the two models that write a sentence: tokenizer, architecture, batches,
measure.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from tools.demo_models import common

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
BATCH = 64
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Example(NamedTuple):
    """A text and the expected output of the model."""

    text: str
    target: str


def tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Returns a tokenizer with the texts' words and punctuation marks as tokens, case kept."""
    words = sorted({token for text in texts for token in _TOKEN.findall(text)})
    vocabulary = {token: at for at, token in enumerate([PAD, EOS, UNK, *words])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A $B {EOS}", special_tokens=[(EOS, vocabulary[EOS])]
    )
    # No word starts with the prefix. The decoder is used only to remove spaces before punctuation
    # marks.
    raw.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        model_max_length=common.MAX_TOKENS,
        model_input_names=["input_ids", "attention_mask"],
    )


def model(tokenizer: PreTrainedTokenizerFast) -> T5ForConditionalGeneration:
    """Returns a T5 with two layers in the encoder and two in the decoder."""
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            relative_attention_num_buckets=16,
            relative_attention_max_distance=48,
            dropout_rate=0.0,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,  # pyright: ignore[reportCallIssue]
        )
    )
    model.generation_config.max_new_tokens = 32
    return model


def batches(
    tokenizer: PreTrainedTokenizerFast, draw: Callable[[Random], Example], rng: Random
) -> Iterator[common.Batch]:
    """Yields endless batches of fresh examples. The loss ignores padding of the targets."""
    encode: Any = tokenizer
    while True:
        examples = [draw(rng) for _ in range(BATCH)]
        rows: list[list[int]] = encode([each.text for each in examples])["input_ids"]
        targets: list[list[int]] = encode([each.target for each in examples])["input_ids"]
        yield common.inputs(rows) | {"labels": common.padded(targets, -100)}


def written(model: Any, tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Returns the model's greedy output for each text."""
    outputs: list[str] = []
    for start in range(0, len(texts), 100):
        batch = common.inputs(tokenizer(list(texts[start : start + 100]))["input_ids"])
        with torch.no_grad():
            tokens = model.generate(**batch, do_sample=False, num_beams=1)
        outputs += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return outputs


def exact_match(model: Any, tokenizer: Any, examples: Sequence[Example]) -> float:
    """Returns the share of texts for which the output equals the target exactly."""
    answers = written(model, tokenizer, [each.text for each in examples])
    right = [answer == each.target for answer, each in zip(answers, examples, strict=True)]
    return sum(right) / len(right)


def trained(
    folder: Path,
    draw: Callable[[Random], Example],
    held_out: Callable[[int], list[Example]],
    steps: int,
) -> tuple[Any, float, int]:
    """Trains on the examples that `draw` returns, and saves the model.

    Returns the model, its share of exact matches on held-out examples, and the number of these
    examples.
    """
    rng = common.seed_everything()
    examples = [draw(rng) for _ in range(20_000)]
    words = tokenizer(text for example in examples for text in example)
    learner = model(words)
    common.fit(
        learner,
        batches(words, draw, rng),
        lambda batch: learner(**batch).loss,
        steps=steps,
        peak_rate=4e-3,
    )
    common.save(learner, words, folder)
    tests = held_out(1000)
    return learner, exact_match(learner, words, tests), len(tests)
