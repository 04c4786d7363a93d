"""Encoder-decoder models that embed texts with only their encoder.

The complete models cannot run without a text to decode. BART and similar models can: they return
the decoder's output for the text itself. sentence-transformers makes the same distinction.
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
"""Maps `model_type` to transformers' class of the encoder alone, which loads the complete folder
too.
"""
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
"""Model types that are loaded completely to obtain their encoder."""


def encoder_of(model: Any) -> Any:
    """Returns the part of a loaded model that makes the vectors of texts."""
    return model.get_encoder() if model.config.model_type in HALVES else model
