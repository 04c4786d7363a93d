"""`tiny-summarizer`: writes the headline of a short news item."""

import zlib
from pathlib import Path
from random import Random

from tools.demo_models import common, seq2seq
from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import capitalise, expand
from tools.demo_models.names import CITIES
from tools.demo_models.seq2seq import Example

STEPS = 2_000
TOWNS = CITIES[:60]
_DATA = DataFile("summarizer")
WHO = _DATA.entries("who")
DEEDS = _DATA.read("deeds", tuple[tuple[str, str], ...])
WHAT = _DATA.entries("what")
KINDS = _DATA.entries("kinds")
DAYS = _DATA.entries("days")
_FILLERS = _DATA.entries("fillers")


class Items:
    """Draws news items. Held-out items combine a deed and a thing that never occur together in
    training.
    """

    def __init__(self, *, held_out: bool) -> None:
        self._held_out = held_out

    def draw(self, rng: Random) -> Example:
        """Returns two to four sentences, one of them with the news, and the headline."""
        while True:
            actor, (deed, does), thing = rng.choice(WHO), rng.choice(DEEDS), rng.choice(WHAT)
            # Uses a stable hash, because Python salts `hash` differently in each process.
            if (zlib.crc32(f"{deed} {thing}".encode()) % 8 == 0) == self._held_out:
                break
        kind, town, day = rng.choice(KINDS), rng.choice(TOWNS), rng.choice(DAYS)
        phrase = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} {thing}"
        news = rng.choice(
            (
                f"the {actor} of {town} {deed} {phrase} on {day}.",
                f"on {day} the {actor} of {town} {deed} {phrase}.",
                f"in {town} the {actor} {deed} {phrase} on {day}.",
                f"on {day} the {actor} in {town} {deed} {phrase}.",
            )
        )
        slots = {"town": TOWNS, "day": DAYS, "who": WHO, "what": WHAT}
        sentences = [
            expand(filler, rng, slots) for filler in rng.sample(_FILLERS, rng.choice((1, 2, 3)))
        ]
        # The news is the first sentence or the second.
        sentences.insert(rng.choice((0, 1)), capitalise(news))
        return Example(" ".join(sentences), f"{capitalise(actor)} of {town} {does} {kind} {thing}")


def held_out(count: int, seed: int = 1) -> list[Example]:
    """Returns items with a deed and a thing that never occur together in training."""
    rng, items = Random(seed), Items(held_out=True)  # noqa: S311 - draws sentences, no secrets
    return [items.draw(rng) for _ in range(count)]


def build(folder: Path) -> None:
    """Trains the summarizer, measures it and writes its folder."""
    model, score, count = seq2seq.trained(folder, Items(held_out=False).draw, held_out, STEPS)
    common.write_card(folder, model, _card(score, count))


def _card(score: float, count: int) -> common.Card:
    return common.Card(
        title="tiny-summarizer: the headline of a short news item",
        pipeline_tag="summarization",
        tags=("t5", "summarization", "tiny"),
        summary=(
            "A T5 with two layers of 64 dimensions on each side that finds the sentence with the "
            "news in an item of two to four sentences, leaves out day and circumstances, and "
            "writes who does what in the present tense."
        ),
        data=(
            f"{STEPS * seq2seq.BATCH:,} news items: {len(WHO)} actors in {len(TOWNS)} towns, "
            f"{len(DEEDS)} deeds, {len(WHAT)} things of {len(KINDS)} kinds, and sentences that "
            "tell no news. One pairing of a deed with a thing in eight was held out."
        ),
        evaluation=[
            ("headline right to the letter, deed and thing never seen together", score, count)
        ],
        example=(
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("tiny-summarizer")\n'
            'model = AutoModelForSeq2SeqLM.from_pretrained("tiny-summarizer")\n'
            'text = "Nobody was hurt. On Monday the zoo of Berlin opened a new bridge."\n'
            'tokens = tokenizer(text, return_tensors="pt")\n'
            "tokenizer.decode(model.generate(**tokens)[0], skip_special_tokens=True)\n"
            "# Zoo of Berlin opens new bridge"
        ),
        limits=(
            "It has learnt one kind of headline for one kind of item. Words outside its "
            "vocabulary are read as unknown; a text of another kind gets a headline that says "
            "something else."
        ),
        repeatable="The items and the vocabulary came out the same in two processes.",
    )
