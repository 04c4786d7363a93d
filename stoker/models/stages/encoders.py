"""Models of an encoder and a decoder of which only the encoder is run, for vectors of texts.

Without a text to decode, their whole cannot be run; BART and its kin can, and give what the decoder
makes of the text itself. sentence-transformers draws the same line.
"""

from collections.abc import Mapping
from typing import Any

CLASSES: Mapping[str, str] = {
    "longt5": "LongT5EncoderModel",
    "mt5": "MT5EncoderModel",
    "switch_transformers": "SwitchTransformersEncoderModel",
    "t5": "T5EncoderModel",
    "umt5": "UMT5EncoderModel",
}
"""`model_type` → transformers' class of the encoder alone, which loads such a folder, too."""
HALVES = frozenset(
    {
        "blenderbot",
        "blenderbot-small",
        "m2m_100",
        "marian",
        "nllb-moe",
        "pegasus",
        "pegasus_x",
        "prophetnet",
        "t5gemma",
    }
)
"""Kinds that are loaded as a whole to have their encoder."""


def encoder_of(model: Any) -> Any:
    """What of a loaded model gives the vectors of texts."""
    return model.get_encoder() if model.config.model_type in HALVES else model
