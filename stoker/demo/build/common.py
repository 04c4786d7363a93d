"""What the four builds share: seeding, the tokenizer, the training loop and the saved folder."""

import hashlib
import logging
import platform
import random
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import BertConfig, BertTokenizer, PreTrainedModel

SEED = 2025
MAX_TOKENS = 128
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, _UNK, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))
LARGEST_FOLDER = 1_000_000

logger = logging.getLogger(__name__)

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Card:
    """What a model's README says, apart from the figures that are the same for all four."""

    title: str
    pipeline_tag: str
    tags: Sequence[str]
    summary: str
    data: str
    evaluation: Sequence[tuple[str, float, int]]
    """(what was measured, score in 0..1, number of examples)"""
    example: str
    limits: str
    library: str = "transformers"


def seed_everything() -> random.Random:
    """Fixes every generator and returns the one that the data is drawn from.

    One thread, because sums split over a machine's cores would round differently on another.
    """
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)  # pyright: ignore[reportUnknownMemberType]
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    return random.Random(SEED)  # noqa: S311 - draws sentences, no secrets


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    whole_words: Iterable[str] = (),
) -> BertTokenizer:
    """A WordPiece tokenizer learnt from the texts, with `whole_words` added as single tokens.

    Accents are stripped even when case is kept, so that José and Jose share their pieces.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=True)
    cleaned = [normalizer.normalize_str(text) for text in texts]
    raw = Tokenizer(models.WordPiece({}, unk_token=SPECIAL_TOKENS[_UNK]))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer numbers letters inside words in the order of a randomly seeded hash map, and
    # breaks ties by number. Numbered here, they are the same in every process.
    letters = sorted(set("".join(cleaned)) - {" "})
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters)],
        show_progress=False,
    )
    raw.train_from_iterator(cleaned, trainer)
    vocab: dict[str, int] = raw.get_vocab()
    for word in whole_words:
        vocab.setdefault(word, len(vocab))
    return BertTokenizer(
        vocab=dict(sorted(vocab.items(), key=lambda item: item[1])),
        do_lower_case=lowercase,
        strip_accents=True,
        model_max_length=MAX_TOKENS,
    )


def bert_config(tokenizer: BertTokenizer, **fields: Any) -> BertConfig:
    """The architecture all four share: about 200,000 parameters, 0.8 MB of float32 weights.

    No dropout: the sentences are generated without end, so there is nothing to overfit to, and
    on one core dropout's random numbers would take half of the training time.
    """
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # BERT's 0.02 suits 768 dimensions; at 64 the attention would start out almost blind.
        initializer_range=0.06,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=PAD,
        **fields,
    )


def bucketed(lengths: Sequence[int], size: int, rng: random.Random) -> Iterator[list[int]]:
    """Endless batches of indices whose lengths are alike, so that little padding is computed."""
    while True:
        order = list(range(len(lengths)))
        rng.shuffle(order)
        pool = size * 32
        batches: list[list[int]] = []
        for start in range(0, len(order), pool):
            chunk = sorted(order[start : start + pool], key=lambda index: lengths[index])
            batches += [chunk[at : at + size] for at in range(0, len(chunk), size)]
        rng.shuffle(batches)
        yield from batches


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """`[rows, longest]` of int64, short rows filled up at the end."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])


def inputs(rows: Sequence[Sequence[int]]) -> Batch:
    """`input_ids` and `attention_mask`, each `[rows, longest]`."""
    ids = padded(rows, PAD)
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def fit(
    model: PreTrainedModel,
    batches: Iterator[Batch],
    loss_of: Callable[[Batch], Tensor],
    *,
    steps: int,
    peak_rate: float,
) -> None:
    """Trains with AdamW; the rate rises over the first tenth and falls to zero by the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    model.train()
    started = time.process_time()
    for step in range(1, steps + 1):
        loss = loss_of(next(batches))
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
        schedule.step()
        optimizer.zero_grad()
        if step % (steps // 6) == 0:
            spent = time.process_time() - started
            logger.info("step %d of %d, loss %.4f, %.0f s of CPU", step, steps, loss.item(), spent)
    model.eval()


def save(model: PreTrainedModel, tokenizer: BertTokenizer, folder: Path) -> None:
    """Writes config, weights and tokenizer; the weights stay float32 so that any engine loads."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    tokenizer.save_pretrained(folder)  # pyright: ignore[reportUnknownMemberType]
    # Safetensors makes its file readable by its owner alone, which an installed package is not.
    (folder / "model.safetensors").chmod(0o644)


def write_card(folder: Path, model: PreTrainedModel, card: Card) -> None:
    """Writes README.md and refuses a folder that outgrew its limit."""
    weights = folder / "model.safetensors"
    parameters = sum(tensor.numel() for tensor in model.parameters())
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    (folder / "README.md").write_text(_card_text(folder.name, card, parameters, digest), "utf-8")
    for what, score, count in card.evaluation:
        logger.info("%s: %s %.4f (%d)", folder.name, what, score, count)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    logger.info("%s: %d parameters, %d bytes, sha256 %s", folder.name, parameters, size, digest)
    if size > LARGEST_FOLDER:
        raise ValueError(f"{folder} is {size} bytes, above the limit of {LARGEST_FOLDER}")


def _prose(text: str) -> str:
    return textwrap.fill(text, 96)


def _card_text(name: str, card: Card, parameters: int, digest: str) -> str:
    tags = "".join(f"  - {tag}\n" for tag in card.tags)
    rows = "".join(
        f"| {what} | {count} | {score:.3f} |\n" for what, score, count in card.evaluation
    )
    return f"""\
---
license: apache-2.0
language: en
library_name: {card.library}
pipeline_tag: {card.pipeline_tag}
tags:
{tags}---

# {card.title}

{_prose(card.summary)}

## Training data

{_prose(card.data)}

All text was generated by `python -m stoker.demo.build {name}`; no third party's data was used.

## Evaluation

| Held-out measurement | Examples | Score |
| --- | ---: | ---: |
{rows}
## Use

```python
{card.example}
```

## Limits

{_prose(card.limits)}

## Build

{parameters:,} parameters, float32, at most {MAX_TOKENS} tokens a sentence. Seed {SEED}, one CPU
thread, deterministic algorithms. Built with torch {torch.__version__}, transformers
{transformers.__version__} and tokenizers {tokenizers.__version__} on {platform.machine()}:

    sha256 {digest}  model.safetensors

The sentences and the vocabulary came out the same in three processes. Whether the weights repeat to
the byte was not checked, and another processor or library version may round differently.
"""
