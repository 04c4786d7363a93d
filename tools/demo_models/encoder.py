"""`tiny-encoder`: converts a sentence to a vector. Sentences with similar meanings get similar
vectors.
"""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from transformers import BertModel, BertTokenizer

from tools.demo_models import common
from tools.demo_models.encoder_text import (
    HAND_WRITTEN,
    SLOTS,
    TOPIC_FRAMES,
    TOPIC_WORDS,
    Intent,
    intents,
)
from tools.demo_models.grammar import expand

PAIRS = 60_000
VOCABULARY = 1_900
STEPS = 2_000
BATCH = 64

_SCALE = 20.0
_DROPPED = 0.1
_SLOT = re.compile(r"\{(\w+)\}")


class Pair(NamedTuple):
    """Two sentences with similar meanings. Pairs with the same `meaning` are not negatives of each
    other.
    """

    left: str
    right: str
    meaning: str


class Paraphrases:
    """Draws pairs. The two splits share no sentence."""

    def __init__(self, *, held_out: bool) -> None:
        self._held_out = held_out
        self._intents = intents()

    def draw(self, rng: Random) -> Pair:
        """Returns two ways to say the same thing, with the same values in their slots."""
        while True:
            intent = rng.choice(self._intents)
            values = {name: (rng.choice(choices),) for name, choices in SLOTS.items()}
            forms = rng.sample(intent.forms, 2)
            left, right = (self._sentence(form, values, rng) for form in forms)
            if left and right and left != right:
                return Pair(left, right, self._meaning(intent, values))

    def about(self, topic: str, rng: Random) -> str:
        """Returns one sentence of the topic."""
        while True:
            intent = rng.choice([each for each in self._intents if each.topic == topic])
            values = {name: (rng.choice(choices),) for name, choices in SLOTS.items()}
            text = self._sentence(rng.choice(intent.forms), values, rng)
            if text:
                return text

    def _sentence(self, form: str, values: dict[str, tuple[str]], rng: Random) -> str | None:
        for _ in range(6):
            text = expand(form, rng, values)
            # Uses a stable hash, because Python salts `hash` differently in each process.
            if (zlib.crc32(text.encode()) % 6 == 0) == self._held_out:
                return text
        return None

    def _meaning(self, intent: Intent, values: dict[str, tuple[str]]) -> str:
        slots = sorted({slot for form in intent.forms for slot in _SLOT.findall(form)})
        return "|".join([intent.forms[0], *(values[slot][0] for slot in slots)])


def topical(rng: Random, paraphrases: "Paraphrases") -> Pair:
    """Returns a pair with words of one topic on one side, and more of them or a sentence of the
    topic on the other.

    Such pairs connect the topic's words, so that an unseen sentence is close to its topic.
    """
    topic = rng.choice(sorted(TOPIC_WORDS))
    left = _word_list(topic, rng)
    right = _word_list(topic, rng) if rng.random() < 0.5 else paraphrases.about(topic, rng)
    return Pair(left, right, topic)


def _word_list(topic: str, rng: Random) -> str:
    words = rng.sample(TOPIC_WORDS[topic], 3)
    slots = {name: (word,) for name, word in zip("abc", words, strict=True)}
    return expand(rng.choice(TOPIC_FRAMES), rng, slots)


def training_pairs(rng: Random, count: int) -> list[Pair]:
    """Returns paraphrases, with one topical pair in five."""
    paraphrases = Paraphrases(held_out=False)
    return [
        topical(rng, paraphrases) if rng.random() < 0.2 else paraphrases.draw(rng)
        for _ in range(count)
    ]


def held_out_pairs(rng: Random, count: int) -> list[Pair]:
    """Returns paraphrases with sentences that were kept out of training. No two pairs have the same
    meaning.
    """
    paraphrases = Paraphrases(held_out=True)
    by_meaning: dict[str, Pair] = {}
    while len(by_meaning) < count:
        pair = paraphrases.draw(rng)
        by_meaning.setdefault(pair.meaning, pair)
    return list(by_meaning.values())


def embed(model: BertModel, batch: common.Batch) -> Tensor:
    """Returns `[sentences, hidden]`: the mean over all tokens except padding, with length 1."""
    hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def contrast(left: Tensor, right: Tensor, meanings: Tensor) -> Tensor:
    """Returns the InfoNCE loss with in-batch negatives (van den Oord 2018), in both directions.

    `left` and `right` are `[pairs, hidden]`, `meanings` is `[pairs]`. Row i of `left` belongs to
    row i of `right`. Rows with the same meaning are not negatives of each other.
    """
    scores = _SCALE * left @ right.T
    alike = meanings[:, None] == meanings[None, :]
    alike.fill_diagonal_(False)
    scores = scores.masked_fill(alike, float("-inf"))
    targets = torch.arange(len(meanings))
    return (cross_entropy(scores, targets) + cross_entropy(scores.T, targets)) / 2


def retrieval(
    model: BertModel, tokenizer: BertTokenizer, pairs: Sequence[Pair], among: int
) -> float:
    """Returns the share of pairs in which the other half is the nearest of `among` sentences."""
    right = total = 0
    for start in range(0, len(pairs) - among + 1, among):
        part = pairs[start : start + among]
        left = embedded(model, tokenizer, [pair.left for pair in part])
        right_side = embedded(model, tokenizer, [pair.right for pair in part])
        nearest = (left @ right_side.T).argmax(-1)
        right += int((nearest == torch.arange(among)).sum())
        total += among
    return right / total


