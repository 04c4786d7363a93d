"""What a model's folder must hold to be spoken with, checked without loading it."""

from collections.abc import Collection, Mapping
from typing import Any

VOCODER = "vocoder"
"""Folder of a model that makes sound of spectrograms, beside one that makes spectrograms."""
VOICES = "speaker_embeddings.safetensors"
"""Voices of a model that takes them as vectors: one a name."""
WEIGHTS = (f"{VOCODER}/model.safetensors", VOICES)
"""What is loaded beside the model's own weights."""

ARCHITECTURES = ("VitsModel", "SpeechT5ForTextToSpeech", "FastSpeech2ConformerWithHifiGan")


def unfit(
    architecture: str, tokenizer: Mapping[str, Any], names: Collection[str]
) -> tuple[str, str] | None:
    """The file at fault and what is wrong, where a folder cannot be served; None where it can.

    Args:
        architecture: the class that the model was saved from.
        tokenizer: its tokenizer_config.json.
        names: paths of its files, relative to the folder.
    """
    settings, kind = "tokenizer_config.json", tokenizer.get("tokenizer_class")
    if architecture == "VitsModel" and tokenizer.get("phonemize", True):
        return settings, (
            "has the tokenizer turn text into phonemes with espeak, which is not there. Upload a "
            'model that was trained on letters, with "phonemize": false.'
        )
    if kind == "FastSpeech2ConformerTokenizer":
        return settings, (
            "names FastSpeech2ConformerTokenizer, which needs g2p_en, and that is not there. "
            "Upload the model with a tokenizer that needs no other library."
        )
    if architecture != "SpeechT5ForTextToSpeech":
        return None
    if not {f"{VOCODER}/config.json", WEIGHTS[0]} <= set(names):
        return WEIGHTS[0], (
            "is missing: the model makes spectrograms. Save a SpeechT5HifiGan into its folder "
            f"'{VOCODER}' with save_pretrained."
        )
    if VOICES not in names:
        return VOICES, (
            "is missing: the model speaks with the voice of a vector. Save one or more there, each "
            "by its voice's name, of shape (speaker_embedding_dim,)."
        )
    return None
