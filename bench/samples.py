"""Inputs of the benchmarks: texts, photos and sounds from a seed."""

import io
import itertools
import math
import random

SEED = 20
MEAN_WORDS = 20
MOST_WORDS = 200
RATE = 16_000
"""Sampling rate of sounds in Hz."""

_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will more no if out so said what up its about into than them can only other new some could "
    "time these two may then do first any my now such like our over man me even most made after "
    "also did many before must through back years where much your way well down should because "
    "each just those people how too little state good very make world still own see men work long"
)
WORDS = tuple(_COMMON.split())
VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"


def chat_words() -> list[str]:
    """Returns words of one token each, with or without a preceding space."""
    return ["".join(letters) for letters in itertools.product(CONSONANTS, VOWELS, CONSONANTS)]


def texts(count: int, seed: int = SEED) -> list[str]:
    """Returns texts of mixed lengths: exponential, with a mean of 20 words. The same seed returns
    the same texts.
    """
    source = random.Random(seed)
    lengths = (
        min(MOST_WORDS, 1 + int(source.expovariate(1 / (MEAN_WORDS - 0.5)))) for _ in range(count)
    )
    return [" ".join(source.choices(WORDS, k=length)) for length in lengths]


def texts_of(words: int, count: int) -> list[str]:
    """Returns texts of `words` words, each of them one token for most tokenizers."""
    source = random.Random(SEED + words)
    return [" ".join(source.choices(WORDS, k=words)) for _ in range(count)]


def photos(count: int) -> list[bytes]:
    """Returns JPEG files of 640 by 480 pixels, about 30 KB each."""
    from PIL import Image

    source = random.Random(SEED)
    files: list[bytes] = []
    for _ in range(count):
        coarse = Image.frombytes("RGB", (64, 48), source.randbytes(64 * 48 * 3))
        buffer = io.BytesIO()
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=85)
        files.append(buffer.getvalue())
    return files


def tones(count: int) -> list[list[int]]:
    """Returns 16-bit samples of one second each."""
    source = random.Random(SEED)
    pitches = [source.uniform(100, 2000) for _ in range(count)]
    return [
        [int(9000 * math.sin(math.tau * pitch * n / RATE)) for n in range(RATE)]
        for pitch in pitches
    ]
