"""Checks the files that a speech model's folder needs, without loading the model."""

from collections.abc import Collection, Mapping
from typing import Any

VOCODER = "vocoder"
"""Folder of the model that turns spectrograms into sound, inside a folder of a model that makes
spectrograms.
"""
VOICES = "speaker_embeddings.safetensors"
"""Voices of a model that accepts them as vectors, each by its name."""
WEIGHTS = (f"{VOCODER}/model.safetensors", VOICES)
"""Files that are loaded in addition to the model's own weights."""

ARCHITECTURES = ("VitsModel", "SpeechT5ForTextToSpeech", "FastSpeech2ConformerWithHifiGan")


def unfit(
    architecture: str, tokenizer: Mapping[str, Any], names: Collection[str]
) -> tuple[str, str] | None:
    """Returns the invalid file and the reason if a folder cannot be served, or else None.

    Args:
        architecture: Class that the model was saved from.
        tokenizer: Content of its tokenizer_config.json.
        names: Paths of its files, relative to the folder.
    """
    settings, kind = "tokenizer_config.json", tokenizer.get("tokenizer_class")
    if architecture == "VitsModel" and tokenizer.get("phonemize", True):
        return settings, (
            "makes the tokenizer turn text into phonemes with espeak, which is not "
            'available. Upload a model that was trained on letters, with "phonemize": '
            "false."
        )
    if kind == "FastSpeech2ConformerTokenizer":
        return settings, (
            "names FastSpeech2ConformerTokenizer, which needs g2p_en. That library is "
            "not available. Upload the model with a tokenizer that needs no other "
            "library."
        )
    if architecture != "SpeechT5ForTextToSpeech":
        return None
    if not {f"{VOCODER}/config.json", WEIGHTS[0]} <= set(names):
        return WEIGHTS[0], (
            "is missing: the model outputs spectrograms. Save a SpeechT5HifiGan into "
            f"its folder '{VOCODER}' with save_pretrained."
        )
    if VOICES not in names:
        return VOICES, (
            "is missing: the model needs a vector for its voice. Save one or more "
            "vectors of shape (speaker_embedding_dim,) in this file, each under its "
            "voice's name."
        )
    return None