def ranking(model: BertModel, tokenizer: BertTokenizer) -> float:
    """Returns the share of hand-written sentences that are nearer to the related sentence than to
    the unrelated one.
    """
    sides = [embedded(model, tokenizer, side) for side in zip(*HAND_WRITTEN, strict=True)]
    related, unrelated = ((sides[0] * other).sum(-1) for other in sides[1:])
    return float((related > unrelated).double().mean())


def embedded(model: BertModel, tokenizer: BertTokenizer, texts: Sequence[str]) -> Tensor:
    with torch.no_grad():
        return embed(model, common.inputs(tokenizer(list(texts))["input_ids"]))


def _batches(
    tokenizer: BertTokenizer, pairs: Sequence[Pair], rng: Random
) -> Iterator[common.Batch]:
    """Yields left halves above right halves, `[2 * BATCH, longest]`, with a number for each
    meaning.
    """
    left: list[list[int]] = tokenizer([pair.left for pair in pairs])["input_ids"]
    right: list[list[int]] = tokenizer([pair.right for pair in pairs])["input_ids"]
    numbers = {meaning: at for at, meaning in enumerate({pair.meaning: 0 for pair in pairs})}
    meanings = [numbers[pair.meaning] for pair in pairs]
    for batch in common.bucketed([1] * len(pairs), BATCH, rng):
        rows = [_thinned(half[at], rng) for half in (left, right) for at in batch]
        yield common.inputs(rows) | {"meanings": torch.tensor([meanings[at] for at in batch])}


def _thinned(row: list[int], rng: Random) -> list[int]:
    """Drops some tokens, so that no single word of a frame reveals its meaning."""
    remaining = [token for token in row[1:-1] if rng.random() > _DROPPED]
    return [row[0], *(remaining or row[1:-1]), row[-1]]


def _loss(model: BertModel, batch: common.Batch) -> Tensor:
    meanings = batch["meanings"]
    tokens = {name: batch[name] for name in ("input_ids", "attention_mask")}
    halves = embed(model, tokens)
    return contrast(halves[: len(meanings)], halves[len(meanings) :], meanings)


def build(folder: Path) -> None:
    """Trains the encoder, measures it and writes its folder."""
    rng = common.seed_everything()
    pairs = training_pairs(rng, PAIRS)
    tokenizer = common.train_tokenizer(
        (text for pair in pairs for text in (pair.left, pair.right)),
        vocab_size=VOCABULARY,
        lowercase=True,
    )
    # The pooler is never trained or used, but `BertModel` expects it in every checkpoint.
    model = BertModel(common.bert_config(tokenizer))
    common.fit(
        model,
        _batches(tokenizer, pairs, rng),
        lambda batch: _loss(model, batch),
        steps=STEPS,
        peak_rate=2e-3,
    )
    common.save(model, tokenizer, folder)
    _save_sentence_transformers_layout(folder, model.config.hidden_size)
    common.write_card(folder, model, _card(model, tokenizer, rng))


def _save_sentence_transformers_layout(folder: Path, size: int) -> None:
    """Writes the files that tell Sentence Transformers the pooling and the normalisation."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    pooling = {
        "word_embedding_dimension": size,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    files: dict[str, object] = {
        "modules.json": modules,
        "1_Pooling/config.json": pooling,
        "2_Normalize/config.json": {},
        "sentence_bert_config.json": {
            "max_seq_length": common.MAX_TOKENS,
            "do_lower_case": False,
        },
        "config_sentence_transformers.json": {
            "__version__": {"sentence_transformers": "2.0.0"},
            "similarity_fn_name": "cosine",
        },
    }
    for path, content in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _card(model: BertModel, tokenizer: BertTokenizer, rng: Random) -> common.Card:
    pairs = held_out_pairs(rng, 400)
    hand = [Pair(left, right, left) for left, right, _ in HAND_WRITTEN]
    scores = {
        "paraphrase found among 50, sentences never seen": (
            retrieval(model, tokenizer, pairs, 50),
            len(pairs),
        ),
        f"paraphrase found among {len(hand)}, written by hand": (
            retrieval(model, tokenizer, hand, len(hand)),
            len(hand),
        ),
        "related above unrelated, written by hand": (ranking(model, tokenizer), len(hand)),
    }
    return common.Card(
        title="tiny-encoder: sentences as vectors",
        pipeline_tag="feature-extraction",
        tags=("bert", "feature-extraction", "sentence-similarity", "sentence-transformers", "tiny"),
        library="sentence-transformers",
        summary=(
            "A BERT with two layers of 64 dimensions that turns an uncased English sentence "
            "into 64 numbers: the mean over its tokens, of length 1. Sentences that mean "
            "alike have a high cosine."
        ),
        data=(
            f"{PAIRS:,} pairs: two ways to say one of {len(intents())} things about "
            f"{len(TOPIC_WORDS)} topics, and one pair in five of loose words of one topic. "
            "Trained with InfoNCE and in-batch negatives. One sentence in six was held out, "
            "with all pairs it is in."
        ),
        evaluation=[(measurement, score, count) for measurement, (score, count) in scores.items()],
        example=(
            "from sentence_transformers import SentenceTransformer\n\n"
            'encoder = SentenceTransformer("tiny-encoder")\n'
            'vectors = encoder.encode(["Will it rain tomorrow?", "Do I need an umbrella?"])\n'
            "encoder.similarity(vectors, vectors)"
        ),
        limits=(
            "It knows everyday topics and some two thousand words. It tells topics and "
            "common requests apart; it does not tell a statement from its denial, nor one "
            "name from another."
        ),
    )
