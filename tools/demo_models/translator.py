"""`tiny-translator`: translates simple English sentences to German, with gender, case and word
order.
"""

import zlib
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.demo_models import common, seq2seq
from tools.demo_models.data_file import DataFile
from tools.demo_models.grammar import capitalise
from tools.demo_models.seq2seq import Example

STEPS = 2_400


class Noun(NamedTuple):
    """An English noun, its German translation and its gender: m, f or n."""

    english: str
    german: str
    gender: str


_DATA = DataFile("translator")
WHO = _DATA.read("who", tuple[Noun, ...])
WHAT = _DATA.read("what", tuple[Noun, ...])
ADJECTIVES = _DATA.read("adjectives", tuple[tuple[str, str], ...])
VERBS = _DATA.read("verbs", tuple[tuple[str, str, str], ...])
TIMES = _DATA.read("times", tuple[tuple[str, str], ...])
HOURS = _DATA.read("hours", tuple[tuple[str, str], ...])
# Maps gender to the article and the ending of the adjective, for definite and indefinite articles,
# as subject and as object.
_DEFINITE = {
    "subject": {"m": ("der", "e"), "f": ("die", "e"), "n": ("das", "e")},
    "object": {"m": ("den", "en"), "f": ("die", "e"), "n": ("das", "e")},
}
_INDEFINITE = {
    "subject": {"m": ("ein", "er"), "f": ("eine", "e"), "n": ("ein", "es")},
    "object": {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")},
}
# After "kein", a neuter adjective has the same ending as after "ein".


class Sentences:
    """Draws sentences. Held-out sentences have a pair of adjective and noun that the training never
    uses.
    """

    def __init__(self, *, held_out: bool) -> None:
        self._held_out = held_out

    def draw(self, rng: Random) -> Example:
        """Returns one sentence in both languages."""
        while True:
            example, pairs = self._sentence(rng)
            # Uses a stable hash, because Python salts `hash` differently in each process.
            unseen = any(zlib.crc32(pair.encode()) % 8 == 0 for pair in pairs)
            if unseen == self._held_out:
                return example

    def _sentence(self, rng: Random) -> tuple[Example, list[str]]:
        form = rng.choice(("statement", "statement", "denial", "question"))
        actor, whom = rng.choice(WHO), rng.choice((*WHO, *WHAT, *WHAT))
        subject, acting = _phrase(rng, actor, "subject")
        thing, acted_on = _phrase(rng, whom, "object", negated=form == "denial")
        does, do, tut = rng.choice(VERBS)
        time, zeit = rng.choice(TIMES) if rng.random() < 0.4 else ("", "")
        hour, stunde = rng.choice(HOURS) if rng.random() < 0.3 else ("", "")
        at, um = (f"at {hour} o'clock", f"um {stunde} Uhr") if hour else ("", "")
        # "Kein" already negates the sentence. "Nicht" is placed after the object.
        nicht = "nicht" if form == "denial" and thing[1].startswith("d") else ""
        if form == "question":
            english = ["does", subject[0], do, thing[0], at, time]
            german = [tut, subject[1], zeit, um, thing[1]]
        else:
            english = [
                time,
                subject[0],
                *(("does not", do) if nicht or form == "denial" else (does,)),
            ]
            english += [thing[0], at]
            german = [zeit, tut, subject[1]] if zeit else [subject[1], tut]
            german += [um, thing[1], nicht]
        mark = "?" if form == "question" else "."
        return Example(_spelt(english, mark), _spelt(german, mark)), acting + acted_on


def _phrase(
    rng: Random, noun: Noun, case: str, *, negated: bool = False
) -> tuple[tuple[str, str], list[str]]:
    """Returns a noun with its article and optional adjective in both languages, and the pair of
    adjective and noun.
    """
    definite = rng.random() < 0.6
    article, ending = (_DEFINITE if definite else _INDEFINITE)[case][noun.gender]
    word, wort = rng.choice(ADJECTIVES) if rng.random() < 0.6 else ("", "")
    the = "the" if definite else "an" if (word or noun.english)[0] in "aeiou" else "a"
    if negated and not definite:
        article = f"k{article}"
    english = " ".join(filter(None, (the, word, noun.english)))
    german = " ".join(filter(None, (article, wort and wort + ending, noun.german)))
    return (english, german), [f"{word} {noun.english}"] if word else []


def _spelt(parts: list[str], mark: str) -> str:
    return capitalise(" ".join(filter(None, parts))) + mark


def held_out(count: int, seed: int = 1) -> list[Example]:
    """Returns sentences with a pair of adjective and noun that no training sentence has."""
    rng, sentences = Random(seed), Sentences(held_out=True)  # noqa: S311 - draws sentences, no secrets
    return [sentences.draw(rng) for _ in range(count)]


def build(folder: Path) -> None:
    """Trains the translator, measures it and writes its folder."""
    model, score, count = seq2seq.trained(folder, Sentences(held_out=False).draw, held_out, STEPS)
    common.write_card(folder, model, _card(score, count))


def _card(score: float, count: int) -> common.Card:
    return common.Card(
        title="tiny-translator: simple English sentences in German",
        pipeline_tag="translation",
        tags=("t5", "translation", "tiny"),
        language="[en, de]",
        summary=(
            "A T5 with two layers of 64 dimensions on each side that translates statements, "
            "denials and questions of a small vocabulary, with the articles and endings of gender "
            "and case and with German word order."
        ),
        data=(
            f"{STEPS * seq2seq.BATCH:,} sentences of {len(WHO) + len(WHAT)} nouns, "
            f"{len(ADJECTIVES)} adjectives, {len(VERBS)} verbs, weekdays and hours. One pairing "
            "of an adjective with a noun in eight was held out."
        ),
        evaluation=[
            (
                "translation right to the letter, adjective and noun never seen together",
                score,
                count,
            )
        ],
        example=(
            "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("tiny-translator")\n'
            'model = AutoModelForSeq2SeqLM.from_pretrained("tiny-translator")\n'
            'tokens = tokenizer("Today the old man buys a red hat.", return_tensors="pt")\n'
            "tokenizer.decode(model.generate(**tokens)[0], skip_special_tokens=True)\n"
            "# Heute kauft der alte Mann einen roten Hut."
        ),
        limits=(
            "Words outside its vocabulary are read as unknown and translated by a guess. It knows "
            "the present tense, the third person singular and one object: no plural, no "
            "pronouns, no subordinate clauses."
        ),
        repeatable="The sentences and the vocabulary came out the same in two processes.",
    )
